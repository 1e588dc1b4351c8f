"""One draft length a step for the whole batch: the scheduler hook's clock and counters around a policy."""

from collections.abc import Callable
from time import perf_counter

from wager.core import Arm
from wager.policies import Policy
from wager.policies.steps import Step, StepRounds
from wager.vllm.metrics import Meter

PAUSE = 1.0  # seconds between two steps beyond which the engine was idle
DECIDING = 0.01  # of a step's seconds that deciding and learning may take; where they take more, a choice is held
LONGEST_HOLD = 15  # steps
LONGEST_OFF = 4 * LONGEST_HOLD  # the same where nothing is drafted: nothing can be learned but that steps take longer
LOOK = 0.01  # seconds of a hold between two looks at whether metrics are to be written


class Lengths:
    """Times steps from one end to the next, lets the policy choose, and counts."""

    def __init__(
        self,
        policy: Policy,
        arms: tuple[Arm, ...],
        meter: Meter,
        *,
        overlap: bool = False,
        dear: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.rounds = StepRounds(policy, arms, overlap=overlap, dear=dear)
        self.meter, self.clock = meter, clock
        self._ended = 0.0  # when the last step ended, if requests were left to go on with
        self._decision = 0.0  # seconds spent here since the last step was counted
        self._choosing = 0.0  # seconds of the last choice
        self._longest = 0  # steps a choice may be held for, by what deciding and learning took last
        self._repeated = 0  # times in a row that the policy chose the same, trials left out
        self._chosen = arms[0]  # what that was
        self._before = arms[0], 0  # what was chosen before that, and how often
        self._hold = 0  # steps that its choice is still held for
        self._within: int | None = None  # most tokens that the last choice was allowed, None for any number
        self._arm = arms[0]  # that is held
        self._plain: Step | None = None  # the last step, if it was held and neither drafted nor verified drafts
        self._repeats = 0  # steps like it since, of which the rounds have not been told
        self._look = 0.0  # when to look at the meter again
        # of the hold, not counted yet: steps, those that prefill, requests, tokens and seconds as in Counts, all tokens
        self._counts: list[float] = [0] * 8

    def plan(
        self, batch: int, verifying: int, drafted: int, mixed: bool, drafted_by: Arm | None = None,
        *, off: bool = False, longest: int | None = None, cut: bool = False,
    ) -> tuple[Step, float]:  # fmt: skip
        """As `StepRounds.plan`, or `hold` while a choice is held, and when it was scheduled."""
        if self._repeats:
            self.rounds.repeat(self._repeats)
            self._repeats = 0
        if self._hold > 0 and drafted_by is None and not off and longest == self._within:
            self._hold -= 1
            held = self.rounds.hold(batch, verifying, drafted, mixed)
            if held is not None:
                self._plain = None if mixed or drafted or held.next_arm.length else held
                return held, 0.0
        self._plain, self._within = None, longest
        began = self.clock()
        step = self.rounds.plan(batch, verifying, drafted, mixed, drafted_by, off=off, longest=longest, cut=cut)
        self._choosing = self.clock() - began
        self._decision += self._choosing
        # Right after a change every step tells something new, but not where a probe is over, or a few steps of another.
        chosen, trying = step.next_arm, self.rounds.trying
        if chosen is self._chosen:
            self._repeated += not mixed  # beside a prefill the choice may be none
        elif not trying:
            (other, times), self._before = self._before, (self._chosen, self._repeated)
            few = chosen is other and self._repeated < min(times, LONGEST_HOLD)
            self._repeated, self._chosen = times if few else 0, chosen
        asked = mixed or trying or not self.rounds.policy.holds
        asked = asked or (chosen.length > 0 and not self.rounds.timed(batch, chosen.drafter))
        longest = min(LONGEST_HOLD, self._longest) if chosen.length else min(LONGEST_OFF, 4 * self._longest)
        self._hold = 0 if asked else min(longest, self._repeated)
        return step, began

    def repeat(self, batch: int) -> Step | None:
        """The step now being scheduled, in which so many requests decode and nothing else, if it is held like the one
        before it and that drafted nothing; the quick way of `plan`."""
        step = self._plain
        if step is None or self._hold <= 0 or step.batch != batch or self.rounds.policy is not step.policy:
            return None
        self._hold -= 1
        self._repeats += 1
        return step

    def count(self, step: Step, accepted: int, emitted: int, busy: bool, timed: bool) -> None:
        """A step of a hold is over; metrics get several at once: at the end of the hold, when they are written."""
        now = self.clock()
        if step.arm is not self._arm:
            self._count_held()
            self._arm = step.arm
        counts = self._counts
        counts[0] += 1
        counts[2] += step.batch
        counts[3] += step.drafted
        counts[4] += accepted
        counts[7] += emitted
        if step.mixed:
            emitted = min(emitted, accepted + step.batch)  # the first token of a request belongs to no round
            counts[1] += 1
        elif timed and now - self._ended < PAUSE:
            counts[6] += now - self._ended
        counts[5] += emitted
        self._ended = now if busy else 0.0
        if busy:
            if now < self._look:
                return
            self._look = now + LOOK
            if not self.meter.due:
                return
        self._count_held()
        self._end_step(busy)

    def _end_step(self, busy: bool) -> None:
        """All is counted. After the last step before a pause it is written at once: vLLM's own counters have it, too,
        when the last request is answered."""
        self.meter.tick()
        if not busy:
            self.meter.flush()

    def _count_held(self) -> None:
        steps, mixed, requests, drafted, accepted, emitted, seconds, tokens = self._counts
        if steps:
            self.rounds.tokens += int(tokens)
            batch = max(1, round(requests / steps))
            self.meter.played(self._arm, requests, drafted, accepted, emitted, seconds, batch)
            self.meter.step(requests, self._arm.length, 0.0, tokens=tokens, steps=steps, mixed=mixed)
            self._counts = [0] * 8

    def finish(
        self, step: Step, scheduled: float, accepted: int, emitted: int, survivors: tuple[int, ...] = (),
        *, busy: bool, timed: bool = True,
    ) -> None:  # fmt: skip
        """The step is over; survivors as in Round; ``busy``: requests are left, so the next one follows at once;
        ``timed``: its seconds are its own."""
        if step.held:
            self.count(step, accepted, emitted, busy, timed)
            return
        step.mixed = step.mixed or not timed
        now = self.clock()
        self._count_held()
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
        if not step.mixed:
            self._longest = int((self._choosing + took) / (DECIDING * max(1e-9, now - began)))
        self.meter.step(step.batch, step.length, self._decision, tokens=emitted, mixed=step.mixed, switched=switched)
        self._decision = 0.0
        self._end_step(busy)
