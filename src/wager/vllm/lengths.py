"""One draft length a step for the whole batch: what the scheduler hook decides and learns."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from wager.core import Arm, Context, Round
from wager.policies import Policy
from wager.policies.auto.latency import StepLatency
from wager.vllm.metrics import Meter

PAUSE = 1.0  # seconds between two steps beyond which the engine was not at work


class Step:
    """One step under way: what it verifies, and what it drafts for the next."""

    __slots__ = ("batch", "drafted", "lag", "mixed", "next", "policy", "scheduled", "verified", "woke")

    def __init__(
        self, policy: Policy, batch: int, drafted: int, mixed: bool, verified: Arm, lag: int, scheduled: float
    ) -> None:
        self.policy = policy  # who chose what is verified
        self.batch = batch  # requests that decode in it
        self.drafted = drafted  # draft tokens it verifies
        self.mixed = mixed  # whether it also reads prompts
        self.verified = verified  # the arm those drafts were made by
        self.lag = lag  # steps without drafts that came before those
        self.scheduled = scheduled  # seconds on the clock
        self.next = verified  # the arm drafting in it
        self.woke = False  # whether drafting is taken up again in it


class Lengths:
    """Asks the policy for a length in every step, and tells it what came of the one before.

    A draft is made at the end of one step and verified in the next, so a round spans two steps. It is told with the
    seconds of the second, less the drafting done in it for its successor, plus the drafting of the first.
    """

    def __init__(
        self, policy: Policy, arms: tuple[Arm, ...], meter: Meter, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.policy, self.arms, self.meter, self.clock = policy, arms, meter, clock
        self.costs = StepLatency()
        self.drafter = arms[-1].drafter
        self._known: set[int] = set()  # batch sizes something was learned at
        self._chose = policy
        self.arm = arms[0]  # off: nothing has been drafted before the first step
        self.tokens = 0  # emitted since the engine started
        self._resting = 0  # steps since something was last drafted
        self._lag = 0  # the same when drafting was last taken up, until that round is planned
        self._ended = 0.0  # when the last step ended, if requests were left to go on with
        self._decision = 0.0  # seconds spent here since the last step was told

    def plan(
        self, batch: int, verifying: int, drafted: int, mixed: bool, by: Arm | None = None, *, off: bool = False
    ) -> Step:
        """The step now being scheduled; ``Step.next.length`` is how much to draft in it for the step after.

        batch: requests that will decode in the next step; verifying: those that decode in this one; by: the arm that
        drafted what is verified, where that is not the one chosen last; off: nothing may be drafted.
        """
        began = self.clock()
        step = Step(self._chose, verifying, drafted, mixed, by or self.arm, self._lag, began)
        self._lag = 0
        self._chose = self.policy
        if off or (mixed and batch not in self._known):
            # Nothing has been learned at this load, and nothing is while prompts keep coming: trying lengths out would
            # only cost, where it costs most.
            step.next = self.arms[0]
        elif batch:
            lag = {self.drafter: self._resting} if self._resting else {}
            step.next = self.policy.choose(Context(self.arms, batch, self.tokens, self.arm, lag))
            step.woke = bool(step.next.length and self._resting)
            self._lag = self._resting if step.woke else 0
        self._resting = 0 if step.next.length else self._resting + 1
        self.arm = step.next
        self._decision += self.clock() - began
        return step

    def settle(self, step: Step, accepted: int, emitted: int, *, busy: bool) -> None:
        """The step is over; ``busy``: requests are left, so the next one follows at once."""
        now = self.clock()
        # From one step's end to the next's, so that what lies between them counts; an idle engine starts anew.
        began = self._ended if self._ended and step.scheduled - self._ended < PAUSE else step.scheduled
        seconds = now - began
        self._ended = now if busy else 0.0
        self.tokens += emitted
        clean = not step.mixed and step.batch > 0 and emitted > 0
        arm, batch = step.verified, step.batch
        if clean:
            self._known.add(batch)
            self.costs.observe(batch, arm.length, step.next.length, seconds, resumed=step.woke)
            verify = max(1e-9, seconds - self.costs.drafting(batch, step.next.length))
            draft = self.costs.drafting(batch, arm.length)
            accepted = min(accepted, step.drafted)
            drafted = min(step.drafted, arm.length * batch)
            if accepted <= drafted and emitted <= accepted + batch:  # else drafts of another step were among these
                lag_seconds = self.costs.switching if step.lag else 0.0
                step.policy.observe(
                    Round(arm, drafted, accepted, emitted, batch, -1, draft, verify, step.lag, lag_seconds)
                )
            self.meter.played(arm, batch, drafted, accepted, emitted, seconds, batch)
        elif batch:
            # counted, but not timed: the prompts' tokens are nobody's
            accepted = min(accepted, step.drafted)
            self.meter.played(arm, batch, step.drafted, accepted, min(emitted, accepted + batch), 0.0, batch)
        switched = step.next is not step.verified
        if step.woke:
            self.meter.switch_cost(self.costs.switching)
        self._decision += self.clock() - now
        self.meter.step(batch, step.next.length, self._decision, mixed=step.mixed, switched=switched)
        self._decision = 0.0
        self.meter.tick()
