"""Every hand-set number of `auto`, with its unit and the reason for its value."""

from dataclasses import dataclass, field, fields
from math import sqrt
from typing import Any


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """The constants of `auto`; docs/auto.md has what replay says of half and double."""

    # Acceptance
    learning_rate: float = 0.3  # step of AdaGrad, in log odds; a few dozen tokens settle a weight
    shrinkage: float = 8.0  # tokens of evidence that what is known otherwise is worth: a mean, or no gain at all
    change_deviations: float = 3.2  # standard deviations that count as a change; by chance once in some 700 checks
    kind_share: float = 0.5  # of what a token tells of its text's kind that counts: tokens of one text are alike
    drafter_share: float = 0.25  # and of how its drafter differs from others with cards, by so many more tokens

    # Latency
    token_share: float = 0.05  # of plain decoding's seconds that one more token takes, before it was measured
    outlier: float = 4.0  # usual errors beyond which a round is an outlier
    repeats: int = 3  # rounds that settle a question: outliers in a row, first steps of each kind, first drafts

    # Averages
    round_memory: float = 100.0  # rounds or tokens: everything that lasts longer than a text

    # The bound on a text's loss
    allowed_tokens: float = 3.0  # plain tokens that a text may fall behind plain decoding ...
    allowed_share: float = 0.02  # ... and this share of its tokens

    # Exploration
    draw_width: float = 0.5  # width of the Thompson draws of a drafter with a card, as a share of its deviation
    value_credit: float = 0.6  # of its cost that a drafter has to bring; it also tells something of the others

    # What follows from round_memory: replay cannot tell half or double of these.
    short_memory: float = field(init=False)  # rounds or tokens: acceptance in a text, latency now, recent changes
    count_memory: float = field(init=False)  # tokens of evidence on acceptance; older ones fade, to learn what changes
    long_count_memory: float = field(init=False)  # the same where a share of each counts: what tells drafters apart
    probe_interval: int = field(init=False)  # rounds without plain decoding, or of nothing else, until one is timed
    trial_share: float = field(init=False)  # of rounds, steps or tokens that may be spent on learning
    card_prior_tokens: float = field(init=False)  # evidence, at each position, that a card's proportions are worth
    draw_memory: float = field(init=False)  # choices over which a Thompson draw fades into another

    def __post_init__(self) -> None:
        memory, interval = self.round_memory, round(2 * self.round_memory)
        derived = {"short_memory": sqrt(memory), "count_memory": sqrt(memory) * memory}
        derived["long_count_memory"] = derived["count_memory"] / self.drafter_share
        derived |= {"card_prior_tokens": 0.5 * memory, "draw_memory": sqrt(memory)}
        for name, value in {**derived, "probe_interval": interval, "trial_share": 1.0 / interval}.items():
            object.__setattr__(self, name, value)


HAND_SET: dict[str, Any] = {own.name: own.default for own in fields(AutoConfig) if own.init}  # name -> value
