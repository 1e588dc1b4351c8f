"""A policy in an engine that drafts at the end of one step and verifies in the next: one arm for the whole batch."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wager.core import Arm, Context, Round
from wager.core.batch import Ints
from wager.policies.auto.exploration import PLAIN_BURST
from wager.policies.auto.latency import Kind, StepLatency
from wager.policies.auto.verify import bucket
from wager.policies.base import Policy
from wager.policies.trials import CheaperTrials

SAME_LOAD = 16  # a choice is held while the number of requests is within a 16th of the one it was made for


@dataclass(slots=True)
class Step:
    """One step under way: the arm whose drafts it verifies, and the arm that drafts in it for the next."""

    policy: Policy  # that chose the arm
    batch: int  # requests that decode in it
    drafted: int  # draft tokens it verifies
    mixed: bool  # whether it also prefills
    arm: Arm
    lag: int  # steps without drafts before those
    next_arm: Arm
    resumed: bool = False  # whether drafting is resumed in it
    held: bool = False  # whether the policy was not asked, and observes nothing of it
    cut: bool = False  # whether a draft that it verifies was cut by its request's own limit

    @property
    def length(self) -> int:
        """Tokens to draft in it for each request."""
        return self.next_arm.length


class Counts(NamedTuple):
    """What a step brought over its decoding requests."""

    drafted: int
    accepted: int
    emitted: int
    seconds: float  # 0: not timed


class StepRounds:
    """Chooses an arm in every step, and makes a Round of the step that verified its drafts.

    A round spans two steps. It is observed with the seconds of the second, less the drafting done in it for its
    successor, plus the drafting of the first. Where steps overlap, a step's tokens are known before its drafting is
    done, and the next step's seconds have that drafting in them: they are then the round's, just as they are. But that
    is so where the device is the slower one. Where the host is, it launches the successor in these seconds, and they
    are the next arm's. So where the arm changes, the round is given the seconds of such steps between others like them.
    A single step without drafts would then have no seconds of its own: where it is played to time it, others follow.

    The last arm's drafter is the one that lags in steps in which it does not draft. Another beside it drafts for next
    to nothing: what the last one's drafts cost is told by rounds of the same length.
    """

    def __init__(self, policy: Policy, arms: tuple[Arm, ...], *, overlap: bool = False, dear: bool = False) -> None:
        self.policy, self.arms, self.overlap = policy, arms, overlap
        self.dear = dear  # whether a whole model drafts: a token of it may take longer than a step without drafts
        self.latency = StepLatency()
        self.tokens = 0  # emitted since the engine started
        self._drafter = arms[-1].drafter
        self._others = sorted({arm.drafter for arm in arms if arm.length} - {self._drafter})
        self._trials: dict[int, CheaperTrials] = {}  # by bucket of batch sizes
        self.trying = False  # whether the arm of the last step was played to learn of it
        self._valued = arms[0]  # the arm that the policy chose last for what it brings
        self._plain_left = 0  # steps without drafts that are still to be played to time them ...
        self._plain_of: tuple[Policy, int] | None = None  # ... for this policy and bucket of batch sizes
        self._unseen = False  # whether the last step that was planned also prefills, or verifies drafts that were cut
        self._observed: set[int] = set()  # buckets of batch sizes of which a round was observed
        self._kinds: set[tuple[int, Kind]] = set()  # buckets of batch sizes and drafts that have passed, with overlap
        self._chose = policy  # the arm of the last step
        self._arm = arms[0]  # off: nothing has been drafted before the first step
        self._batch = 0  # that the last step was planned for
        self._held: Step | None = None  # the step that is planned again while the choice is held
        self._pause = 0  # tokens at most since the last drafter drafted
        self._idle = 0  # steps since anything was drafted
        self._lag = 0  # the same when that was last resumed, until that round's step is planned
        self._more = 0.0  # what the step before took beyond others like it, where another arm drafted in it

    def plan(self, batch: int, verifying: int, drafted: int, mixed: bool, drafted_by: Arm | None = None,
             *, off: bool = False, longest: int | None = None, cut: bool = False) -> Step:  # fmt: skip
        """The step now being scheduled; ``Step.length`` is how much to draft in it.

        batch: requests that will decode in the next step; verifying: those that decode in this one; drafted_by: the
        arm whose drafts are verified, where that is not the one chosen last; off: nothing may be drafted; longest: as
        many tokens may be, any number if None; cut: as in Step.
        """
        arm = drafted_by or self._arm
        step = Step(self._chose, verifying, drafted, mixed, arm, self._lag, arm, cut=cut)
        self._lag, self._batch, self._held, self.trying = 0, batch, None, False
        if self._plain_of != (self.policy, bucket(batch)):
            self._plain_left = 0
        unseen = mixed or cut
        again, self._unseen = unseen and self._unseen, unseen
        self._chose = self.policy
        if off or longest == 0 or (mixed and not self._known_load(batch)):
            # Nothing was observed at this load, and nothing is while prompts keep coming: exploring lengths would only
            # cost, where it costs most.
            step.next_arm = self.arms[0]
        elif batch:
            begins = mixed and batch == 1  # a text, of which nothing was missed yet: it counts how long nobody drafted
            missed, previous = (self._idle, None) if begins else (self._pause, self._arm)
            lag = {self._drafter: missed} if missed else {}
            chosen = self.policy.choose(Context(self.arms, batch, self.tokens, previous, lag))
            step.next_arm = chosen = self._in_a_row(self._briefly(self._to_learn(chosen, again), batch), batch, mixed)
            if self._others and self.policy.tries_cheaper and not mixed:
                step.next_arm = self._trials_at(batch).play(chosen)
                self.trying = self.trying or step.next_arm is not chosen
            step.next_arm = self._within(step.next_arm, longest)
            step.resumed = bool(self._pause and step.next_arm.drafter == self._drafter)
            self._lag = self._pause if step.resumed else 0
        self._pass(step.next_arm)
        self._arm = step.next_arm
        return step

    def _to_learn(self, chosen: Arm, again: bool) -> Arm:
        """The arm chosen, unless that is to learn of it and one step that is not observed, mixed or with drafts cut,
        follows the other (``again``): a probe would be made again in each."""
        if not self.policy.exploring:
            self._valued = chosen
        elif again:
            return self._valued
        self.trying = chosen is not self._valued
        return chosen

    def _briefly(self, arm: Arm, batch: int) -> Arm:
        """The arm chosen for a single request, or the shortest of its drafter while nothing is known of what drafts of
        a whole model take: one token tells. (For more requests `auto` does so itself.)"""
        if not self.dear or batch > 1 or not arm.length or not self.policy.carries or self.timed(batch, arm.drafter):
            return arm
        return min((one for one in self.arms if one.drafter == arm.drafter), key=lambda one: one.length)

    def timed(self, batch: int, drafter: str) -> bool:
        """Whether rounds of this drafter at about this batch size were timed between others like them."""
        arms = (arm for arm in self.arms if arm.drafter == drafter and arm.length)
        return not self.overlap or any(self.latency.known(batch, self._kind(arm)) for arm in arms)

    def _within(self, arm: Arm, longest: int | None) -> Arm:
        """This arm, or the longest one of its drafter with so many tokens; `off` where there is none."""
        if longest is None or arm.length <= longest:
            return arm
        shorter = [one for one in self.arms if one.drafter == arm.drafter and one.length <= longest]
        return max(shorter, key=lambda one: one.length, default=self.arms[0])

    def _in_a_row(self, chosen: Arm, batch: int, mixed: bool) -> Arm:
        """The arm chosen, or `off` while plain steps of a batch are timed and not enough of them have passed. Steps
        that also prefill are not timed: others are, after them."""
        if not self.overlap or batch == 1:
            return chosen
        if self.trying and not chosen.length and not self._plain_left:
            self._plain_left, self._plain_of = PLAIN_BURST, (self.policy, bucket(batch))
        if not self._plain_left:
            return chosen
        self.trying = not mixed
        if mixed:
            return self._valued
        self._plain_left -= 1
        return self.arms[0]

    def _known_load(self, batch: int) -> bool:
        """Whether a round was observed at about this batch size, or where that is of use at half or twice as many."""
        size, seen = bucket(batch), self._observed
        return size in seen or (self.policy.carries and not seen.isdisjoint((size - 1, size + 1)))

    def _trials_at(self, batch: int) -> CheaperTrials:
        size = bucket(batch)
        if size not in self._trials:
            self._trials[size] = CheaperTrials(self.arms)
        return self._trials[size]

    def _pass(self, arm: Arm) -> None:
        """Count what the last drafter misses in a step in which this arm drafts."""
        self._pause = 0 if arm.drafter == self._drafter else self._pause + 1 + arm.length
        self._idle = 0 if arm.length else self._idle + 1

    def _kind(self, arm: Arm) -> Kind:
        """Drafts of one kind take equally long."""
        return arm.length if arm.drafter == self._drafter or not arm.length else (arm.drafter, arm.length)

    def _model_seconds(self, batch: int, arm: Arm, seconds: float) -> float:
        """Of a step's seconds those in which the last drafter drafted: what such steps take longer than others with
        drafts of this length, or a shorter one where there were none; 0 while nothing is known."""
        if self._others and arm.drafter == self._drafter:
            for length in range(arm.length, 0, -1):
                known = [self.latency.verifying(batch, (name, length)) for name in self._others]
                if others := [taken for taken in known if taken]:
                    return min(max(0.0, self.latency.verifying(batch, arm.length) - min(others)), seconds)
        return 0.0

    def hold(self, batch: int, verifying: int, drafted: int, mixed: bool) -> Step | None:
        """The step now being scheduled, with the arm chosen last and without asking the policy; None where it has to be
        asked: drafting was just resumed, policy or load are others, or a text begins alone.

        Nothing is observed of such a step. The same object stands for all that are alike.
        """
        if self._lag or self._chose is not self.policy or (mixed and batch == 1):
            return None
        if abs(batch - self._batch) > self._batch // SAME_LOAD:
            return None
        arm, step = self._arm, self._held
        self._pass(arm)
        if self._others:
            self._trials_at(batch).steps += 1
        if step is None or step.batch != verifying or step.drafted != drafted or mixed:
            step = Step(self._chose, verifying, drafted, mixed, arm, 0, arm, held=True)
            self._held = None if mixed else step
        return step

    def repeat(self, steps: int) -> None:
        """So many steps have passed since that were like the last held one, which had no drafts."""
        self._pause += steps
        self._idle += steps

    def observe(
        self, step: Step, accepted: int, emitted: int, seconds: float, survivors: tuple[int, ...] = ()
    ) -> Counts:
        """The step is over and took so long; what it verified is observed unless it was mixed, or drafts were cut.

        survivors: as in Round.
        """
        self.tokens += emitted
        arm, batch = step.arm, step.batch
        accepted = min(accepted, step.drafted)
        more, self._more = self._more if step.arm.length else 0.0, 0.0
        if step.mixed or step.cut or not batch or not emitted:
            # Counted, but not timed: the prefill's seconds are no arm's, and a draft that was cut was not rejected.
            return Counts(step.drafted, accepted, min(emitted, accepted + batch), 0.0)
        drafts = self._kind(arm)
        kind = bucket(batch), drafts
        if self.overlap and kind not in self._kinds:  # the first may pay for what others find done
            self._kinds.add(kind)
            return Counts(step.drafted, accepted, emitted, seconds)
        self._observed.add(kind[0])
        own, late = seconds, 0.0  # of the round, and of them those of catching up
        if not self.overlap:
            after = self._kind(step.next_arm)
            self.latency.observe(batch, drafts, after, seconds, resumed=step.resumed)
            others, draft = (self.latency.drafting(batch, kind) for kind in (after, drafts))
            late = self.latency.switching if step.lag else 0.0
        elif (
            arm.length
            and not self.latency.known(batch, drafts)
            and (step.lag or (self.dear and step.next_arm is not arm and not self.timed(batch, arm.drafter)))
        ):
            # What of it was drafting or catching up cannot be told, nor when: where the host is the slower one, it was
            # in the step before.
            own = others = seconds + more
            draft = own if self.dear else 0.0  # so that the policy counts all of it
        else:
            usual = self.latency.verifying(batch, drafts)
            if step.lag or step.next_arm is arm:
                late = self.latency.observe(batch, drafts, 0, seconds, resumed=bool(step.lag))
            elif usual and self.dear:
                self._more = max(0.0, seconds - usual)
            if step.next_arm is not arm:
                own = usual + late if usual else seconds + more
            draft = self._model_seconds(batch, arm, own - late)
            others = late + draft
        verify = max(1e-9, own - others)  # less what was not verifying: catching up, or the next round's drafting
        drafted = min(step.drafted, arm.length * batch)
        if accepted <= drafted and emitted <= accepted + batch:  # else drafts of another step were among these
            if self._others and arm.length:
                self._trials_at(batch).note(arm, emitted / batch, batch)
            rejected = batch - survivors[-1] if survivors else -1 if drafted else 0
            counts = arm, drafted, accepted, emitted, batch, rejected
            step.policy.observe(Round(*counts, draft, verify, step.lag, late, survivors=survivors))
        return Counts(drafted, accepted, emitted, seconds)


def uniform_length(chosen: Ints, lengths: Ints, longest: int, uniform: str, budget: int) -> int | None:
    """The one length that all requests of a step are padded or cut to; None: each keeps its own.

    chosen: lengths as the policy chose them, (requests,), all of them the longest where it wants a uniform step;
    lengths: what was proposed of them; uniform: auto (where the policy wants it), always, never; budget: most draft
    tokens in a step, 0 for no limit.
    """
    if uniform != "never" and int(np.minimum.reduce(chosen)) == longest:
        return longest
    if uniform != "always":
        return None
    fits = not budget or longest * len(lengths) <= budget
    return longest if fits and 2 * int(lengths.sum()) >= longest * len(lengths) else 0
