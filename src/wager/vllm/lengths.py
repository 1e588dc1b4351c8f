"""One draft length a step for the whole batch: the scheduler hook's clock and counters around a policy."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from wager.core import Arm
from wager.policies import Policy
from wager.policies.steps import Step, StepRounds
from wager.vllm.metrics import Meter

PAUSE = 1.0  # seconds between two steps beyond which the engine was idle
DECIDING = 0.01  # of a step's seconds that deciding and learning may take; where they take more, a choice is held
LONGEST_HOLD = 7  # steps


class Lengths:
    """Times steps from one end to the next, lets the policy choose, and counts."""

    def __init__(
        self,
        policy: Policy,
        arms: tuple[Arm, ...],
        meter: Meter,
        *,
        overlap: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.rounds = StepRounds(policy, arms, overlap=overlap)
        self.meter, self.clock = meter, clock
        self._ended = 0.0  # when the last step ended, if requests were left to go on with
        self._decision = 0.0  # seconds spent here since the last step was counted
        self._choosing = 0.0  # seconds of the last choice
        self._hold = 0  # steps that it may be kept for

    def plan(self, *given: Any, **named: Any) -> tuple[Step, float]:
        """As `StepRounds.plan`, and when it was scheduled."""
        began = self.clock()
        step = self.rounds.plan(*given, hold=self._hold > 0, **named)
        took = self.clock() - began
        if step.held:
            self._hold -= 1
        else:
            self._choosing, self._hold = took, 0
        self._decision += took
        return step, began

    def finish(
        self, step: Step, scheduled: float, accepted: int, emitted: int, survivors: tuple[int, ...] = (), *, busy: bool
    ) -> None:
        """The step is over; survivors as in Round; ``busy``: requests are left, so the next one follows at once."""
        now = self.clock()
        # From one step's end to the next's, so that what lies between them counts; an idle engine starts anew.
        began = self._ended if self._ended and scheduled - self._ended < PAUSE else scheduled
        self._ended = now if busy else 0.0
        counts = self.rounds.observe(step, accepted, emitted, now - began, survivors)
        if step.batch:
            self.meter.played(step.arm, step.batch, *counts, step.batch)
        if step.resumed:
            self.meter.switch_cost(self.rounds.latency.switching)
        took = self.clock() - now
        self._decision += took
        switched = step.next_arm is not step.arm
        if self.rounds.policy.holds and not (step.held or step.mixed or switched):
            self._hold = min(LONGEST_HOLD, int((self._choosing + took) / (DECIDING * max(1e-9, now - began))))
        self.meter.step(step.batch, step.length, self._decision, mixed=step.mixed, switched=switched)
        self._decision = 0.0
        self.meter.tick()
