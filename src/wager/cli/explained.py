"""`--explain`: what the policy expected of a round, and what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wager.core import Round
from wager.policies import POLICIES
from wager.policies.base import Option, Policy
from wager.policies.registry import parse

if TYPE_CHECKING:
    from wager.decoding.generation import Piece


def check_explains(spec: str) -> None:
    """Refuse a policy that does not say what it expects."""
    name, _ = parse(spec)
    able = [key for key, entry in POLICIES.items() if entry.make.explains]
    if name not in able:
        raise ValueError(
            f"policy {name!r} does not say what it expects of its arms, so --explain cannot; {', '.join(able)} can"
        )


@dataclass(frozen=True, slots=True)
class Explained:
    """One round, and what the policy expected of its two best arms before it."""

    number: int  # from 1
    round: Round
    expected: Option | None  # of the arm that was played; None where the policy weighed it not at all
    other: Option | None  # the best of the others it weighed

    def line(self) -> str:
        """In one line."""
        return explained(self.number, self.round, [each for each in (self.expected, self.other) if each is not None])

    def json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "round": self.number,
            "arm": str(self.round.arm),
            "expected": _figures(self.expected),
            "runner_up": _figures(self.other),
            "accepted": self.round.accepted,
            "drafted": self.round.drafted,
            "seconds": round(self.round.seconds, 6),
        }


class Explaining:
    """Notes what the policy expected of every round that comes by, and passes the piece on."""

    def __init__(self, policy: Policy, then: Callable[[Piece], None] | None = None) -> None:
        self.policy, self.then = policy, then
        self.rounds: list[Explained] = []

    def __call__(self, piece: Piece) -> None:
        if piece.round is not None:
            options = self.policy.options()
            ours = next((option for option in options if option.arm == piece.round.arm), None)
            other = next((option for option in options if option is not ours), None)
            self.rounds.append(Explained(len(self.rounds) + 1, piece.round, ours, other))
        if self.then is not None:
            self.then(piece)


def explained(number: int, played: Round, options: Sequence[Option]) -> str:
    """A round in one line: its arm, what was expected of that and of another, and what came."""
    came = f"{played.accepted}/{played.drafted} accepted, {played.seconds * 1e3:.2f} ms"
    return " | ".join((f"{number:5} {played.arm!s:>18}", *map(_words, options), came))


def _words(option: Option) -> str:
    return f"{option.arm}: {option.tokens:.2f} tokens, {option.seconds * 1e3:.2f} ms, {option.goodput:.1f}/s"


def _figures(option: Option | None) -> dict[str, Any] | None:
    if option is None:
        return None
    return {
        "arm": str(option.arm),
        "tokens": round(option.tokens, 4),
        "seconds": round(option.seconds, 6),
        "tokens_per_second": round(option.goodput, 3),
    }
