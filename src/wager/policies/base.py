"""The contract of a policy: the one base class, and what all of them share."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from wager.core import OFF, REWARDS, Arm, Calibration, Context, Round, Signal
from wager.core.batch import Batch, BatchRound, Choices
from wager.core.require import is_whole, require_type
from wager.core.require import require as require  # for every policy
from wager.policies.choice import choice_of

Arms = Sequence[Arm]
# When a policy is started anew: as its paper has it, with every text, or never.
PAPER, TEXT, NEVER = "paper", "text", "never"
RESETS = (PAPER, TEXT, NEVER)


@dataclass(frozen=True, slots=True)
class Option:
    """What a policy expects of an arm."""

    arm: Arm
    tokens: float  # emitted in a round
    seconds: float
    timed: bool = True  # whether the seconds go by a clock; else only their ratios mean something

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Learner:
    """Something with a state: its attributes named in ``learned``, which may be learners themselves.

    Where such an attribute is a dictionary of learners, ``elements`` has their class, made anew from ``config``.
    """

    __slots__ = ()
    learned: ClassVar[tuple[str, ...]] = ()
    elements: ClassVar[dict[str, type[Learner]]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Everything learned."""
        return {name: _state(getattr(self, name)) for name in self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was learned."""
        for name in self.learned:
            value, made = getattr(self, name), self.elements.get(name)
            if isinstance(value, Learner):
                value.load_state_dict(state[name])
            elif made is None:
                setattr(self, name, state[name])
            else:
                value.clear()
                for key, own in state[name].items():
                    value[key] = made(self.config)  # type: ignore[attr-defined, call-arg]
                    value[key].load_state_dict(own)
        self.settle()

    def settle(self) -> None:
        """Work out what follows from what was learned."""


class Policy(Learner, ABC):
    """Picks the arm for the next round and learns from the round that came back.

    It has a fixed set of arms, of which any non-empty subset may be available in a round. A subclass names in
    ``learned`` what it learns, creates those attributes in ``reset`` and calls ``reset`` at the end of its
    ``__init__``; saving and loading then work by themselves.
    """

    needs: frozenset[Signal] = frozenset()  # signals an engine measures only on request
    least_readers: ClassVar[int] = 1  # models there have to be for Signal.READ to be of use
    per_request: ClassVar[bool] = False  # choose_batch decides each request by itself, from its own proposals
    whole_batch: ClassVar[bool] = True  # choose can decide for a batch as a whole
    per_text: ClassVar[bool] = False  # its paper starts it anew for every text
    trials: ClassVar[int] = 0  # texts its paper has it play before it is measured
    explains: ClassVar[bool] = False  # options says what was expected of the arms
    holds: ClassVar[bool] = False  # a choice may stand for several steps where choosing takes too much of a step
    carries: ClassVar[bool] = False  # what it learns at one load serves it at others
    late: ClassVar[bool] = False  # a round may be observed after the next choice (``Context.unobserved``)
    tries_cheaper: ClassVar[bool] = False  # an engine may play another drafter's arm of that length now and then
    parameters: dict[str, Any]  # everything but the arms and the seed it was made with
    offered: tuple[tuple[Arm, ...], frozenset[Arm]] = (), frozenset()  # arms that it chose among last
    exploring: bool = False  # whether the last choice was made to learn from its round, which is not to be repeated

    def __new__(cls, *given: Any, **named: Any) -> Self:
        policy = super().__new__(cls)
        if not given and not named:  # a copy of another: its attributes follow
            return policy
        called = inspect.signature(cls.__init__).bind(policy, *given, **named)
        called.apply_defaults()
        policy.parameters = {k: v for k, v in called.arguments.items() if k not in ("self", "arms", "seed")}
        return policy

    def __init__(self, arms: Arms, *, seed: int = 0) -> None:
        given: Any = arms
        listed = isinstance(given, Iterable) and not isinstance(given, str)
        self.arms: tuple[Arm, ...] = tuple(given) if listed else (given,)
        wrong = next((arm for arm in self.arms if not isinstance(arm, Arm)), OFF)
        require_type(wrong is OFF, f"a policy's arms are a list of wager.core.Arm, not {wrong!r}; Arm.parse reads one")
        require(is_whole(seed) and seed >= 0, f"a policy's seed is a whole number, 0 or more, not {seed!r}")
        self.slot = {arm: i for i, arm in enumerate(self.arms)}  # arm -> its place in arm order
        if not self.arms or len(self.slot) != len(self.arms):
            raise ValueError(f"a policy needs at least one arm and no arm twice, not {[str(a) for a in self.arms]}")
        self.drafters = tuple(dict.fromkeys(arm.drafter for arm in self.arms if arm.length))
        self.longest = max(arm.length for arm in self.arms)
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self._seen: tuple[Arm, ...] | None = None
        self._slots: list[int] = []

    def calibrate(self, known: Calibration) -> None:
        """Take what is known before the first round; unless overridden, it is ignored."""

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        """The cheap drafters that shall propose before the choice; the context has no hints yet. No side effect."""
        return self.drafters

    def select_readers(self, context: Context) -> tuple[str, ...]:
        """The model drafters that shall read the text after the round though they do not draft in it, so that
        ``Round.others`` says what they would have had accepted; asked after ``choose``. No side effect."""
        return ()

    def foresee(self, context: Context) -> None:
        """Work out ahead what the next choice needs beside proposals. Called while a device works, with what is known
        of that choice; nothing is observed in between. It may never be made."""

    @abstractmethod
    def choose(self, context: Context) -> Arm:
        """The arm to play, one of ``context.arms``."""

    def may_stand(self, choosing_seconds: float) -> int:
        """For how many rounds more the last choice may be played without asking again, which takes so many seconds,
        proposals included; every round is observed all the same."""
        return 0

    def choose_batch(self, batch: Batch) -> Choices:
        """A drafter and a length for every request; unless overridden, one arm for all of them."""
        count = len(batch.slots)
        arm = choice_of(self, batch.context or Context(self.arms, batch=count))
        if not arm.length:
            return Choices.off(count)
        drafter = self.drafters.index(arm.drafter)
        length = np.minimum(arm.length, np.minimum(batch.size[drafter], batch.limit))
        return Choices(np.where(length > 0, drafter, -1), length, arm)

    def observe(self, round: Round) -> None:
        """Learn from a finished round."""

    def observe_batch(self, result: BatchRound) -> None:
        """Learn from a finished step; unless overridden, as from one round of ``result.arm``."""
        if result.seconds <= 0.0:
            return
        kept = np.minimum(result.emitted - 1, result.drafted)
        batch, drafted, accepted = len(kept), int(result.drafted.sum()), int(kept.sum())
        emitted, rejected = min(int(result.emitted.sum()), accepted + batch), int((kept < result.drafted).sum())
        seconds = result.draft_seconds, result.seconds
        self.observe(Round(result.arm, drafted, accepted, emitted, batch, rejected, *seconds))

    def options(self) -> list[Option]:
        """What was expected of the arms compared for the last choice: of the chosen one first, then of the best."""
        return []

    def reset(self) -> None:
        """Forget everything learned."""
        self.rng = np.random.default_rng(self.seed)

    def forget(self) -> None:
        """Forget everything learned, as before a new text, and go on with the random numbers."""
        going_on = self.rng.bit_generator.state
        self.reset()
        self.rng.bit_generator.state = going_on  # of the generator that all parts of the policy have now

    # Which arms are available changes rarely, so the answer is kept for as long as the engine passes the same tuple.
    def available(self, arms: tuple[Arm, ...]) -> list[int]:
        """Places of the available arms, in arm order."""
        if arms is not self._seen:
            try:
                self._slots = sorted({self.slot[arm] for arm in arms})
            except KeyError as missing:
                raise ValueError(f"arm {missing.args[0]} is not one of {[str(a) for a in self.arms]}") from None
            self._seen = arms
        return self._slots

    def best(self, index: list[float], slots: list[int]) -> Arm:
        """The available arm of largest index; the earlier one on a tie."""
        if len(slots) == len(index):
            return self.arms[index.index(max(index))]
        return self.arms[max(slots, key=index.__getitem__)]

    def unplayed(self, counts: Sequence[float], slots: list[int]) -> Arm | None:
        """The first available arm whose count is still 0, if there is one."""
        return None if all(counts) else next((self.arms[i] for i in slots if not counts[i]), None)

    def uniform(self, slots: Sequence[int]) -> Arm:
        """One of the available arms, all alike."""
        return self.arms[slots[int(self.rng.random() * len(slots))]]

    def at_most(self, limit: int, drafter: str, slots: list[int]) -> Arm:
        """The drafter's longest available arm of at most so many tokens; if it has none, the shortest arm there is."""
        arms = [self.arms[i] for i in slots]
        own = (arm for arm in arms if arm.drafter == drafter and arm.length <= limit)
        return max(own, key=attrgetter("length"), default=None) or min(arms, key=attrgetter("length"))

    def state_dict(self) -> dict[str, Any]:
        """Everything learned, as JSON."""
        learned = {name: _pack(value) for name, value in super().state_dict().items()}
        return {**self._identity(), "rng": self.rng.bit_generator.state, "learned": learned}

    def _identity(self) -> dict[str, Any]:
        arms = [str(arm) for arm in self.arms]
        return {"policy": type(self).__name__, "parameters": self.parameters, "arms": arms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of another policy of the same class, parameters and arms."""
        require_type(isinstance(state, dict), f"a policy's state is a dict, as state_dict() gives it, not {state!r}")
        ours = self._identity()
        for key, value in ours.items():
            require(state.get(key) == value, f"saved state is for {key} {state.get(key)}, not {value}")
        missing = {"rng", "learned"} - set(state) or set(self.learned) - set(state["learned"])
        require(not missing, f"saved state lacks {', '.join(sorted(missing))}")
        self.reset()
        self.rng.bit_generator.state = state["rng"]
        super().load_state_dict({name: _unpack(value) for name, value in state["learned"].items()})


class RewardPolicy(Policy):
    """A policy driven by a reward of the user's choice."""

    allowed: ClassVar[tuple[str, ...]] = tuple(REWARDS)

    def __init__(self, arms: Arms, *, reward: str, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        choice = f"choose from {', '.join(self.allowed)}"
        require(reward in self.allowed, f"reward {reward!r} does not fit {type(self).__name__}; {choice}")
        self._reward = REWARDS[reward].of
        if reward == "bd":
            self.needs = frozenset({Signal.OVERLAP})
        self._floor, known = REWARDS[reward].floor, REWARDS[reward].spread
        self._known_spread = known(self.longest) if known else None

    def reset(self) -> None:
        super().reset()
        self.spread = self._known_spread or 0.0  # range of the reward; the largest seen where it is not known

    def value(self, round: Round) -> float:
        """The round's reward in its own unit."""
        value = self._reward(round, self.longest)
        if self._known_spread is None and value > self.spread:
            self.spread = value
        return value

    def unit(self, round: Round) -> float:
        """The round's reward brought to [0, 1]."""
        return (self.value(round) - self._floor) / self.spread


def resets(policy: Policy | type[Policy], rule: str) -> bool:
    """Whether a policy is started anew with every text under one of ``RESETS``."""
    require(rule in RESETS, f"policies are started anew by {', '.join(RESETS)}, not {rule!r}")
    return rule == TEXT or (rule == PAPER and policy.per_text)


def expected_tokens(acceptance: float, length: int) -> float:
    """Tokens a round emits on average when each drafted token is accepted with this probability (on-the-fly eq. 9)."""
    if acceptance >= 1.0:
        return length + 1.0
    return float((1.0 - acceptance ** (length + 1)) / (1.0 - acceptance))


def _state(value: Any) -> Any:
    """What there is to save of an attribute: of learners their states."""
    if isinstance(value, Learner):
        return value.state_dict()
    return {key: _state(own) for key, own in value.items()} if isinstance(value, dict) else value


def _pack(value: Any) -> Any:
    """A learned attribute as JSON."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, set):
        return {"set": sorted(value)}
    if isinstance(value, dict):
        return {"map": [[_pack(k), _pack(v)] for k, v in value.items()]}
    if not isinstance(value, (list, tuple, deque)):
        return value
    items = [_pack(v) for v in value]
    if isinstance(value, deque):
        return {"deque": items, "maxlen": value.maxlen}
    return {"tuple": items} if isinstance(value, tuple) else items


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(value["array"])
    if "set" in value:
        return set(value["set"])
    if "deque" in value:
        return deque((_unpack(v) for v in value["deque"]), maxlen=value["maxlen"])
    if "map" in value:
        return {_unpack(k): _unpack(v) for k, v in value["map"]}
    return tuple(_unpack(v) for v in value["tuple"])
