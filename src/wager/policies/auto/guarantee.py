"""The bound on what a text may lose to plain decoding: a ledger in plain tokens, and what it still allows.

After rounds that emitted n tokens in s seconds, plain decoding would be at s / plain tokens. The loss, s / plain - n,
never exceeds ``allowed_tokens + allowed_share * n``: a draft is run only if that holds even with all of it rejected
and with the most seconds that it can take. docs/auto.md has the proof, and what it assumes.
"""

from wager.policies.auto.config import AutoConfig
from wager.policies.base import Learner

NOBODY = -1  # in place of a slot


class LossBound(Learner):
    """What this text has gained and lost so far, in tokens of plain decoding."""

    __slots__ = (
        *("balance", "config", "excess", "kept", "latest", "proposing_cost"),
        *("slot", "slower", "timed", "tokens", "unobserved", "waits"),
    )
    learned = ("tokens", "balance", "excess", "slower", "waits", "timed", "proposing_cost", "latest")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.proposing_cost = self.latest = 0.0  # plain tokens' time that proposals take, and that the latest took
        self.slot = NOBODY  # of the request that the text is of, where a server has several
        self.begin()

    def begin(self) -> None:
        """A new text."""
        self.tokens = 0  # emitted by rounds
        self.balance = 0.0  # gained over plain decoding; negative: lost
        self.excess = 0.0  # what the last draft took beyond all noise: a stall, or else a change
        self.slower = 1.0  # times the most expected that it took
        self.waits = 0  # plain rounds until neither counts any more
        self.timed = False  # whether plain decoding was timed in this text
        self.unobserved = 0.0  # what a round that was not observed yet may have lost
        self.kept = 0.0  # of the room, for idle models to read with

    def belong(self, slot: int) -> None:
        """The text is of the request in this slot: what another one has gained is not its own."""
        if slot != self.slot:
            self.slot = slot
            self.begin()

    def leave(self) -> None:
        """Several requests decode: whoever is left alone of them has gained nothing yet."""
        self.slot = NOBODY

    @property
    def standing(self) -> float:
        """What was gained over plain decoding, less what may turn out to be lost."""
        known = self.balance - self.unobserved
        return known - self.excess if self.waits else known

    @property
    def room(self) -> float:
        """What the next round may lose, proposals included."""
        config = self.config
        return config.allowed_tokens + config.allowed_share * self.tokens + self.standing

    @property
    def draft_room(self) -> float:
        """What the next round may lose by its draft."""
        return self.room - self.kept

    def trials(self, remaining: int | None) -> float:
        """What the next round may lose though it is not known to pay: a part of the room, and no more than the tokens
        that are still to come can be expected to bring."""
        own = 1.0 + self.config.trial_share * self.tokens + self.standing
        return own if remaining is None else min(own, self.config.allowed_share * remaining)

    def first_trial(self, remaining: int) -> float:
        """The same for a drafter of which hardly anything is known, with what it has to read before it can draft: all
        of the room, or else it would never be tried where prompts are long."""
        return min(self.room, self.config.allowed_share * remaining)

    def reading(self, remaining: int | None) -> float:
        """What idle models may take for reading: one half of the room, so that a draft can still follow from what they
        tell, or what was kept for them, and no more than the tokens that are still to come can be expected to bring."""
        return min(max(0.5 * self.room, self.kept), self.readable(remaining))

    def readable(self, remaining: int | None) -> float:
        """What idle models may take for reading if everything else does without."""
        return self.room if remaining is None else min(self.room, self.config.allowed_share * remaining)

    def proposed(self, cost: float) -> None:
        """Proposals took so many plain tokens' time. The lesser of two times in a row counts: one may be a stall."""
        self.proposing_cost, self.latest = min(cost, self.latest or cost), cost

    def drafted(self, emitted: int, seconds: float, most: float, plain: float) -> None:
        """A round with a draft took so long, at ``most`` with all noise, where a plain one takes ``plain``.

        What it took beyond that is a stall, which would have struck plain decoding as well, unless the next draft takes
        too long too: then it is charged.
        """
        excess = max(0.0, seconds - most) / plain
        self.tokens += emitted
        self.balance += emitted - min(seconds, most) / plain - (self.excess if excess else 0.0)
        self.excess, self.slower = excess, max(1.0, seconds / most)
        self.waits = self.config.repeats if excess else 0

    def decoded(self, emitted: int, proposing: float) -> None:
        """A plain round, in which proposals took so many tokens' time."""
        self.tokens += emitted
        self.balance -= proposing
        self.timed = True
        if self.waits:
            self.waits -= 1
            if not self.waits:
                self.slower = 1.0
