"""Rewards: one number made from a round.

Every function takes the round and ``longest``, the largest length among the policy's arms (BanditSpec's L,
MetaSD's N_max), so that arms of different length stay comparable.
"""

from collections.abc import Callable
from dataclasses import dataclass

from wager.core.round import Round


def tokens(round: Round, longest: int) -> float:
    """Tokens accepted per request, the bonus token counted: BanditSpec's Y in [1, L+1]."""
    return round.accepted / round.batch + 1


def block_efficiency(round: Round, longest: int) -> float:
    """Share of the longest draft that was accepted: MetaSD's BE = N_acc / N_max."""
    return round.accepted / (longest * round.batch) if longest else 0.0


def block_divergence(round: Round, longest: int) -> float:
    """Mean of 1 - TV over N_max positions: MetaSD's BD (eq. 4).

    A chain that is shorter than the longest counts 0 at the positions it lacks. Of a tree, which is cut where it is
    unlikely, the positions of one path count, as if the tree were as deep there. BE stands in where nobody measures TV:
    on a server, in recordings without it, and in simulated serving.
    """
    if not round.overlap:
        return block_efficiency(round, longest)
    total = sum(round.overlap)
    return (total / len(round.overlap) * round.arm.length if round.arm.tree else total) / longest


def acceptance(round: Round, longest: int) -> float:
    """Share of the drafted tokens that was accepted (on-the-fly adaptation, Alg. 2, line 18)."""
    return round.accepted / round.drafted if round.drafted else 0.0


def goodput(round: Round, longest: int) -> float:
    """Tokens emitted per second."""
    return round.emitted / timed(round.seconds)


def timed(seconds: float) -> float:
    """Seconds to divide by: a round that was not timed (under a nanosecond) counts as one second."""
    return seconds if seconds > 1e-9 else 1.0


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward with the range it can take."""

    of: Callable[[Round, int], float]
    floor: float = 0.0
    spread: Callable[[int], float] | None = lambda longest: 1.0  # range for a given longest; None: unknown beforehand


REWARDS: dict[str, Reward] = {
    "tokens": Reward(tokens, floor=1.0, spread=lambda longest: float(max(longest, 1))),
    "be": Reward(block_efficiency),
    "bd": Reward(block_divergence),
    "acceptance": Reward(acceptance),
    "goodput": Reward(goodput, spread=None),
}
