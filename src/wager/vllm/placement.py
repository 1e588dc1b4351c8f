"""Where matching runs: on a GPU inside vLLM's V2 model runner, elsewhere in the proposer hook on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wager.vllm.settings import MATCHING, Settings, engine_kind, parse_drafter


def in_speculator(drafters: Sequence[str], *, on_cpu: bool, budget: int = 0) -> bool:
    """Whether these drafters, as written, match in the model runner, where asynchronous scheduling and graphs stay.

    It drafts one length for all requests there: a token budget needs the proposer hook.
    """
    names = [parse_drafter(spec)[0] for spec in drafters]
    return not on_cpu and not budget and not {*MATCHING}.isdisjoint(names)


def place(settings: Settings, *, on_cpu: bool, rows: int | None = None) -> Settings:
    """The settings with ``speculator`` as it must be for this platform; rows: requests in a step at most, if given.

    Every length needs a batch size of its own in vLLM's table of lengths: with fewer rows than that matching stays in
    the proposer hook.

    Raises ValueError with one sentence where a model is to have a matching drafter beside it on a CPU.
    """
    matching = [name for name in settings.names if name in MATCHING]
    model = next(filter(engine_kind, settings.names), "")
    if model and matching and on_cpu:
        raise ValueError(
            f"on a CPU vLLM runs {model!r} alone; leave out {', '.join(matching)}, which can stand beside it on a GPU"
        )
    fits = bool(model) or rows is None or rows > settings.max_length
    able = in_speculator(settings.drafters, on_cpu=on_cpu, budget=settings.budget)
    return replace(settings, speculator=able and fits)
