"""What a drafter is worth on texts it has not seen: acceptance per position, and tokens a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from wager.training.answers import Text
from wager.training.batches import once
from wager.training.learners import Learner


@dataclass(slots=True)
class Judged:
    """Drafts of one length over many greedy texts, each text walked round by round as decoding would."""

    length: int
    rounds: int = 0
    tokens: int = 0
    reached: list[int] = field(default_factory=list)  # rounds whose draft was right up to each position

    def add(self, accepted: Sequence[int]) -> None:
        """One text, by what a draft from each of its tokens would have had accepted; -1: nothing to draft there."""
        self.reached = self.reached or [0] * self.length
        at = next((i for i, count in enumerate(accepted) if count >= 0), len(accepted))
        while at < len(accepted) and accepted[at] >= 0:
            count = min(accepted[at], self.length)
            self.rounds += 1
            self.tokens += count + 1
            for position in range(count):
                self.reached[position] += 1
            at += count + 1

    @property
    def mat(self) -> float:
        """Mean tokens a round, the target's own included."""
        return self.tokens / max(1, self.rounds)

    @property
    def acceptance(self) -> list[float]:
        """Per position: of the drafts that came so far, the share that is right there too."""
        before = [self.rounds, *self.reached]
        return [r / b if b else 0.0 for r, b in zip(self.reached, before, strict=False)]


def judge(
    learner: Learner, texts: Sequence[Text], tokens: int, device: torch.device, lengths: Sequence[int]
) -> list[Judged]:
    """The drafter on these greedy texts, once for every length."""
    found = [Judged(length) for length in lengths]
    for batch in once(texts, tokens):
        for row in learner.accepted(batch.to(device)).tolist():
            for one in found:
                one.add(row)
    return found
