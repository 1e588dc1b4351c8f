"""`python -m reproduction.replay_check`: whether replays of recordings say what real runs do.

A few prompts are recorded and answered for real, method after method by turns, several times over: the answer of
median seconds counts, so that no stall decides. Then every method is replayed on the recording with the seconds of
those very runs: rounds of other prompts give the costs that a prompt is judged with.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, Any

import typer

from wager.bench.workloads import prompts
from wager.cli.files import check_writable, write_json
from wager.core import OFF, Arm, Round
from wager.core.provenance import provenance
from wager.core.recording import Text
from wager.policies import fixed
from wager.simulation import Replay, RoundCost, VerifyCost, play

TASKS = ("humaneval", "mt_bench", "math_reasoning")
DRAFTERS = ("prompt-lookup", "eagle:ofa", "draft:ofa")  # none of them remembers earlier texts
LENGTHS = (2, 4)
LONGEST = 384  # tokens of a prompt; longer ones are cut
FIXED = ("off", "prompt-lookup:4", "eagle:ofa:2", "eagle:ofa:4", "draft:ofa:2")
POLICIES = ("ucbspec", "meta-ucb")
CLOSE = 0.03  # replay and reality: largest difference of a method's speed over plain decoding
STALL = 3.0  # rounds that take so many times their kind's median are left out of costs, on both sides


@dataclass(frozen=True, slots=True)
class Played:
    """One method's real answer to one prompt."""

    tokens: list[int]
    rounds: list[Round]
    seconds: float  # of decoding, the prompt aside


def costs_of(rounds: Iterable[Round], overhead: float, cheap: Mapping[str, bool]) -> RoundCost:
    """Mean seconds of verification by width, of a drafted token, a proposal, and a token to catch up on."""
    verify: dict[int, list[float]] = defaultdict(list)
    step: dict[str, list[float]] = defaultdict(list)
    propose: dict[str, list[float]] = defaultdict(list)
    lag: dict[str, list[float]] = defaultdict(list)
    for r in rounds:
        verify[r.drafted + 1].append(r.verify_seconds)
        if r.arm == OFF:
            continue
        if cheap[r.arm.drafter]:
            propose[r.arm.drafter].append(r.draft_seconds)
        elif r.drafted:
            step[r.arm.drafter].append(r.draft_seconds / r.drafted)
            if r.lag > 1:
                lag[r.arm.drafter].append(r.lag_seconds / r.lag)
    points = tuple((width, _steady(taken) + overhead) for width, taken in sorted(verify.items()))
    drafting = ({name: _steady(taken) for name, taken in own.items()} for own in (propose, step, lag))
    return RoundCost(VerifyCost(points), *drafting)


def _steady(taken: Sequence[float]) -> float:
    """The mean without stalls."""
    usual = median(taken)
    return fmean([x for x in taken if x <= STALL * usual] or [usual])


def replayed(texts: Sequence[Text], method: str, costs: Sequence[RoundCost], lengths: Sequence[int]) -> list[Any]:
    """The method on every text, begun anew with each, at the costs of each."""
    spec = fixed(Arm.parse(method)) if ":" in method or method == str(OFF) else method
    every = [Replay((text,), cost, tuple(lengths), noise=0.0) for text, cost in zip(texts, costs, strict=True)]
    return [play(one, spec, 0) for one in every]


def compared(
    real: Mapping[str, Sequence[Played]], texts: Sequence[Text], cheap: Mapping[str, bool], lengths: Sequence[int]
) -> dict[str, Any]:
    """Speeds over plain decoding of real runs and of replays, whether rounds are the same, and whether ranks are."""
    count = len(texts)
    own = [[played[i] for played in real.values()] for i in range(count)]  # by prompt
    costs = []
    for i in range(count):
        others = [p for k in range(count) if k != i or count == 1 for p in own[k]]
        every = [r for p in others for r in p.rounds]
        beside = sum(p.seconds - sum(r.seconds for r in p.rounds) for p in others) / len(every)
        costs.append(costs_of(every, max(0.0, beside), cheap))
    rows: dict[str, dict[str, Any]] = {}
    for method, played in real.items():
        runs = replayed(texts, method, costs, lengths)
        rows[method] = {
            "seconds": sum(p.seconds for p in played),
            "replayed_seconds": sum(run.seconds for run in runs),
            "rounds": [len(p.rounds) for p in played],
            "replayed_rounds": [run.rounds for run in runs],
        }
    base = rows[str(OFF)]
    for row in rows.values():
        row["speed"] = round(base["seconds"] / row["seconds"], 4)
        row["replayed"] = round(base["replayed_seconds"] / row["replayed_seconds"], 4)
        row["difference"] = round(row["replayed"] / row["speed"] - 1, 4)
        row["same_rounds"] = row["rounds"] == row["replayed_rounds"]
    return {"methods": rows, **verdict(rows)}


