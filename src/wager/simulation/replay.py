"""Replay: recorded texts generated again under any policy and any cost of a round, without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from wager.core import OFF, Arm, Calibration, Context, Round, Signal, require
from wager.core.recording import Text
from wager.core.round import MOST_SCORED, Accepted
from wager.policies import Policy, registry
from wager.policies.base import NEVER, PAPER, RESETS, resets
from wager.simulation.base import Environment
from wager.simulation.outcomes import RoundCost, drafted_tokens, merged_tokens, model_seconds, quickest, room_at

TRIAL_SEED = 1_000_003  # texts played before the measurement come in an order of their own
NOISE_CHUNK = 512  # rounds whose factors are drawn at once
NOISE = 0.05  # standard deviation of a round's seconds, as a share of them


@dataclass(frozen=True, slots=True)
class Replay:
    """Texts one after the other, shuffled by the seed; ``phases`` keeps them in the order given instead.

    ``reset`` says which policies are started anew with every text, one of ``wager.policies.base.RESETS``: as their
    papers have it, all, or none. As papers have it, one that is to be measured after some texts first plays ``trials``,
    which count for nothing; those are texts of the replay itself where none are given.
    """

    texts: tuple[Text, ...]
    costs: RoundCost
    lengths: tuple[int, ...]
    noise: float = NOISE
    phases: bool = False
    reset: str = PAPER
    trials: tuple[Text, ...] = ()
    calibrated: bool = False  # whether policies that ask for it are told the seconds of rounds beforehand
    merges: bool = True  # whether proposals may be merged into other drafts

    def __post_init__(self) -> None:
        require(self.reset in RESETS, f"policies are reset by {', '.join(RESETS)}, not {self.reset!r}")
        require(bool(self.texts), "a replay needs at least one text")
        require(min(self.lengths, default=0) >= 1, f"draft lengths are at least 1, not {self.lengths}")
        require(0 <= self.noise < 1, f"noise lies between 0 and 1, not {self.noise}")
        drafts = [[f"{name} {' '.join(track.trees)}".strip() for name, track in t.tracks.items()] for t in self.texts]
        names = {" and ".join(sorted(each)) or "none" for each in drafts}
        require(len(names) == 1, f"the recordings have different drafters: {', '.join(sorted(names))}")

    @property
    def drafters(self) -> tuple[str, ...]:
        return tuple(self.texts[0].tracks)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every drafter with every length, and the trees that are recorded of it."""
        tracks, lengths = self.texts[0].tracks.items(), sorted(set(self.lengths))
        chains = [Arm(name, length) for name, _ in tracks for length in lengths]
        return (OFF, *chains, *(Arm.parse(f"{name}:{shape}") for name, track in tracks for shape in track.trees))

    @property
    def most_drafted(self) -> int:
        """Tokens of the largest draft with the longest proposal merged into it."""
        merged = max(self.lengths) if any(track.cheap for track in self.texts[0].tracks.values()) else 0
        return max(arm.budget for arm in self.arms) + (merged if self.merges else 0)

    @property
    def goal(self) -> int:
        """Tokens of all texts that rounds bring."""
        return sum(text.tokens - 1 for text in self.texts)

    @property
    def calibration(self) -> Calibration:
        """What a calibration would find, without noise."""
        costs, models = self.costs, {n for text in self.texts for n, track in text.tracks.items() if not track.cheap}
        verify = {drafted + 1: costs.verify(drafted + 1) for drafted in range(1 + self.most_drafted)}
        steps = {arm: arm.length * costs.step.get(arm.drafter, 0.0) for arm in self.arms if arm.drafter in models}
        draft = {arm: costs.draft.get(str(arm), seconds) for arm, seconds in steps.items()}
        catch_up = {name: {tokens: costs.catch_up(name, tokens) for tokens in (16, 256)} for name in models}
        return Calibration(verify, draft, catch_up)

    def horizon(self, spec: str) -> int:
        return max(1, self.goal // len(self.texts)) if registry.resets(spec, self.reset) else self.goal

    def start(self, seed: int, policy: Policy | None = None) -> "Replayed":
        if policy is not None and policy.trials and self.reset == PAPER:
            texts = tuple(islice(cycle(self.trials or self.texts), policy.trials))
            before = Replayed(replace(self, texts=texts, reset=NEVER), seed + TRIAL_SEED, policy)
            while not before.done:
                policy.observe(before.play(policy.choose(before.context())))
        return Replayed(self, seed, policy)


class Replayed(Environment):
    """A replay under way; contexts and rounds look to a policy as the engine's do."""

    def __init__(self, replay: Replay, seed: int, policy: Policy | None = None) -> None:
        super().__init__(replay.arms, replay.goal)
        self.replay = replay
        self._anew = policy if policy is not None and resets(policy, replay.reset) else None  # with every text
        hinting = policy is not None and bool(policy.needs & {Signal.HINTS, Signal.OTHERS})
        self._select = policy.select_drafters if policy is not None and hinting else None
        self._repeats = policy is not None and Signal.REPEATS in policy.needs
        self._readers = policy.select_readers if policy is not None and Signal.READ in policy.needs else None
        models = {name for text in replay.texts for name, track in text.tracks.items() if not track.cheap}
        if policy is not None and len(models) < policy.least_readers:
            self._readers = None
        self.by_label: dict[str, list[float]] = {}  # tokens, rounds, seconds
        self._longest = max(arm.length for arm in replay.arms)
        rng = np.random.default_rng([seed, 0])
        order = np.arange(len(replay.texts)) if replay.phases else rng.permutation(len(replay.texts))
        self._queue = [replay.texts[i] for i in reversed(order.tolist())]
        self._latency_noise = _latency_noise(replay.noise, seed)
        self._verify = [replay.costs.verify(n + 1) for n in range(1 + replay.most_drafted)]
        self._knows = False  # whether it is the clairvoyant who plays
        self._calibrated = policy if replay.calibrated and policy and Signal.COSTS in policy.needs else None
        if self._calibrated:
            self._calibrated.calibrate(replay.calibration)
        self._next()

    @property
    def done(self) -> bool:
        return self._text is None

    @property
    def label(self) -> str:
        """Of the text that is being generated."""
        return self._text.label if self._text is not None else ""

    def _next(self) -> None:
        self._text = self._queue.pop() if self._queue else None
        self.previous = None
        self._begins = True  # no context of this text was asked for yet
        self._plan: list[Arm] = []
        if self._text is not None:
            self._at = 0  # entries of the tracks that lie behind
            self._room = room_at(self._text, 0, self._longest)
            self._sum = self.by_label.setdefault(self._text.label, [0.0, 0.0, 0.0])
            tracks, propose = self._text.tracks, self.replay.costs.propose
            self._cheap = {name: propose.get(name, 0.0) for name, track in tracks.items() if track.cheap}
            self._proposal_seconds: dict[str, float] = {}  # by drafter that has proposed before the choice
            pairs = self._text.agreement.items()
            self._agreement = [(one, other, common) for one, own in pairs for other, common in own.items()]
            self._newest = 1  # tokens of the last round, which a head reads for nothing
            # tokens of the text that a model has read; those of the prompt lie before 0
            self._read = {name: -self._text.prompt for name, track in tracks.items() if not track.cheap}
            self._missed = dict.fromkeys(self._read, 0)  # the first entry whose token it neither read nor drafted for

    def context(self) -> Context:
        assert self._text is not None, "the replay is over"
        if self._begins and self._anew is not None:  # not earlier: the last text's last round has yet to be observed
            self._anew.forget()
            if self._calibrated:
                self._calibrated.calibrate(self.replay.calibration)
        self._begins = False
        at, room, tracks = self._at, self._room, self._text.tracks
        self._proposal_seconds = {}
        lag = {name: self._lag(name) for name in self._read}
        context = Context(self.arms, 1, at + 1, self.previous, lag, remaining=self._text.limit - at - 1)
        self._context = context
        if self._select is None or not room:
            return context
        names = self._select(context)
        proposed = self._proposal_seconds = {name: s for name, s in self._cheap.items() if name in names}
        hints = {name: tracks[name].hint(at, room) for name in proposed}
        agreed: dict[str, dict[str, int]] = {name: {} for name in proposed}
        for one, other, common in self._agreement:  # leading tokens that both propose
            if one in agreed and other in agreed:
                n = common[at]
                agreed[one][other] = agreed[other][one] = n if n < room else room
        merges = self.replay.merges
        self._context = replace(context, hints=hints, agreement=agreed, proposal_seconds=proposed, merges=merges)
        return self._context

    def play(self, arm: Arm) -> Round:
        text, at, room, costs = self._text, self._at, self._room, self.replay.costs
        assert text is not None, "the replay is over"
        drafted = accepted = own = lag = 0
        cut = -1
        lag_seconds = 0.0
        overlap: tuple[float, ...] = ()
        tracks, proposed = text.tracks, self._proposal_seconds
        draft_seconds = sum(proposed.values())
        if arm.length and room:
            name = arm.drafter
            track = tracks[name]
            drafted, own = drafted_tokens(track, arm, at, room)
            accepted = own
            overlap = tuple(track.overlap[at : at + (min(arm.length, room) if arm.tree else drafted)])
            if track.cheap:
                draft_seconds += 0.0 if name in proposed else self._cheap[name]
            elif drafted:
                lag = self._lag(name)
                draft_seconds += model_seconds(costs, arm, drafted, room)
                if not self._knows:
                    lag_seconds = costs.catch_up(name, lag)
                # Of its own draft a model has read all but the last token, a head none.
                self._read[name] = at if track.head else at + 1 + min(own, drafted - 1)
            if arm.merged is not None:
                cut = int(own < (min(arm.length, room) if arm.tree else drafted))
                more, right = merged_tokens(text, arm, at, room)
                drafted, accepted = drafted + more, max(own, right)
        emitted = min(accepted + 1, text.tokens - 1 - at)
        noise = next(self._latency_noise)
        others: dict[str, Accepted] = {
            name: min(tracks[name].agreed[at], emitted, room) for name in proposed if name != arm.drafter
        }
        read_seconds = {name: s * noise for name, s in self._follow(arm, drafted, at + emitted, others).items()}
        outcome = self.advance(
            Round(
                arm, drafted, accepted, emitted, draft_seconds=draft_seconds * noise, lag=lag, overlap=overlap,
                verify_seconds=self._verify[drafted] * noise, lag_seconds=lag_seconds * noise, others=others,
                read_seconds=read_seconds, repeated=text.repeated(at, emitted) if self._repeats else None,
                rejected=cut, unmerged=own if arm.merged is not None else -1,
            )
        )  # fmt: skip
        for i, more in enumerate((emitted, 1, outcome.seconds)):
            self._sum[i] += more
        self._at, self._newest = self._at + emitted, emitted
        if self._at >= text.tokens - 1:
            self._next()
        else:
            self._room = room_at(text, self._at, self._longest)
        return outcome

    def _follow(self, arm: Arm, drafted: int, end: int, others: dict[str, Accepted]) -> dict[str, float]:
        """What models that read tokens they had missed would have had accepted there, as the engine tells: the one that
        drafts, and after the round, up to entry ``end``, those that the policy selects; the seconds of these."""
        if self._readers is None or self._text is None:
            return {}
        seconds: dict[str, float] = {}
        if drafted and arm.drafter in self._read:
            if scores := self._scores(arm.drafter, self._at):
                others[arm.drafter] = scores
            self._missed[arm.drafter] = end
        costs = self.replay.costs
        for name in self._readers(self._context) if end < self._text.tokens - 1 else ():
            if name != arm.drafter and name in self._read and self._read[name] < end:
                tokens = end - self._read[name]
                more = costs.lag_fixed.get(name, 0.0) if tokens > 1 else 0.0
                seconds[name] = costs.step.get(name, 0.0) + more + (tokens - 1) * costs.lag.get(name, 0.0)
                self._read[name] = end
                if scores := self._scores(name, end):
                    others[name] = scores
        return seconds

    def _scores(self, name: str, end: int) -> tuple[float, ...]:
        """Whether a model's first token is right at each entry that it missed before this one."""
        assert self._text is not None
        track, first = self._text.tracks[name], max(self._missed[name], end - MOST_SCORED)
        self._missed[name] = end
        return tuple(float(track.agreed[at] > 0) for at in range(first, end) if track.size[at])

    def _lag(self, name: str) -> int:
        """Tokens a model has to catch up on; a head reads those of the last round along with its draft."""
        assert self._text is not None
        behind: int = self._at - self._read[name]
        return max(0, behind - self._newest) if self._text.tracks[name].head else behind

    def clairvoyant(self) -> Arm:
        """The arm of the quickest way to the end of the text, for one who knows it."""
        assert self._text is not None
        if not self._plan:
            self._plan = quickest(self._text, self.arms, self.replay.costs, self._longest)[0]
        self._knows = True
        return self._plan[self._at]

    def facts(self) -> dict[str, float]:
        """Tokens, rounds and seconds of every label."""
        found: dict[str, float] = {}
        for label, sums in self.by_label.items():
            found |= {f"{kind} {label}": x for kind, x in zip(("tokens", "rounds", "seconds"), sums, strict=True)}
        return found


def joined(texts: Sequence[Text], labels: Sequence[str], count: int) -> tuple[Text, ...]:
    """Texts in phases: ``count`` of the first label, as many of the next, and so on; each text is used in its turn."""
    require(count >= 1, f"a phase has at least 1 text, not {count}")
    known = sorted({text.label for text in texts})
    for label in labels:
        require(label in known, f"no recorded text is labelled {label!r}; there are {', '.join(known)}")
    turns = {label: cycle([text for text in texts if text.label == label]) for label in labels}
    return tuple(next(turns[label]) for label in labels for _ in range(count))


def _latency_noise(noise: float, seed: int) -> Iterator[float]:
    """Factors on a round's seconds: the n-th round fares alike under every policy."""
    rng = np.random.default_rng([seed, 1])
    while True:
        yield from noise_chunk(rng, noise).tolist()


def noise_chunk(rng: np.random.Generator, noise: float) -> np.ndarray:
    """Factors of the next so many rounds."""
    factors: np.ndarray = np.exp(rng.normal(0.0, noise, NOISE_CHUNK))[::-1]
    return factors
