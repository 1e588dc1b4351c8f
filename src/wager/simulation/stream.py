"""One text at a time: drafters with given acceptance, lengths with given costs, phases that change."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from wager.core import OFF, Arm, Context, PromptFeatures, Round, Signal
from wager.core.round import MOST_SCORED, Accepted
from wager.policies import Policy
from wager.policies.base import expected_tokens, require
from wager.simulation.base import Environment

_BLOCK = 512  # rounds drawn at a time


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter as the simulation knows it."""

    name: str
    acceptance: tuple[float, ...]  # probability that a token is accepted, one per phase
    step_seconds: float = 0.0  # to draft one token

    def __post_init__(self) -> None:
        likely, whose = all(0 <= p <= 1 for p in self.acceptance), f"(drafter {self.name!r})"
        require(likely, f"acceptance probabilities lie in [0, 1], not {self.acceptance} {whose}")
        finite = 0 <= self.step_seconds < math.inf
        require(finite, f"draft seconds are finite and at least 0, not {self.step_seconds} {whose}")


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Seconds of one verification by its width (tokens in the forward pass), straight lines between known widths."""

    points: tuple[tuple[int, float], ...] = ((1, 1.0),)  # (width, seconds), widths ascending

    def __post_init__(self) -> None:
        widths = [width for width, _ in self.points]
        ascending = bool(widths) and widths[0] >= 1 and widths == sorted(set(widths))
        if not ascending or not all(0 < seconds < math.inf for _, seconds in self.points):
            raise ValueError(f"a verify cost needs ascending widths from 1 and positive seconds, not {self.points}")

    def __call__(self, width: int) -> float:
        widths, seconds = zip(*self.points, strict=True)
        return float(np.interp(width, widths, seconds))


@dataclass(frozen=True, slots=True)
class Stream:
    """Truncated-geometric arms (BanditSpec eq. 4), with phases and with costs where wanted.

    A token of drafter i is accepted with probability alpha, itself drawn afresh for every position from a Beta
    distribution with the drafter's acceptance as mean (MetaSD, assumption 1); 1 - TV is that alpha. Where there are
    phases, each begins with a prompt, and the prompt's features tell which phase it is, with some noise. An accepted
    token has occurred in the text before four times in five, a bonus token once in three.

    Drafters are models: one that reads tokens it missed would have had each accepted with probability alpha. To read
    without drafting takes a forward of its own, as long as drafting one token, besides the lag.
    """

    drafters: tuple[Drafter, ...]
    lengths: tuple[int, ...]
    goal: int  # tokens to generate
    off: bool = False  # is plain decoding an arm
    verify: VerifyCost = VerifyCost()
    phase_tokens: int = 0  # tokens after which the next phase begins, round and round; 0: the first phase for good
    concentration: float = 2.0  # of the Beta distribution; the larger, the less alpha varies
    lag_seconds: float = 0.0  # to catch up on one token

    def __post_init__(self) -> None:
        phased = len({len(d.acceptance) for d in self.drafters}) == 1
        require(phased, "a stream needs at least one drafter, and every drafter one acceptance per phase")
        require(min(self.lengths, default=0) >= 1, f"draft lengths are at least 1, not {self.lengths}")
        require(self.goal >= 1, f"a stream has at least 1 token, not {self.goal}")
        require(0 < self.concentration < math.inf, f"concentration is a positive number, not {self.concentration}")
        require(self.phase_tokens >= 0, f"a phase has at least 0 tokens, not {self.phase_tokens}")
        require(0 <= self.lag_seconds < math.inf, f"lag seconds are finite and at least 0, not {self.lag_seconds}")

    @property
    def arms(self) -> tuple[Arm, ...]:
        drafted = tuple(Arm(d.name, length) for d in self.drafters for length in self.lengths)
        return (OFF, *drafted) if self.off else drafted

    def horizon(self, spec: str) -> int:
        return self.goal

    def start(self, seed: int, policy: Policy | None = None) -> "Text":
        return Text(self, seed, policy)

    def draft_seconds(self, arm: Arm) -> float:
        """Seconds a round of this arm drafts."""
        return arm.length * next((d.step_seconds for d in self.drafters if d.name == arm.drafter), 0.0)

    def goodput(self, arm: Arm, phase: int) -> float:
        """Expected tokens per second of an arm in a phase, lag aside."""
        acceptance = next((d.acceptance[phase] for d in self.drafters if d.name == arm.drafter), 0.0)
        return expected_tokens(acceptance, arm.length) / (self.draft_seconds(arm) + self.verify(arm.length + 1))


class Text(Environment):
    def __init__(self, stream: Stream, seed: int, policy: Policy | None = None) -> None:
        super().__init__(stream.arms, stream.goal)
        self.stream, self.needs = stream, policy.needs if policy is not None else frozenset()
        self._select = None
        if policy is not None and Signal.READ in self.needs and len(stream.drafters) >= policy.least_readers:
            self._select = policy.select_readers
        self._context = Context(self.arms)
        self._draft = {arm: stream.draft_seconds(arm) for arm in self.arms}
        self._verify = {arm: stream.verify(arm.length + 1) for arm in self.arms}
        phases = range(len(stream.drafters[0].acceptance))
        self._best = [max(self.arms, key=lambda arm: stream.goodput(arm, phase)) for phase in phases]
        self._draws = {
            (d.name, phase): _draws(acceptance, max(stream.lengths), stream.concentration, (seed, i, phase))
            for i, d in enumerate(stream.drafters)
            for phase, acceptance in enumerate(d.acceptance)
        }
        self._synced = {d.name: 0 for d in stream.drafters}  # drafter -> tokens it has processed
        self._missed = {d.name: 0 for d in stream.drafters}  # drafter -> the first token it neither read nor drafted
        self._hits = {
            (d.name, phase): _hits(acceptance, (seed, i, phase, 1))
            for i, d in enumerate(stream.drafters)
            for phase, acceptance in enumerate(d.acceptance)
        }
        self._prompts = np.random.default_rng([seed, len(stream.drafters), len(self._best)])
        self._prompted = -1  # phase, counted from the start, whose prompt has been shown

    @property
    def phase(self) -> int:
        """Which acceptances hold now."""
        every = self.stream.phase_tokens
        return self.tokens // every % len(self._best) if every else 0

    def context(self) -> Context:
        lag = {name: self.tokens - at for name, at in self._synced.items() if at < self.tokens}
        self._context = Context(self.arms, tokens=self.tokens, previous=self.previous, lag=lag, prompt=self._prompt())
        return self._context

    def _prompt(self) -> PromptFeatures | None:
        """Features of the prompt a new phase begins with."""
        every = self.stream.phase_tokens
        if Signal.PROMPT not in self.needs or not every or self.tokens // every == self._prompted:
            return None
        self._prompted = self.tokens // every
        kind = [float(phase == self.phase) for phase in range(len(self._best))]
        noise = self._prompts.normal(0.0, 0.02, len(kind))
        length, perplexity = int(self._prompts.integers(20, 200)), 5 + 10 * self._prompts.random()
        return PromptFeatures(length, perplexity, tuple((np.array(kind) + noise).tolist()))

    def play(self, arm: Arm) -> Round:
        accepted = lag = repeated = 0
        overlap: tuple[float, ...] = ()
        if arm.length:
            run, overlap, known = next(self._draws[arm.drafter, self.phase])
            accepted, overlap = min(run, arm.length), overlap[: arm.length]
            repeated, lag = known[accepted], self.tokens - self._synced[arm.drafter]
        draft, verify, lag_seconds = self._draft[arm], self._verify[arm], lag * self.stream.lag_seconds
        known_tokens = repeated if Signal.REPEATS in self.needs else None
        others: dict[str, Accepted] = {}
        if arm.length and self._select is not None and (scores := self._scores(arm.drafter, self.tokens)):
            others[arm.drafter] = scores
        readers = self._read(arm, self.tokens + accepted + 1, others)
        outcome = self.advance(
            Round(
                arm, arm.length, accepted, accepted + 1, draft_seconds=draft, verify_seconds=verify, lag=lag,
                lag_seconds=lag_seconds, overlap=overlap, repeated=known_tokens, others=others, read_seconds=readers,
            )
        )  # fmt: skip
        if arm.length:
            self._synced[arm.drafter] = self._missed[arm.drafter] = self.tokens
        return outcome

    def _read(self, arm: Arm, end: int, others: dict[str, Accepted]) -> dict[str, float]:
        """Let the drafters that the policy selects read up to this token; what it takes, and what it tells."""
        seconds: dict[str, float] = {}
        for name in self._select(self._context) if self._select is not None else ():
            if name != arm.drafter and self._synced[name] < end:
                step = next(d.step_seconds for d in self.stream.drafters if d.name == name)
                seconds[name] = step + (end - self._synced[name]) * self.stream.lag_seconds
                others[name] = self._scores(name, end)
                self._synced[name] = end
        return seconds

    def _scores(self, name: str, end: int) -> tuple[float, ...]:
        """Whether it would have had each of the tokens accepted that it missed up to this one."""
        missed, self._missed[name] = end - self._missed[name], end
        return tuple(islice(self._hits[name, self.phase], min(missed, MOST_SCORED)))

    def clairvoyant(self) -> Arm:
        return self._best[self.phase]


def _draws(
    mean: float, length: int, concentration: float, seed: Sequence[int]
) -> Iterator[tuple[int, tuple[float, ...], list[int]]]:
    """Outcomes of one drafter in one phase, drawn in blocks: its n-th draft fares alike under every policy."""
    # How many tokens in a row are accepted, 1 - TV at each position, and known tokens by the number accepted.
    rng, shape = np.random.default_rng(list(seed)), (_BLOCK, length)
    while True:
        alpha = np.full(shape, mean)
        if 0 < mean < 1:
            alpha = rng.beta(mean * concentration, (1 - mean) * concentration, shape)
        runs = np.cumprod(rng.random(shape) < alpha, axis=1).sum(axis=1)
        before = np.zeros((_BLOCK, length + 1), dtype=int)
        before[:, 1:] = np.cumsum(rng.random(shape) < 0.8, axis=1)
        known = before + (rng.random((_BLOCK, 1)) < 1 / 3)
        yield from zip(runs[::-1].tolist(), map(tuple, alpha[::-1].tolist()), known[::-1].tolist(), strict=True)


def _hits(mean: float, seed: Sequence[int]) -> Iterator[float]:
    """Whether one drafter in one phase predicts the tokens that it reads."""
    rng = np.random.default_rng(list(seed))
    while True:
        yield from (rng.random(_BLOCK) < mean).astype(float).tolist()
