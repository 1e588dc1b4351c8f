"""Texts of a model recorded for replay: every drafter's acceptance at every position, and what rounds cost."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from wager.bench.engine import forward_seconds
from wager.bench.workloads import Prompt
from wager.core.recording import RecordingWriter, Text
from wager.decoding.recorder import Recorder
from wager.models.runner import Runner

CONTEXT, REPEATS = 300, 10  # tokens in the cache and repetitions when forwards are timed
Asked = Sequence[tuple[Prompt, list[int]]]  # prompts and their tokens
CAUGHT_UP = 64  # tokens a drafter reads at once when its catching up is timed


def record(
    recorder: Recorder, asked: Asked, count: int, about: dict[str, Any], out: Path, update: Callable[..., None]
) -> Iterator[Text]:
    """Texts of ``count`` tokens, each written to the recording before it is handed on; the file is made with the first.

    ``update`` is a bar's: it gets each task as ``description``, and ``advance`` after every text.
    """
    costs = round_costs(recorder)
    writer: RecordingWriter | None = None
    with ExitStack() as stack:
        for prompt, ids in asked:
            update(description=prompt.task)
            text = recorder.record(ids, prompt.task, count)
            update(advance=1)
            if text is None:
                continue
            if writer is None:
                costs["propose"] = {name: statistics.median(taken) for name, taken in recorder.seconds.items()}
                writer = stack.enter_context(closing(RecordingWriter(out, {**about, "costs": costs})))
            writer.write(text)
            yield text


def round_costs(recorder: Recorder) -> dict[str, Any]:
    """Median seconds of the target's forwards by width, and of a draft model's steps and catching up."""
    verify = _timed(recorder.decoder.target, range(1, recorder.longest + 2))
    runners = {name: drafter.runner for name, drafter in recorder.drafters.items()}
    models = {name: _timed(runner, (1, 1 + CAUGHT_UP)) for name, runner in runners.items() if runner is not None}
    return {
        "verify": [[width, seconds] for width, seconds in verify.items()],
        "step": {name: taken[1] for name, taken in models.items()},
        "lag": {name: max(0.0, taken[1 + CAUGHT_UP] - taken[1]) / CAUGHT_UP for name, taken in models.items()},
    }


def _timed(runner: Runner, widths: Sequence[int]) -> dict[int, float]:
    context = max(1, min(CONTEXT, runner.limit - max(widths)))
    taken = forward_seconds({"": runner}, widths, context=context, repeats=REPEATS)[""]
    return {width: statistics.median(seconds) for width, seconds in taken.items()}
