"""`--compare`: the same request by plain decoding, timed alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.table import Table

from wager.cli.session import Session

if TYPE_CHECKING:
    import torch

    from wager.decoding.generation import Generation

WAGER, OFF, PLAIN = "wager", "wager, off", "transformers"
WHAT = {
    WAGER: "as asked for",
    OFF: "wager's forward, never drafting",
    PLAIN: "model.generate, plain decoding",
}
TIMING = "decoding only, the prompt's own forward left out of each"
STEADY = 1.3  # runs of one way may differ by this factor before their speeds are no longer to be relied on
WARM_TOKENS = 16  # on a CPU; a GPU warms up with the whole text, so that every graph is captured


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts part that should be one."""

    at: int  # token of the answer, from 0
    run: str  # who parts
    due: str  # from whom
    ours: str
    theirs: str
    gap: float | None  # between what the two tokens are chosen by; None where one text simply ends, or one was cut off
    tie: bool  # the gap is float error, or the cut was

    def sentence(self) -> str:
        """What is to be said of it."""
        where = f"texts differ at token {self.at + 1}: {self.run} has {self.ours!r}, {self.due} {self.theirs!r}"
        if self.gap is None and self.tie:
            return f"{where}; one of them lies at the edge of what is left to be drawn, where rounding decides"
        if self.gap is None:
            return f"{where}; this is a bug, please report it"
        if self.tie:
            return f"{where}; they are {self.gap:.2g} apart, a tie within float error"
        return f"{where}; they are {self.gap:.2g} apart, no tie: this is a bug, please report it"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of one request by each way to decode it."""

    runs: dict[str, list[Generation]]
    greedy: bool
    difference: Difference | None

    def speed(self, name: str) -> float:
        """Median tokens per second."""
        return statistics.median(run.tokens_per_second for run in self.runs[name])

    def speedup(self, name: str, over: str = PLAIN) -> float | None:
        """How many times faster; None where a text of one token leaves nothing to time."""
        return self.speed(name) / self.speed(over) if self.speed(over) > 0 else None

    def against(self) -> str:
        """The speed-up in words."""
        speedup = self.speedup(WAGER)
        if speedup is None:
            return "too short to compare"
        return f"{speedup:.2f}x transformers" + (", not reliable" if self.unsteady() else "")

    def spread(self, name: str) -> float:
        """The fastest run of a way over its slowest; 1 where nothing could be timed."""
        speeds = [run.tokens_per_second for run in self.runs[name]]
        return max(speeds) / min(speeds) if min(speeds) > 0 else 1.0

    def unsteady(self) -> str:
        """A warning where runs of one way differ too much; empty where they agree."""
        worst = max(self.runs, key=self.spread)
        if self.spread(worst) <= STEADY:
            return ""
        return (
            f"runs of {worst} differ {self.spread(worst):.1f} times in speed: something else uses this machine, "
            "so the speed-ups are not reliable"
        )

    def verdict(self) -> str:
        """Whether the texts are the same."""
        if self.difference is not None:
            return self.difference.sentence()
        runs = [run for name in self.runs if self.greedy or name != PLAIN for run in self.runs[name]]
        tokens = len(runs[0].tokens)
        count = f"{tokens:,} token{'s' * (tokens != 1)} in each of {len(runs)} runs"
        if self.greedy:
            return f"texts are identical: {count}"
        return f"the seed's text is the same with drafts and without: {count}; transformers draws another from it"

    def note(self) -> str:
        """How the speeds were taken."""
        runs = len(self.runs[WAGER])
        return f"median of {runs} interleaved run{'s' * (runs != 1)} after a warm-up; {TIMING}"

    def table(self) -> Table:
        """All speeds: transformers', that of wager's forward alone, and that with drafts."""
        table = Table(box=None, pad_edge=False)
        for column in ("", "tokens/s", "MAT", "speed-up", ""):
            table.add_column(column, justify="left" if not column else "right", no_wrap=True)
        for name in (PLAIN, OFF, WAGER):
            speedup = self.speedup(name)
            cells = f"{self.speed(name):.1f}", f"{self.runs[name][0].mat:.2f}", f"{speedup:.2f}x" if speedup else "-"
            table.add_row(name, *cells, f"[dim]{WHAT[name]}", style="bold" if name == WAGER else None)
        return table

    def json(self) -> dict[str, Any]:
        """The comparison as JSON."""
        gone = self.difference
        return {
            "timing": TIMING,
            "repeats": len(self.runs[WAGER]),
            "reliable": not self.unsteady(),
            "speedup": self.speedup(WAGER),
            "speedup_over_off": self.speedup(WAGER, OFF),
            "identical": gone is None,
            "identical_to": PLAIN if self.greedy else OFF,
            "difference": None
            if gone is None
            else {"token": gone.at, "run": gone.run, "gap": gone.gap, "tie": gone.tie},
            "ways": {
                name: {
                    "what": WHAT[name],
                    "tokens_per_second": self.speed(name),
                    "spread": self.spread(name),
                    "runs": [run.summary() for run in runs],
                }
                for name, runs in self.runs.items()
            },
        }


def warm_up(session: Session, ids: Sequence[int]) -> None:
    """One untimed run of each way, and everything learned in it forgotten."""
    tokens = session.options.max_tokens if session.decoder.model.device.type == "cuda" else WARM_TOKENS
    tokens = min(tokens, session.options.max_tokens)
    session.play(ids, max_new_tokens=tokens)
    plain(session, ids, None, tokens)
    session.afresh()


def compare(
    session: Session, ids: Sequence[int], first: Generation | None, *, repeats: int, seed: int | None
) -> Comparison:
    """Run each way ``repeats`` times, in turn; ``first`` is wager's first run where that is to count."""
    ways: dict[str, Callable[[], Generation]] = {
        WAGER: lambda: _wager(session, ids, seed),
        OFF: lambda: _off(session, ids, seed),
        PLAIN: lambda: plain(session, ids, seed),
    }
    runs: dict[str, list[Generation]] = {name: [] for name in ways}
    for i in range(repeats):
        for name in ways:  # in turn: the runs of one way are never neighbours, which one burst of load would hit
            runs[name].append(first if first is not None and name == WAGER and i == 0 else ways[name]())
    greedy = not session.options.sample
    return Comparison(runs, greedy, _difference(session, ids, runs, seed))


