"""A quick way through recorded texts for policies that look at little, and the seconds of it under several costs.

Most policies of the papers look at tokens and overlaps alone, so what a round takes does not change what they choose:
their rounds are looked up instead of made (the reference is ``wager.simulation.replay``), and priced afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from wager.core import Arm, Context, Round, Signal
from wager.core.recording import Text, Track
from wager.decoding.features import Prompts
from wager.policies.banditspec import EXP3Spec, UCBSpec
from wager.policies.base import Policy
from wager.policies.halving import Halving
from wager.policies.metasd import MetaEXP3, MetaUCB
from wager.policies.onthefly import FSM, Analytical, CachedFSM, QLearning
from wager.policies.plain import Fixed, Random
from wager.policies.router import PromptRouter
from wager.simulation import RoundCost
from wager.simulation.outcomes import drafted_tokens, model_seconds, room_at
from wager.simulation.replay import NOISE_CHUNK, noise_chunk

# Choose from the available arms, and from what rounds accepted, overlapped and drew; never from lag or seconds.
_COUNT = (EXP3Spec, FSM, CachedFSM, Fixed, Halving, MetaEXP3, MetaUCB, QLearning, Random, UCBSpec)
# Also from the seconds of drafting and of verifying, the last from the prompt, too; never from lag.
_TIME = (Analytical, PromptRouter)
NO_NOISE = np.ones(0)
_set = object.__setattr__


def counts_only(policy: Policy) -> bool:
    """Whether a policy chooses alike whatever rounds take."""
    told = policy.parameters
    return type(policy) in _COUNT and told.get("reward") != "goodput" and not told.get("lag_cost")


def walks(policy: Policy) -> bool:
    """Whether a policy can be played here."""
    return counts_only(policy) or type(policy) in _TIME


class Rounds:
    """What every arm would bring at every position of a text.

    A round is made once; for policies that look at seconds those of the moment are written into it.
    """

    def __init__(
        self, text: Text, arms: Sequence[Arm], cost: RoundCost, asked: tuple[Sequence[int], float] | None = None
    ) -> None:
        self.text, self.arms, self.cost = text, arms, cost
        self.asked = asked  # the prompt's tokens and perplexity, where they are known
        self.end, self.names = text.tokens - 1, [str(arm) for arm in arms]
        self.places = {arm: place for place, arm in enumerate(arms)}
        self.models = {name: track.head for name, track in text.tracks.items() if not track.cheap}
        longest = max(arm.length for arm in arms)
        self.rooms = [room_at(text, at, longest) for at in range(self.end)]
        verify = [cost.verify(n + 1) for n in range(max(arm.budget for arm in arms) + 1)]
        made = [self._of(arm, text.tracks.get(arm.drafter), verify) for arm in arms]
        self.rounds = [own for own, _ in made]  # by place of the arm, by position
        self.draft = [seconds for _, seconds in made]
        self.verify = [[verify[one.drafted] for one in own] for own in self.rounds]

    def _of(self, arm: Arm, track: Track | None, verify: Sequence[float]) -> tuple[list[Round], list[float]]:
        rounds, seconds = [], []
        for at, room in enumerate(self.rooms):
            drafted = accepted = 0
            taken = 0.0
            overlap: tuple[float, ...] = ()
            if track is not None and arm.length and room:
                drafted, accepted = drafted_tokens(track, arm, at, room)
                overlap = tuple(track.overlap[at : at + (min(arm.length, room) if arm.tree else drafted)])
                if track.cheap:
                    taken = self.cost.propose.get(arm.drafter, 0.0)
                elif drafted:
                    taken = model_seconds(self.cost, arm, drafted, room)
            emitted = min(accepted + 1, self.end - at)
            repeated = self.text.repeated(at, emitted)
            rounds.append(Round(arm, drafted, accepted, emitted, overlap=overlap, repeated=repeated))
            seconds.append(taken)
        return rounds, seconds

    @cached_property
    def table(self) -> np.ndarray:
        """Drafted and accepted tokens, the arm's length, and the seconds without catching up, by arm and position."""
        counts = [[(one.drafted, one.accepted, one.arm.length) for one in own] for own in self.rounds]
        seconds = np.array(self.draft) + np.array(self.verify)
        return np.concatenate([np.array(counts, dtype=float), seconds[:, :, None]], axis=2)


class Way:
    """The rounds in which a text was generated: the place of each arm, the position, and tokens caught up on first."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.places: list[int] = []
        self.at: list[int] = []
        self.lag: list[int] = []

    @cached_property
    def _told(self) -> np.ndarray:
        told: np.ndarray = self.rounds.table[self.places, self.at]
        return told

    @cached_property
    def counts(self) -> tuple[float, ...]:
        """Tokens, rounds, drafted and accepted tokens, and the sum of the arms' lengths."""
        drafted, accepted, depth = self._told[:, :3].sum(axis=0).tolist()
        return self.rounds.end, len(self.at), drafted, accepted, depth

    @cached_property
    def arms(self) -> Counter[str]:
        """How often each was played."""
        return Counter({self.rounds.names[i]: n for i, n in Counter(self.places).items()})

    def seconds(self, cost: RoundCost) -> np.ndarray:
        """Of every round, catching up as in ``cost``."""
        seconds, arms = self._told[:, 3].copy(), self.rounds.arms
        for i, lag in enumerate(self.lag):
            if lag > 1:
                seconds[i] += cost.catch_up(arms[self.places[i]].drafter, lag)
        return seconds


def walk(texts: Sequence[Rounds], policy: Policy, noise: np.ndarray = NO_NOISE) -> list[Way]:
    """Play a policy through texts, one after the other; ``noise`` are the factors on the seconds of its rounds."""
    places, context = texts[0].places, Context(policy.arms)
    times = None if counts_only(policy) else iter(noise.tolist())
    choose, observe = policy.choose, policy.observe
    seen = Prompts() if Signal.PROMPT in policy.needs else None
    ways = []
    for own in texts:
        at, newest, end, models, rounds = 0, 1, own.end, own.models, own.rounds
        read = dict.fromkeys(models, -own.text.prompt)
        way = Way(own)
        told = context
        if seen is not None and own.asked is not None:
            told = Context(policy.arms, prompt=seen.features(*own.asked))
        while at < end:
            arm = choose(told)
            told = context
            place = places[arm]
            played = rounds[place][at]
            lag, name = 0, arm.drafter
            if name in read and played.drafted:
                lag = at - read[name]
                if models[name]:  # a head reads the tokens of the last round along with its draft, its own never
                    lag = max(0, lag - newest)
                    read[name] = at
                else:
                    read[name] = at + 1 + min(played.accepted, played.drafted - 1)
            way.places.append(place)
            way.at.append(at)
            way.lag.append(lag)
            if times is not None:
                factor = next(times)
                _set(played, "draft_seconds", own.draft[place][at] * factor)
                _set(played, "verify_seconds", own.verify[place][at] * factor)
            observe(played)
            newest = played.emitted
            at += newest
        ways.append(way)
    return ways


def noise_of(scale: float, seed: int, rounds: int) -> np.ndarray:
    """The factors on the seconds of so many rounds, as a replay with this seed has them."""
    rng = np.random.default_rng([seed, 1])
    return np.concatenate([noise_chunk(rng, scale) for _ in range(-(-rounds // NOISE_CHUNK))])
