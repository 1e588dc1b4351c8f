"""What `auto` does to keep learning: which drafters it calls, when it drafts although that does not seem to pay, and
which kinds of steps it tries in a batch."""

from collections.abc import Mapping, Sequence

import numpy as np

from wager.policies.auto.config import AutoConfig
from wager.policies.auto.guarantee import LossBound
from wager.policies.auto.verify import OFF_STEP, RAGGED, UNIFORM
from wager.policies.base import Learner

MOST_VAIN = 16  # times the usual interval between two probes, where none is observed
PLAIN_BURST = 4  # steps of a batch in a row without drafts that are played to time them


class DrafterSelection(Learner):
    """Which cheap drafters are called: one that brings less than its seconds are worth is called ever more rarely."""

    learned = ("drafter_value", "rounds_until_probe", "probe_backoff", "rounds_since_change")

    def __init__(self, drafters: Sequence[str], config: AutoConfig) -> None:
        self.drafters, self.config = tuple(drafters), config
        self.index = {name: i for i, name in enumerate(drafters)}
        count = len(self.drafters)
        self.drafter_value = [1.0] * count  # tokens a round that its proposals have brought beyond the others'
        self.rounds_until_probe = [0] * count  # rounds until it is called again
        self.probe_backoff = [1] * count  # rounds between two calls
        self.rounds_since_change = 0  # since a drafter was left out or taken back

    def select(self) -> tuple[str, ...]:
        """The drafters to call in the next round."""
        left = self.rounds_until_probe
        return tuple(name for i, name in enumerate(self.drafters) if not left[i]) if any(left) else self.drafters

    def begin(self) -> None:
        """A new text: every drafter is called."""
        self.rounds_until_probe = [0] * len(self.drafters)

    def learn(self, gains: Sequence[float], called: Mapping[str, float], rate: float, plain: float) -> None:
        """A round is over: tokens each drafter brought beyond the others, and the seconds of those called.

        ``plain``: seconds of plain decoding, each worth ``rate`` tokens. One drafter is left out at a time: of two that
        propose the same, each alone seems to bring nothing.
        """
        if any(self.rounds_until_probe):
            self.rounds_until_probe = [max(0, n - 1) for n in self.rounds_until_probe]
        if not called:
            return
        config, value, backoff = self.config, self.drafter_value, self.probe_backoff
        self.rounds_since_change += 1
        worst, loss = -1, 0.0
        for name, seconds in called.items():
            i = self.index[name]
            memory = config.round_memory if backoff[i] == 1 else config.repeats
            value[i] += ((gains[i] if gains else 0.0) - value[i]) / memory
            cost = config.value_credit * rate * seconds - value[i] if seconds > config.trial_share * plain else 0.0
            if backoff[i] == 1:
                if cost > loss:
                    worst, loss = i, cost
            elif cost > 0:
                backoff[i] = self.rounds_until_probe[i] = min(int(config.round_memory), 2 * backoff[i])
            else:
                backoff[i], self.rounds_since_change = 1, 0
        if worst >= 0 and self.rounds_since_change > config.round_memory:
            backoff[worst] = self.rounds_until_probe[worst] = max(2, int(config.round_memory) // 8)
            self.rounds_since_change = 0


class StepTrials(Learner):
    """Which kind of step a batch plays: the best, and now and then another, to learn what it costs."""

    learned = ("steps",)

    def __init__(self, rng: np.random.Generator, config: AutoConfig) -> None:
        self.rng, self.config = rng, config
        self.steps: dict[int, list[int]] = {}  # bucket of batch sizes -> steps of each kind that were learned from
        self._tried: dict[tuple[int, int], int] = {}  # bucket, kind -> times it was chosen to learn of it first
        self._drafted: dict[int, int] = {}  # bucket -> choices since plain decoding was chosen

    def note(self, size: int, kind: int) -> None:
        """A step of this kind was learned from."""
        self.steps.setdefault(size, [0, 0, 0])[kind] += 1

    def due(self, size: int) -> bool:
        """Whether `choose` has to be asked, or the best kind is played."""
        steps = self.steps.get(size)
        return steps is None or min(steps) < self.config.repeats or self.rng.random() < self.config.trial_share

    def plain_due(self, size: int, loss: float, *, chosen: bool) -> bool:
        """Whether a batch for which drafts are chosen is decoded plainly, to time that; ``loss``: the steps that this
        is expected to cost; ``chosen``: it is decoded plainly anyway.

        Such steps cost `trial_share` of the time at most, and are not chosen more often than every tenth time.
        """
        choices = self._drafted[size] = 0 if chosen else self._drafted.get(size, 0) + 1
        if choices < max(self.config.short_memory, loss / self.config.trial_share):
            return False
        self._drafted[size] = 0
        return True

    def choose(self, size: int, values: Sequence[float], goodput: Sequence[float]) -> tuple[int, int]:
        """The kind of step to play, and whether with more (1) or fewer (-1) draft tokens than seems best.

        A kind that is not possible has goodput 0. Acceptance needs no trials: it is learned otherwise.
        """
        leader, best = max(range(3), key=values.__getitem__), max(goodput)
        steps, repeats = self.steps.get(size, (0, 0, 0)), self.config.repeats
        for kind in (OFF_STEP, RAGGED, UNIFORM):  # plain decoding is tried in any case: everything is relative to it
            if steps[kind] < repeats and goodput[kind] > (best / 2 if kind else 0.0) and self._try(size, kind):
                return kind, 0
        if min(steps) < repeats and self.rng.random() >= self.config.trial_share:
            return leader, 0
        kind = (leader + 1 + int(self.rng.random() * (3 if leader == RAGGED else 2))) % 3
        if kind == leader:
            return RAGGED, 1 if self.rng.random() < 0.5 else -1
        # the more a trial costs, the rarer it is
        return (kind, 1) if self.rng.random() * best < goodput[kind] else (leader, 0)

    def _try(self, size: int, kind: int) -> bool:
        """Whether a kind of step that is not known is tried now: ever more rarely where nothing comes of it.

        In an engine a step may be chosen in vain, again and again: requests leave, and the step after that, in which
        others join, is not learned from.
        """
        tried = self._tried[size, kind] = self._tried.get((size, kind), 0) + 1
        return tried <= 4 * self.config.repeats or tried & (tried - 1) == 0


class Exploration(Learner):
    """The state of all exploration but Thompson sampling."""

    learned = ("bound", "rounds_since_draft", "expected_stay", "rounds_stayed", "last_drafter", "proposed_gain",
               "usual_gain", "selection", "trials")  # fmt: skip

    def __init__(self, drafters: Sequence[str], rng: np.random.Generator, config: AutoConfig) -> None:
        self.config = config
        self.selection = DrafterSelection(drafters, config)
        self.trials = StepTrials(rng, config)
        self.rounds_since_draft = 0
        self.interval = config.probe_interval  # rounds without drafts until one is made, to learn of a change
        # bucket of batch sizes -> probes of which no round was observed, and the rounds without drafts before the last
        self._vain: dict[int, tuple[int, int]] = {}
        self.bound = LossBound(config)
        self.last_drafter, self.rounds_stayed = "", 0  # the last one without hints, and for how many rounds it was run
        self.expected_stay = config.round_memory  # rounds such a drafter is run: catching up is spread over them
        # tokens a round that proposals bring beyond what could be chosen without asking: lately, and over all texts
        self.proposed_gain = self.usual_gain = 0.5

    def begin(self) -> None:
        """A new text."""
        self.bound.begin()
        self.selection.begin()
        self.proposed_gain = self.usual_gain

    def proposed(self, gain: float) -> None:
        """Proposals were asked for, and the best of them is worth so many tokens more than all that is none."""
        self.proposed_gain += (gain - self.proposed_gain) / self.config.short_memory
        self.usual_gain += (gain - self.usual_gain) / self.config.round_memory

    def probe_due(self, size: int) -> bool:
        """Whether something is to be drafted to learn of it, by the bucket of the batch's size. Where a batch lasts
        for one step, others joining in the one that verifies its drafts, nothing is learned: it is tried ever more
        rarely."""
        since, (vain, last) = self.rounds_since_draft, self._vain.get(size, (0, 0))
        last = last if last <= since else 0
        often = since >= self.interval
        rest = max(1, self.interval) * min(MOST_VAIN, 2 ** max(0, vain - self.config.repeats))
        due = often and (vain <= self.config.repeats or since >= last + rest)
        if due and size > 1:
            self._vain[size] = vain + 1, since
        return due

    def drafted(self, again: bool, size: int) -> None:
        """Something was drafted; a probe is repeated if it is to be made again."""
        self._vain.pop(size, None)
        probe = self.rounds_since_draft >= self.interval
        self.rounds_since_draft = self.rounds_since_draft + 1 if probe and again else 0

    def follow(self, drafter: str) -> None:
        """Learn for how many rounds a drafter without hints is run; empty: another kind of round came."""
        if drafter == self.last_drafter:
            self.rounds_stayed += 1
            return
        if self.last_drafter:
            stayed = min(self.rounds_stayed, self.config.round_memory)
            self.expected_stay += (stayed - self.expected_stay) / self.config.repeats
        self.last_drafter, self.rounds_stayed = drafter, 1
