"""Every hand-set number of `auto`, with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """The constants of `auto`; docs/auto.md has what replay says of half and double, as far as measured."""

    # Acceptance of drafters whose proposals are known beforehand: logistic regression
    learning_rate: float = 0.3  # step of AdaGrad, in log odds; a few dozen tokens settle a weight
    text_memory: float = 10.0  # tokens in the acceptance average of one text: more than noise, less than a text
    max_acceptance: float = 0.99  # probability; no token is certain, so no draft grows without bound

    # Acceptance of all drafters: evidence, and the counts by position of those that say nothing beforehand
    count_memory: float = 1000.0  # tokens of evidence; older ones fade, so that what changes is learned anew
    shrinkage: float = 8.0  # tokens of evidence that a drafter's mean is worth at every position
    change_memory: float = 20.0  # rounds that are compared with all before them, to notice a change
    change_deviations: float = 3.2  # standard deviations that count as a change; by chance once in some 700 checks

    # Latency
    token_share: float = 0.05  # of plain decoding's seconds that one more token takes, before it was measured
    latency_prior: float = 0.5  # rounds that such a guess is worth
    latency_drift: float = 0.1  # weight of the last round in the scale that all widths share
    round_memory: float = 50.0  # rounds over which seconds, and the value of a drafter's proposals, are averaged
    long_memory: float = 100.0  # rounds in the reference rate, and tokens in the average a new text starts from
    outlier: float = 4.0  # usual errors beyond which a round is an outlier
    repeats: int = 3  # rounds that settle a question: outliers in a row, first steps of each kind, first drafts

    # Exploration
    allowance: float = 1.5  # tokens that a text may fall behind plain decoding by drafts that are not known to pay
    allowance_share: float = 0.01  # of its tokens, in addition
    probe_interval: int = 250  # rounds without plain decoding, or of nothing else, after which one is timed
    max_stay: int = 32  # rounds that the cost of catching up is spread over, at most
    max_backoff: int = 64  # rounds a drafter that does not pay is left out, at most
    value_credit: float = 0.6  # of its cost that a drafter has to bring; it also tells something of the others
    negligible_share: float = 0.01  # of plain decoding's seconds: a drafter that takes less is always called
    trial_share: float = 0.005  # of a batch's steps that try another kind of step
