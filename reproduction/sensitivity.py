"""What half and double of each of `auto`'s numbers do to its goodput, and what a first text loses.

`python -m reproduction.sensitivity RECORDING [ENGINE.json …]` prints both.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from wager.core import recording
from wager.policies.auto import HAND_SET
from wager.simulation import Replay, Scenario, Serving, play
from wager.simulation.costs import parse_cost

MODEL = (0.2, 0.45, 0.7)  # acceptance of the simulated drafter that is a model, from text to text


def scenarios(path: Path, engines: Sequence[str], serving_tokens: int = 40_000) -> dict[str, Scenario]:
    """The recorded texts under each cost of a round, with a model under the last; and a load that switches."""
    head, texts = recording.read(path)
    costs = {"flat": "flat", "steep": "cpu", **{Path(engine).stem: engine for engine in engines}}
    lengths = tuple(range(1, min(8, head["longest"]) + 1))
    out = {name: Replay(tuple(texts), parse_cost(cost, head), lengths) for name, cost in costs.items()}
    last = list(out)[-1]
    model = {f"{last}+model": with_model(out[last], MODEL)}
    return {**out, **model, "load-switches": Serving(goal=serving_tokens, load=(1, 16, 1, 16))}


def goodput(spec: str, scenario: Scenario, runs: int) -> float:
    """Tokens a second over so many seeds."""
    played = [play(scenario, spec, seed) for seed in range(runs)]
    return sum(run.tokens for run in played) / sum(run.seconds for run in played)


def sensitivities(where: Mapping[str, Scenario], runs: int) -> Iterator[tuple[str, float, dict[str, float]]]:
    """For every field, and for half and double of it: the change of goodput in every scenario, as a share."""
    plain = {name: goodput("auto", scenario, runs) for name, scenario in where.items()}
    for field in HAND_SET:
        for times in (0.5, 2.0):
            spec = f"auto-scaled:field={field},times={times}"
            yield field, times, {name: goodput(spec, s, runs) / plain[name] - 1.0 for name, s in where.items()}


def with_model(scenario: Replay, acceptance: Sequence[float], step: float = 0.06, lag: float = 0.002) -> Replay:
    """The texts with a drafter more that is a model, whose tokens are accepted with these probabilities in turn.

    ``step`` and ``lag``: of plain decoding's seconds, for a drafted token and for one to catch up on.
    """
    rng, plain = np.random.default_rng(0), scenario.costs.verify(1)
    longest, texts = max(scenario.lengths), []
    for number, text in enumerate(scenario.texts):
        left = text.tokens - 1 - np.arange(text.tokens - 1)
        runs = rng.geometric(1 - acceptance[number % len(acceptance)], len(left)) - 1
        agreed, count = np.minimum(np.minimum(runs, longest), left).tolist(), len(left)
        track = recording.Track([longest] * count, agreed, [0] * count, [()] * count, cheap=False)
        texts.append(replace(text, tracks={**text.tracks, "model": track}))
    costs = replace(scenario.costs, step={"model": step * plain}, lag={"model": lag * plain})
    return replace(scenario, texts=tuple(texts), costs=costs)


def first_texts(scenario: Replay, spec: str = "auto", every: int = 1, tokens: int = 64) -> list[float]:
    """The policy's speed over plain decoding's for each text of ``tokens`` or more alone, nothing known before."""
    out = []
    for seed, text in enumerate([text for text in scenario.texts if text.tokens >= tokens][::every]):
        alone = replace(scenario, texts=(text,))
        out.append(play(alone, "off", seed).seconds / play(alone, spec, seed).seconds)
    return out


def main() -> None:
    """Print the tables, one line as soon as it is known."""
    path, *engines = sys.argv[1:]
    where = scenarios(Path(path), engines)
    print("field".ljust(20), "times", *(name.rjust(14) for name in where))
    for field, times, changes in sensitivities(where, runs=3):
        print(field.ljust(20), f"{times:5.1f}", *(f"{change:+14.2%}" for change in changes.values()), flush=True)
    for name, scenario in where.items():
        if isinstance(scenario, Replay) and "model" not in scenario.drafters:
            for what, own in (("", scenario), (" and a model", with_model(scenario, MODEL))):
                speeds = first_texts(replace(own, calibrated=True))
                print(
                    f"first text, {name}{what}, calibrated: least {min(speeds):.3f}, mean {np.mean(speeds):.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
