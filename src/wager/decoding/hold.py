"""A choice that stands for a few rounds without asking the policy: where asking takes too much of a round, and where
drafts like the last one are begun ahead, so that the first of another kind take longer than those after them."""

from wager.core import Arm
from wager.policies import Policy

DECIDING = 0.01  # of a round's seconds that asking the policy may take, and learning from a round that it was asked in
LONGEST = 15  # rounds
PATIENCE = 3  # times in a row that an arm is chosen before it is held: at first all are only tried
ATTEMPT = 3  # rounds more of an arm whose draft was not begun ahead; those after it are


class Hold:
    """For how many rounds a choice stands, from text to text of one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.arm: Arm | None = None  # chosen last
        self.in_a_row = 0  # times that it was
        self.before: tuple[Arm | None, int] = None, 0  # what was chosen before it, and how often
        self.left = 0  # rounds

    def begin(self) -> None:
        """A new text: nothing is held until its first choice; how often an arm was chosen in a row goes on counting."""
        self.left = 0

    def take(self) -> Arm | None:
        """The arm of the next round, if it is held."""
        if not self.left:
            return None
        self.left -= 1
        return self.arm

    def chosen(self, arm: Arm, deciding: float, played: float, learning: float = 0.0, *, begun: bool = True) -> None:
        """The policy chose this arm in so many seconds, the round took so many, and so did learning from it, which a
        device hides in rounds for which the choice stands; ``begun``: if its drafts are begun ahead, this one was."""
        if arm == self.arm:
            self.in_a_row += 1
        else:  # another arm that was chosen but once leaves things as they were
            known, times = self.before
            self.before = self.arm, self.in_a_row
            self.arm, self.in_a_row = arm, times if arm == known and self.in_a_row == 1 else 1
        if played <= 0.0:
            return
        longest = min(LONGEST, (1 << max(0, self.in_a_row - PATIENCE)) - 1)
        rounds = max(min(longest, int((deciding + learning) / (DECIDING * played))), 0 if begun else ATTEMPT)
        if rounds:
            self.left = min(rounds, self.policy.may_stand(deciding))
