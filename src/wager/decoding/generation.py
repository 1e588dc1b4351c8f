"""What a finished request gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wager.core import Round

PLAIN, BONUS = "plain", "bonus"  # sources of a token that no drafter proposed: a round without a draft, or with one


@dataclass(frozen=True, slots=True)
class Piece:
    """One step's share of a streamed text."""

    text: str  # may be empty where a character is not complete yet
    tokens: tuple[int, ...]
    sources: tuple[str, ...]  # where each token came from: a drafter's name, 'bonus' or 'plain'
    round: Round | None  # None for the token that came out of the prompt's own forward


@dataclass(slots=True)
class Generation:
    """A finished text, and how it came about."""

    text: str
    tokens: list[int]
    sources: list[str]
    prompt_tokens: int
    finish: str  # 'eos', 'stop', 'length' or 'context'
    prefill_seconds: float
    decode_seconds: float
    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of decoding, the prompt's own forward left out."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def mat(self) -> float:
        """Mean tokens emitted per round, bonus token included."""
        return mean_tokens(self.rounds)

    @property
    def shares(self) -> dict[str, float]:
        """Arm -> its share of the rounds, the most used first."""
        counts = Counter(str(r.arm) for r in self.rounds)
        return {arm: count / len(self.rounds) for arm, count in counts.most_common()}

    def summary(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "tokens": len(self.tokens),
            "prompt_tokens": self.prompt_tokens,
            "finish": self.finish,
            "rounds": len(self.rounds),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "mat": round(self.mat, 4),
            "prefill_seconds": round(self.prefill_seconds, 6),
            "decode_seconds": round(self.decode_seconds, 6),
            "arms": {arm: round(share, 4) for arm, share in self.shares.items()},
        }


def mean_tokens(rounds: Sequence[Round]) -> float:
    """Tokens emitted per round; 1 where there was none, as in plain decoding."""
    return sum(r.emitted for r in rounds) / len(rounds) if rounds else 1.0