def _wager(session: Session, ids: Sequence[int], seed: int | None) -> Generation:
    session.afresh()
    return session.play(ids, seed=seed)


def _off(session: Session, ids: Sequence[int], seed: int | None) -> Generation:
    from wager.policies import build

    decoder = session.decoder
    drafters, policy = decoder.drafters, decoder.policy
    decoder.drafters, decoder.policy = {}, build("off", decoder.arms)
    try:
        return session.play(ids, seed=seed)
    finally:
        decoder.drafters, decoder.policy = drafters, policy


class _Clock:
    """A streamer that looks at the clock: first at the prompt, then at every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        self.times.append(perf_counter())


def plain(session: Session, ids: Sequence[int], seed: int | None, tokens: int | None = None) -> Generation:
    """Plain decoding by transformers' own generate, timed as a Generation is."""
    import torch

    from wager.decoding.generation import PLAIN as SOURCE
    from wager.decoding.generation import Generation

    if seed is not None:
        torch.manual_seed(seed)
    room = session.limit - len(ids)  # where wager stops, and transformers would go on
    settings = session.options.settings()
    settings["max_new_tokens"] = min(tokens or settings["max_new_tokens"], room)
    clock, prompt = _Clock(), _tensor(session, ids)
    began = perf_counter()
    made = _generate(session, prompt, streamer=clock, **settings)
    prefilled = clock.times[1]  # the first was the prompt
    answer: list[int] = made[0, len(ids) :].tolist()
    sources = [SOURCE] * len(answer)
    return Generation("", answer, sources, len(ids), "", prefilled - began, clock.times[-1] - prefilled)


def _tensor(session: Session, ids: Sequence[int]) -> torch.Tensor:
    import torch

    return torch.tensor([list(ids)], device=session.decoder.model.device)


def _generate(session: Session, prompt: torch.Tensor, **settings: Any) -> Any:
    import torch

    return session.decoder.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), tokenizer=session.tokenizer, **settings
    )


def _difference(
    session: Session, ids: Sequence[int], runs: dict[str, list[Generation]], seed: int | None
) -> Difference | None:
    """Where a run of wager's is not what it should be; one that is no tie before any that is.

    Greedy text should be transformers'; sampled text that of wager without drafts.
    """
    due = OFF if session.options.sample else PLAIN
    theirs = runs[due][0].tokens
    texts = {(name, tuple(run.tokens)) for name in (WAGER, OFF) for run in runs[name] if run.tokens != theirs}
    found = [_parting(session, ids, name, list(tokens), due, theirs, seed) for name, tokens in sorted(texts)]
    return min(found, key=lambda difference: difference.tie, default=None)


def _parting(
    session: Session, ids: Sequence[int], name: str, ours: list[int], due: str, theirs: list[int], seed: int | None
) -> Difference:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    said = [session.tokenizer.decode(tokens[at : at + 1]) for tokens in (ours, theirs)]
    if at >= min(len(ours), len(theirs)):
        return Difference(at, name, due, said[0], said[1], None, False)
    from wager.decoding.identity import FLOAT_ERROR
    from wager.decoding.sampler import GumbelSampler

    settings = {
        **session.options.settings(),
        "max_new_tokens": 1,
        "output_scores": True,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    made = _generate(session, _tensor(session, [*ids, *theirs[:at]]), **settings)
    scores, spread = made.scores[0][0].float(), float(made.logits[0][0].float().std())
    if session.options.sample:
        spread /= session.options.temperature
        scores = scores + GumbelSampler(len(scores), scores.device, seed).only(at)
    gap = float((scores[ours[at]] - scores[theirs[at]]).abs())
    if session.options.sample and gap == inf:
        return Difference(at, name, due, said[0], said[1], None, True)
    error = FLOAT_ERROR.get(session.decoder.model.dtype, 1e-4) * spread
    return Difference(at, name, due, said[0], said[1], gap, gap <= error)
