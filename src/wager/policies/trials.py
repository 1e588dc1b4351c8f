"""When an engine plays the arm of a cheaper drafter in the place of a dearer one that includes it.

Where a model and matching draft together, no round of theirs tells what matching would have brought alone, nor what the
model costs. So now and then a few steps in a row are matching's: soon at a new load and after acceptance has risen, the
more rarely the more often the policy has not taken it up.
"""

from collections.abc import Sequence

from wager.core import Arm

BURST = 3  # steps in a row: catching up afterwards is paid once
LONG_BURST = 5 * BURST  # while it brings nearly as many tokens, to convince a policy that knew otherwise
NEARLY = 0.8  # of the tokens
FIRST, LONGEST = 24, 768  # steps between two trials; twice as many after each
RISE = 1.25  # times as many tokens a round as at the last trial: what is written now may be another kind of text
MEMORY = 100  # rounds of one request, of that mean, and at least a tenth as many steps


class CheaperTrials:
    """Trials at one load: of the last drafter's arms each has one of another drafter that is as long."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        drafter = arms[-1].drafter
        others = {arm.length: arm for arm in arms[::-1] if arm.drafter != drafter and arm.length}
        self.cheaper = {arm: others[arm.length] for arm in arms if arm.drafter == drafter and arm.length in others}
        self.interval = FIRST
        self.steps = 0  # since the last trial
        self._left = 0  # steps that this trial lasts at most
        self._mean = 0.0  # tokens a round of a request with the dearer drafter, of late
        self._mean_then = 0.0  # at the last trial
        self._noted = 0  # rounds of that mean since the last trial
        self._tried: list[float] = []  # tokens of the rounds of this trial

    def play(self, arm: Arm) -> Arm:
        """The arm to play where the policy has chosen this one."""
        other = self.cheaper.get(arm)
        if other is None:
            if arm.length:  # it is taken up
                self.interval, self.steps, self._left = FIRST, 0, 0
            return arm
        if self._left:
            self._left -= 1
            if self._left > LONG_BURST - BURST or sum(self._tried) > NEARLY * self._mean * len(self._tried):
                return other
            self._left = 0
        self.steps += 1
        rise = self._mean > RISE * self._mean_then > 0.0 and self._noted >= MEMORY / 10
        if self.steps < self.interval and not rise:
            return arm
        self.interval = FIRST if rise else min(LONGEST, 2 * self.interval)
        self.steps, self._left, self._mean_then, self._noted = 0, LONG_BURST, self._mean, 0
        self._tried.clear()
        return other

    def note(self, arm: Arm, tokens: float, batch: int) -> None:
        """A round brought so many tokens for each of the requests."""
        if arm in self.cheaper:
            self._noted += 1
            share = min(10.0, max(1.0, batch)) / MEMORY
            self._mean += (tokens - self._mean) * share if self._mean else tokens
        elif arm.length and self._left:
            self._tried.append(tokens)
