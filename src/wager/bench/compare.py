"""One request by wager, by wager without drafts and by transformers: are the texts the same, and how fast is each?"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wager.bench.garbage import loaded_objects_frozen
from wager.bench.methods import PLAIN as PLAIN  # the third way, for those who show a comparison
from wager.bench.methods import Target, transformers_generator
from wager.decoding.decoder import Decoder
from wager.decoding.generation import PLAIN as SOURCE
from wager.decoding.generation import Generation
from wager.decoding.identity import Difference, difference
from wager.policies import build

WAGER, OFF = "wager", "wager, off"
WHAT = {WAGER: "with speculation", OFF: "wager without speculation", PLAIN: "plain model.generate"}
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
        bug, why = "this is a bug, please report it", "at the edge of what top-k or top-p leave, where rounding decides"
        if gap is None:
            return f"{where}; {f'one of them is {why}' if tie else bug}"
        apart = f"they are {gap:.2g} standard deviations of the logits apart"
        return f"{where}; {apart}, {'a tie within float error' if tie else f'no tie: {bug}'}"


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
        return statistics.median(run.tokens_per_second for run in self.runs[name])

    def speedup(self, name: str, over: str = PLAIN) -> float | None:
        """How many times as fast; None where a text of one token leaves nothing to time."""
        return self.speed(name) / self.speed(over) if self.speed(over) > 0 else None

    def against(self) -> str:
        """How fast in a few words: relative to the same engine without speculation."""
        speedup, doubt = self.speedup(WAGER, OFF), " (not reliable)" if self.unsteady() else ""
        return "too short to compare" if speedup is None else f"{speedup:.2f} times as fast as off{doubt}"

    def outcome(self) -> str:
        """How fast in a sentence."""
        ours, theirs = self.speedup(WAGER, OFF), self.speedup(WAGER)
        if ours is None or theirs is None:
            return "the text is too short to compare speeds"
        doubt = " (not reliable: see below)" if self.unsteady() else ""
        base, also = "off, the same engine without speculation", f"{theirs:.2f} times as fast as transformers{doubt}"
        if ours < 1:
            return f"wager is slower than {base}: {ours:.2f} times its speed; it is {also}"
        return f"wager is {ours:.2f} times as fast as {base}, and {also}"

    def spread(self, name: str) -> float:
        """The fastest run of a way over its slowest; 1 where nothing could be timed."""
        speeds = [run.tokens_per_second for run in self.runs[name]]
        return max(speeds) / min(speeds) if min(speeds) > 0 else 1.0

    def unsteady(self) -> str:
        """A warning where runs of one way differ too much; empty where they agree."""
        worst = max(self.runs, key=self.spread)
        if self.spread(worst) <= STEADY:
            return ""
        found = f"runs of {worst} differ {self.spread(worst):.1f} times in speed"
        return f"{found}: something else was using this machine, so the speed-ups are not reliable"

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

    def json(self) -> dict[str, Any]:
        ways: dict[str, Any] = {}
        for name, runs in self.runs.items():
            speeds = {"tokens_per_second": self.speed(name), "spread": self.spread(name)}
            ways[name] = {"what": WHAT[name], **speeds, "runs": [run.summary() for run in runs]}
        gone = self.mismatch
        found = gone and {"token": gone.found.at, "run": gone.run, "gap": gone.found.gap, "tie": gone.found.tie}
        how = {"timing": TIMING, "repeats": len(self.runs[WAGER]), "reliable": not self.unsteady()}
        speedups = {"speedup": self.speedup(WAGER), "speedup_over_off": self.speedup(WAGER, OFF)}
        identical = {"identical": gone is None, "identical_to": PLAIN if self.greedy else OFF, "difference": found}
        return {**how, **speedups, **identical, "ways": ways}


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the settings of ``model.generate`` that every way to decode it gets."""

    decoder: Decoder
    ids: Sequence[int]
    settings: Mapping[str, Any]
    seed: int | None = None  # of sampled text

    def wager(self, **more: Any) -> Generation:
        """By the decoder as it is."""
        return self.decoder.generate(list(self.ids), **{**self.settings, "seed": self.seed, **more})

    def off(self) -> Generation:
        """By wager's forward, never drafting."""
        decoder = self.decoder
        drafters, policy = decoder.drafters, decoder.policy
        decoder.drafters, decoder.policy = {}, build("off", decoder.arms)
        try:
            return self.wager()
        finally:
            decoder.drafters, decoder.policy = drafters, policy

    def plain(self, tokens: int | None = None) -> Generation:
        """By transformers' own generate, timed as a Generation is."""
        if self.seed is not None:
            torch.manual_seed(self.seed)
        room = self.decoder.target.limit - len(self.ids)  # where wager stops, and transformers would go on
        count = min(tokens or self.settings["max_new_tokens"], room)
        target = Target(self.decoder.model, settings={**self.settings, "tokenizer": self.decoder.tokenizer})
        ids = torch.tensor([list(self.ids)], device=self.decoder.model.device)
        made = transformers_generator(PLAIN, target, max_new_tokens=count).run(ids, count)
        seconds = made.prefill_seconds, made.seconds - made.prefill_seconds
        return Generation("", made.tokens, [SOURCE] * len(made.tokens), len(self.ids), "", *seconds)

    def warm_up(self) -> None:
        """One untimed run of each way, from which nothing is learned."""
        most = self.settings["max_new_tokens"]
        tokens = most if self.decoder.model.device.type == "cuda" else min(WARM_TOKENS, most)
        with self.decoder.rehearsal():
            self.wager(max_new_tokens=tokens)
        self.plain(tokens)

    def compare(
        self,
        first: Generation | None,
        *,
        repeats: int,
        tell: Callable[[int, int, str], object] = lambda number, of, way: None,
    ) -> Comparison:
        """Run each way ``repeats`` times, in turn; ``first`` is wager's first run where that is to count. ``tell`` is
        told before each run which it is of how many, and the way."""
        runs: dict[str, list[Generation]] = {WAGER: [], OFF: [], PLAIN: []}
        with loaded_objects_frozen():
            for i in range(repeats):  # in turn: runs of one way are never neighbours, which one burst of load would hit
                if first is None or i > 0:  # forget what earlier runs taught, or drafts would come from the last answer
                    self.decoder.reset()
                    tell(3 * i + 1, 3 * repeats, WAGER)
                    first = self.wager()
                runs[WAGER].append(first)
                for place, way, run in ((2, OFF, self.off), (3, PLAIN, self.plain)):
                    tell(3 * i + place, 3 * repeats, way)
                    runs[way].append(run())
        return Comparison(runs, not self.settings["do_sample"], self._mismatch(runs))

    def _mismatch(self, runs: Mapping[str, list[Generation]]) -> Mismatch | None:
        """Where a run of wager's is not what it should be; one that is no tie before any that is."""
        # Greedy text should be transformers'; sampled text that of wager without drafts.
        reference = OFF if self.settings["do_sample"] else PLAIN
        theirs, tokenizer = runs[reference][0].tokens, self.decoder.tokenizer
        settings = {**self.settings, "tokenizer": tokenizer}
        parted = []
        for name, ours in sorted({(way, tuple(run.tokens)) for way in (WAGER, OFF) for run in runs[way]}):
            found = difference(self.decoder.model, self.ids, ours, theirs, seed=self.seed, **settings)
            if found is not None:
                said = [tokenizer.decode(list(text[found.at : found.at + 1])) for text in (ours, theirs)]
                parted.append(Mismatch(name, reference, said[0], said[1], found))
        return min(parted, key=lambda mismatch: mismatch.found.tie, default=None)
