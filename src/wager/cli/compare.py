"""`--compare`: the same request by plain decoding, timed alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.table import Table

from wager.cli.session import Session

if TYPE_CHECKING:
    from wager.decoding.generation import Generation
    from wager.decoding.identity import Difference

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
class Mismatch:
    """A run whose text is not that of the run it should equal."""

    run: str
    reference: str
    ours: str  # the first token that differs
    theirs: str
    found: Difference

    def sentence(self) -> str:
        at, gap, tie = self.found.at, self.found.gap, self.found.tie
        where = f"texts differ at token {at + 1}: {self.run} has {self.ours!r}, {self.reference} {self.theirs!r}"
        if gap is None and tie:
            return f"{where}; one of them is at the edge of what top-k or top-p leave, where rounding decides"
        if gap is None:
            return f"{where}; this is a bug, please report it"
        apart = f"{where}; they are {gap:.2g} standard deviations of the logits apart"
        return f"{apart}, a tie within float error" if tie else f"{apart}, no tie: this is a bug, please report it"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of one request by each way to decode it."""

    runs: dict[str, list[Generation]]
    greedy: bool
    mismatch: Mismatch | None

    @property
    def failed(self) -> bool:
        """Whether a text differs, and not at a tie."""
        return self.mismatch is not None and not self.mismatch.found.tie

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
        if self.mismatch is not None:
            return self.mismatch.sentence()
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
        ways = {
            name: {
                "what": WHAT[name],
                "tokens_per_second": self.speed(name),
                "spread": self.spread(name),
                "runs": [run.summary() for run in runs],
            }
            for name, runs in self.runs.items()
        }
        gone = self.mismatch
        found = gone and {"token": gone.found.at, "run": gone.run, "gap": gone.found.gap, "tie": gone.found.tie}
        return {
            "timing": TIMING,
            "repeats": len(self.runs[WAGER]),
            "reliable": not self.unsteady(),
            "speedup": self.speedup(WAGER),
            "speedup_over_off": self.speedup(WAGER, OFF),
            "identical": gone is None,
            "identical_to": PLAIN if self.greedy else OFF,
            "difference": found,
            "ways": ways,
        }


def warm_up(session: Session, ids: Sequence[int]) -> None:
    """One untimed run of each way, and everything learned in it forgotten."""
    tokens = session.options.max_tokens if session.decoder.model.device.type == "cuda" else WARM_TOKENS
    tokens = min(tokens, session.options.max_tokens)
    session.generate(ids, max_new_tokens=tokens)
    plain(session, ids, None, tokens)
    session.afresh()


def compare(
    session: Session, ids: Sequence[int], first: Generation | None, *, repeats: int, seed: int | None
) -> Comparison:
    """Run each way ``repeats`` times, in turn; ``first`` is wager's first run where that is to count."""
    runs: dict[str, list[Generation]] = {WAGER: [], OFF: [], PLAIN: []}
    for i in range(repeats):  # in turn: the runs of one way are never neighbours, which one burst of load would hit
        runs[WAGER].append(first if first is not None and i == 0 else _wager(session, ids, seed))
        runs[OFF].append(_off(session, ids, seed))
        runs[PLAIN].append(plain(session, ids, seed))
    return Comparison(runs, not session.options.sample, _mismatch(session, ids, runs, seed))


def _wager(session: Session, ids: Sequence[int], seed: int | None) -> Generation:
    session.afresh()
    return session.generate(ids, seed=seed)


def _off(session: Session, ids: Sequence[int], seed: int | None) -> Generation:
    from wager.policies import build

    decoder = session.decoder
    drafters, policy = decoder.drafters, decoder.policy
    decoder.drafters, decoder.policy = {}, build("off", decoder.arms)
    try:
        return session.generate(ids, seed=seed)
    finally:
        decoder.drafters, decoder.policy = drafters, policy


class _Clock:
    """A streamer that notes the time: first at the prompt, then at every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any = None) -> None:
        self.times.append(perf_counter())

    end = put


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
    model, clock = session.decoder.model, _Clock()
    prompt = torch.tensor([list(ids)], device=model.device)
    mask = torch.ones_like(prompt)
    began = perf_counter()
    made = model.generate(prompt, attention_mask=mask, tokenizer=session.tokenizer, streamer=clock, **settings)
    prefilled = clock.times[1]  # the first was the prompt
    answer: list[int] = made[0, len(ids) :].tolist()
    sources = [SOURCE] * len(answer)
    return Generation("", answer, sources, len(ids), "", prefilled - began, clock.times[-1] - prefilled)


def _mismatch(
    session: Session, ids: Sequence[int], runs: dict[str, list[Generation]], seed: int | None
) -> Mismatch | None:
    """Where a run of wager's is not what it should be; one that is no tie before any that is.

    Greedy text should be transformers'; sampled text that of wager without drafts.
    """
    from wager.decoding.identity import difference

    reference = OFF if session.options.sample else PLAIN
    theirs = runs[reference][0].tokens
    settings = {**session.options.settings(), "tokenizer": session.tokenizer}
    parted = []
    for name, tokens in sorted({(way, tuple(run.tokens)) for way in (WAGER, OFF) for run in runs[way]}):
        found = difference(session.decoder.model, ids, tokens, theirs, seed=seed, **settings)
        if found is not None:
            said = [session.tokenizer.decode(list(text[found.at : found.at + 1])) for text in (tokens, theirs)]
            parted.append(Mismatch(name, reference, said[0], said[1], found))
    return min(parted, key=lambda mismatch: mismatch.found.tie, default=None)