def verdict(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Whether speeds are close, and methods whose real speeds are further apart than that are ranked alike."""
    apart = [
        (one, other)
        for one, other in combinations(rows, 2)
        if abs(math.log(rows[one]["speed"] / rows[other]["speed"])) > CLOSE
    ]
    turned = [
        f"{one}, {other}"
        for one, other in apart
        if (rows[one]["speed"] > rows[other]["speed"]) != (rows[one]["replayed"] > rows[other]["replayed"])
    ]
    furthest = max(rows, key=lambda method: abs(rows[method]["difference"]))
    return {
        "largest_difference": abs(rows[furthest]["difference"]),
        "furthest": furthest,
        "within": abs(rows[furthest]["difference"]) <= CLOSE,
        "pairs": len(apart),
        "ranked_otherwise": turned,
    }


def middle(answers: Sequence[Played]) -> Played:
    """The one of median seconds."""
    return sorted(answers, key=lambda played: played.seconds)[len(answers) // 2]


def run(
    model: Any, tokenizer: Any, asked: Sequence[tuple[str, Any]], drafters: Sequence[Any], count: int,
    fixed_arms: Sequence[str], policies: Sequence[str], lengths: Sequence[int], tell: Callable[[str], None],
    repeats: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Record the prompts, answer them by turns with every method, and compare. ``drafters``: specs, or made anew."""
    from wager.decoding.arms import build_drafters
    from wager.decoding.decoder import Decoder
    from wager.decoding.recorder import Recorder

    def made() -> dict[str, Any]:
        return build_drafters([d() if callable(d) else d for d in drafters], model, tokenizer)

    recorder = Recorder(Decoder(model, tokenizer, drafters="off", policy="off"), made(), max(lengths))
    texts: list[Text] = []
    kept = []
    for label, prompt in asked:
        if (text := recorder.record(prompt, label, count)) is not None:
            texts.append(replace(text, label=str(len(texts))))
            kept.append(prompt)
            tell(f"recorded {len(texts)} of {len(asked)}")
    names = list(recorder.drafters)
    cheap = {name: drafter.cheap for name, drafter in recorder.drafters.items()}
    every = [str(OFF), *(f"{name}:{length}" for name in names for length in sorted(lengths))]
    specs = {m: fixed(Arm.parse(m)) for m in fixed_arms} | {policy: policy for policy in policies}
    shared = list(made().values())
    decoders = {
        m: Decoder(model, tokenizer, drafters=shared, policy=spec, arms=every, reset_per_request=m in policies)
        for m, spec in specs.items()
    }
    answers: dict[str, list[list[Played]]] = {method: [[] for _ in kept] for method in decoders}  # by prompt
    for decoder in decoders.values():  # kernels are ready before anything counts
        with decoder.rehearsal():
            decoder.generate(kept[0], max_new_tokens=min(count, 12), do_sample=False)
    for turn in range(repeats * len(kept)):
        i, order = turn % len(kept), list(decoders)
        first = (i + turn // len(kept)) % len(order)
        for method in order[first:] + order[:first]:
            answer = decoders[method].generate(kept[i], max_new_tokens=count, do_sample=False)
            answers[method][i].append(Played(answer.tokens, answer.rounds, answer.decode_seconds))
        tell(f"answered {turn + 1} of {repeats * len(kept)}")
    real = {method: [middle(own) for own in every_prompt] for method, every_prompt in answers.items()}
    alike = all(played[i].tokens == real[str(OFF)][i].tokens for played in real.values() for i in range(len(kept)))
    return {"texts": len(texts), "tokens": count, "same_texts": alike, **compared(real, texts, cheap, lengths)}


def command(
    out: Annotated[Path | None, typer.Option("--json", help="Write what was found to this file.")] = None,
    model: Annotated[str, typer.Option(help="The target.")] = "smollm2-135m",
    count: Annotated[int, typer.Option("--prompts", min=1, help="Prompts a task.")] = 3,
    tokens: Annotated[int, typer.Option("--max-tokens", min=8, help="Tokens an answer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Answers to each prompt by each method.")] = 3,
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
) -> None:
    """Compare replays with real runs on this machine, which should be quiet: same ranks, speeds within 3 %."""
    if out is not None:
        check_writable(out)
    from wager.cli.session import quietly
    from wager.cli.suite import fitted
    from wager.models import load

    began = perf_counter()
    with quietly(model):
        loaded, tokenizer = load(model)
        chosen = prompts(data, tasks=TASKS, count=count, seed=1, part="test")
        asked = [
            (one.prompt.task, one.ids[0].tolist()) for one in fitted(chosen, model, loaded, tokenizer, tokens, 384)
        ]
        methods, tell = (FIXED, POLICIES, LENGTHS), lambda said: print(said, file=sys.stderr, flush=True)
        told = run(loaded, tokenizer, asked, DRAFTERS, tokens, *methods, tell, repeats)
    sizes = {"model": model, "prompts": len(asked), "repeats": repeats}
    told = {**provenance("python -m reproduction.replay_check"), **sizes, **told}
    told["took"] = round(perf_counter() - began, 1)
    for method, row in told["methods"].items():
        same = "" if row["same_rounds"] else ", other rounds"
        print(f"{method}: {row['speed']:.3f} real, {row['replayed']:.3f} replayed, {row['difference']:+.1%}{same}")
    print(
        f"largest difference {told['largest_difference']:.1%} ({told['furthest']}); of {told['pairs']} pairs "
        f"{len(told['ranked_otherwise'])} are ranked otherwise; {told['took']:.0f} s"
    )
    if out is not None:
        write_json(out, told)


if __name__ == "__main__":
    typer.run(command)
