"""Every hand-set number of `auto`, with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt


@dataclass(frozen=True)
class AutoConfig:
    """The constants of `auto`; docs/auto.md has what replay says of half and double."""

    # Acceptance
    learning_rate: float = 0.3  # step of AdaGrad, in log odds; a few dozen tokens settle a weight
    shrinkage: float = 8.0  # tokens of evidence that what is known otherwise is worth: a mean, or no gain at all
    change_deviations: float = 3.2  # standard deviations that count as a change; by chance once in some 700 checks

    # Latency
    token_share: float = 0.05  # of plain decoding's seconds that one more token takes, before it was measured
    outlier: float = 4.0  # usual errors beyond which a round is an outlier
    repeats: int = 3  # rounds that settle a question: outliers in a row, first steps of each kind, first drafts

    # Averages
    round_memory: float = 100.0  # rounds or tokens: everything that lasts longer than a text

    # Exploration
    allowance: float = 1.0  # plain tokens that a text may fall behind by drafts that are not known to pay
    value_credit: float = 0.6  # of its cost that a drafter has to bring; it also tells something of the others

    # What follows from these: replay cannot tell half or double of them.

    @cached_property
    def short_memory(self) -> float:
        """Rounds or tokens: the acceptance average of a text, latency now, recent changes."""
        return sqrt(self.round_memory)

    @cached_property
    def count_memory(self) -> float:
        """Tokens of evidence on acceptance; older ones fade, so that what changes is learned anew."""
        return self.short_memory * self.round_memory

    @cached_property
    def probe_interval(self) -> int:
        """Rounds without plain decoding, or of nothing else, after which one is timed."""
        return round(2 * self.round_memory)

    @cached_property
    def trial_share(self) -> float:
        """Of rounds, steps or tokens that may be spent on learning: one in ``probe_interval``."""
        return 1.0 / self.probe_interval
