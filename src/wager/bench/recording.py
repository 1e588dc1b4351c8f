"""Texts of a model recorded for replay: every drafter's acceptance at every position, and what rounds cost."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter
from typing import Any

from wager.bench.engine import forward_seconds
from wager.bench.workloads import Prompt
from wager.core import Arm
from wager.core.recording import RecordingWriter, Text
from wager.decoding.recorder import Recorder
from wager.eagle.drafter import Eagle
from wager.models.runner import Runner

CONTEXT, REPEATS = 300, 10  # tokens in the cache and repetitions when forwards are timed
Asked = Sequence[tuple[Prompt, list[int]]]  # prompts and their tokens
TOGETHER = 4  # batches whose prompts are sorted by length
CAUGHT_UP, FEW = 64, 16  # tokens a drafter reads at once when its catching up is timed; a head both numbers


def record(
    recorder: Recorder, asked: Asked, count: int, about: dict[str, Any], out: Path, update: Callable[..., None],
    *, temperature: float = 0.0, seed: int = 0, batch: int = 1, timed: bool = True,
) -> Iterator[Text]:  # fmt: skip
    """Texts of ``count`` tokens, each written to the recording before it is handed on; the file is made with the first.

    ``update`` is a bar's: it gets each task as ``description``, and ``advance`` after every text. Sampled texts have
    seeds from ``seed`` on. With a ``batch`` above 1 so many are written at once, by plain decoding.
    Rounds are not ``timed`` where the machine is busy: the recording then has no costs.
    """
    costs = round_costs(recorder) if timed else {}
    writer: RecordingWriter | None = None
    with ExitStack() as stack:
        for text in _texts(recorder, asked, count, update, temperature, seed, batch):
            if text is None:
                continue
            if writer is None:
                if costs:
                    costs["propose"] = {name: statistics.median(taken) for name, taken in recorder.seconds.items()}
                writer = stack.enter_context(closing(RecordingWriter(out, {**about, "costs": costs})))
            writer.write(text)
            yield text


def _texts(
    recorder: Recorder, asked: Asked, count: int, update: Callable[..., None], temperature: float, seed: int, batch: int
) -> Iterator[Text | None]:
    """One after the other, or a few batches at once, so that prompts of one length can be written together."""
    if batch == 1:
        for at, (prompt, ids) in enumerate(asked):
            update(description=prompt.task)
            yield recorder.record(ids, prompt.task, count, temperature=temperature, seed=seed + at)
            update(advance=1)
        return
    for start in range(0, len(asked), TOGETHER * batch):
        part = asked[start : start + TOGETHER * batch]
        update(description=f"writing {len(part)} texts")
        prompts, labels = [ids for _, ids in part], [prompt.task for prompt, _ in part]
        how: dict[str, Any] = {"temperature": temperature, "seed": seed + start, "batch": batch}
        for label, text in zip(labels, recorder.record_batch(prompts, labels, count, **how), strict=True):
            update(advance=1, description=label)
            yield text


def round_costs(recorder: Recorder) -> dict[str, Any]:
    """Median seconds of the target's forwards by width, and of model drafters' steps, trees and catching up."""
    target = recorder.decoder.target
    widths = {*range(1, recorder.longest + 2), *(1 + shape.nodes for _, shape in recorder.trees)}
    verify = _timed(target, sorted(widths))
    runners = {name: drafter.runner for name, drafter in recorder.drafters.items()}
    models = {name: _timed(runner, (1, 1 + CAUGHT_UP)) for name, runner in runners.items() if runner is not None}
    costs: dict[str, Any] = {
        "verify": [[width, seconds] for width, seconds in verify.items()],
        "step": {name: taken[1] for name, taken in models.items()},
        "lag": {name: max(0.0, taken[1 + CAUGHT_UP] - taken[1]) / CAUGHT_UP for name, taken in models.items()},
        "lag_fixed": {},
        "draft": {},
    }
    for name, drafter in recorder.drafters.items():
        if isinstance(drafter, Eagle):
            _time_head(name, drafter, recorder, costs)
    return costs


def _time_head(name: str, drafter: Eagle, recorder: Recorder, costs: dict[str, Any]) -> None:
    """A head's seconds a drafted token, a tree and an entry to catch up on; each draft reads one entry before."""
    target, longest = recorder.decoder.target, recorder.longest
    size = max(2, min(CONTEXT, target.limit - longest - 2))
    few, many = min(FEW, size - 2), min(CAUGHT_UP, size - 2)  # entries to catch up on
    text = [at % target.vocabulary for at in range(size)]
    drafter.warm([Arm(name, longest), Arm(name, 1), *(Arm(name, depth, shape) for depth, shape in recorder.trees)])
    target.begin()
    target.prefill(text)
    drafter.begin(text)

    def median(draft: Callable[[], Any], unread: int = 1) -> float:
        taken = []
        for _ in range(1 + REPEATS):  # the first captures, reads the whole text, and is left out
            drafter.head.crop(max(0, min(drafter.head.length, size - 1 - unread)))
            began = perf_counter()
            draft()
            taken.append(perf_counter() - began)
        return statistics.median(taken[1:])

    costs["step"][name] = median(lambda: drafter.propose(longest)) / longest
    at_once, *late = (median(lambda: drafter.propose(1), 1 + behind) for behind in (0, few, many))
    costs["lag"][name], costs["lag_fixed"][name] = straight_line((few, many), [taken - at_once for taken in late])
    for depth, shape in recorder.trees:
        taken = median(lambda depth=depth, shape=shape: drafter.propose_tree(depth, shape))  # type: ignore[misc]
        costs["draft"][str(Arm(name, depth, shape))] = taken


def straight_line(tokens: tuple[int, int], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds a token and fixed ones of catching up on so many tokens; neither is below 0."""
    (few, many), (less, more) = tokens, (max(0.0, taken) for taken in seconds)
    share = more / max(1, many)
    each = min(share, max(0.0, more - less) / (many - few)) if many > few else share
    return each, max(0.0, more - many * each)


def _timed(runner: Runner, widths: Sequence[int]) -> dict[int, float]:
    context = max(1, min(CONTEXT, runner.limit - max(widths)))
    taken = forward_seconds({"": runner}, widths, context=context, repeats=REPEATS)[""]
    return {width: statistics.median(seconds) for width, seconds in taken.items()}
