"""MetaSD's lemmas and theorems as numbers, with the constants of their proofs.

alpha_i is the mean of 1 - TV of drafter i, N the draft length, mu_i the expected tokens of a round. Regret is in rounds
(Definition 1). Where a printed constant is missing or wrong, the docstring says what is used instead.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from wager.policies.base import expected_tokens

Floats = Sequence[float]
TAIL = 1 + math.pi**2 / 3  # rounds of a suboptimal drafter beyond the logarithm (Lemma 10)


class Moments(NamedTuple):
    """Of one round's reward."""

    mean: float
    variance: float


def block_efficiency(alpha: float, n: int) -> Moments:
    """Lemma 5: N_acc / N for a truncated geometric number of accepted tokens."""
    mean = (expected_tokens(alpha, n) - 1) / n
    inner = 1 - (2 * n + 1) * alpha**n + (2 * n + 1) * alpha ** (n + 1) - alpha ** (2 * n + 1)
    return Moments(mean, alpha * inner / (n * (1 - alpha)) ** 2)


def block_divergence(alpha: float, n: int, concentration: float) -> Moments:
    """The mean of N draws of 1 - TV from a Beta distribution: within Lemma 6, which bounds its variance by 1/(4N)."""
    return Moments(alpha, alpha * (1 - alpha) / (1 + concentration) / n)


def signal(ours: Moments, best: Moments) -> float:
    """Equation 6: how well a reward tells a drafter from the best one."""
    return (best.mean - ours.mean) ** 2 / max(ours.variance, best.variance)


def signal_condition(best: float, n: int) -> float:
    """Theorem 3's condition on the best drafter, h_n(alpha) - g_n(alpha)^2 / (4 n alpha): it holds from 0 on."""
    g = sum(s * best ** (s - 1) for s in range(1, n + 1))
    h = sum(s * (best ** (s - 1) - best ** (2 * n - s)) for s in range(1, n + 1))
    return h - g * g / (4 * n * best)


def gaps(means: Floats) -> list[float]:
    """Of every drafter but the best, how far its mean is below."""
    return [max(means) - mean for mean in means if mean < max(means)]


def ucb_bound(means: Floats, tokens: float, *, squared_scale: float, tail: float = TAIL) -> float:
    """Rounds that UCB with the bonus scale * sqrt(2 ln t / n_i) loses, if no deviation is likelier than t^-4.

    Lemma 13: regret is at most the number of rounds of suboptimal drafters. Lemma 10: of each there are at most
    8 scale^2 ln(tau) / gap^2 + 1 + pi^2/3 in tau rounds, and tau is at most the number of tokens. This avoids Lemma 12,
    whose upper bound (B + 1)/mu is wrong wherever mu > 2 (its base case B = 1 gives 2/mu < 1 round), and the term
    ln ln(sum 1/gap^2) with its unnamed constants, which the printed proof loses a factor of on the way.
    """
    return sum(8 * squared_scale * math.log(tokens) / gap**2 + tail for gap in gaps(means))


def theorem_2(alpha: Floats, n: int, tokens: float) -> float:
    """MetaSD-UCB on block divergence, with beta = 1/sqrt(N), which the statement leaves out and the proof uses."""
    return ucb_bound(alpha, tokens, squared_scale=1 / n)


def theorem_4(means: Floats, tokens: float) -> float:
    """Any reward in [0, 1] that ranks the drafters as alpha does, with beta = 1; ``means`` are of that reward."""
    return ucb_bound(means, tokens, squared_scale=1.0)


def theorem_5_beta(alpha: Floats, n: int) -> float:
    """The beta Theorem 5 is about, sqrt(4 Var + 2): it takes the variance of the best drafter's block efficiency."""
    return math.sqrt(4 * block_efficiency(max(alpha), n).variance + 2)


def theorem_5(alpha: Floats, n: int, tokens: float) -> float:
    """MetaSD-UCB on block efficiency by Bernstein's inequality; Var[r_i] is largest for the best drafter."""
    means = [block_efficiency(a, n).mean for a in alpha]
    return ucb_bound(means, tokens, squared_scale=theorem_5_beta(alpha, n) ** 2)


def theorem_6(alpha: Floats, n: int, mean_tokens: float) -> float:
    """Theorem 2 for a text whose length is random: the logarithm of its mean, by Jensen's inequality."""
    return theorem_2(alpha, n, mean_tokens)


def theorem_7(alpha: Floats, n: int, tokens: float, beta: float) -> float:
    """Theorem 2 with the bonus multiplied by ``beta`` > 1/2: the policy's beta is ``beta`` / sqrt(N)."""
    above, below = 2 * beta**2 + 0.5, 2 * beta**2 - 0.5
    return ucb_bound(alpha, tokens, squared_scale=beta**2 / n, tail=1 + 4 / math.log(above) * (above / below) ** 2)


def hardness(alpha: Floats) -> float:
    """H_2 = max i / gap_i^2 over drafters from the second best on (Karnin et al. 2013)."""
    return max(i / gap**2 for i, gap in enumerate(sorted(gaps(alpha)), 2))


def theorem_8_c(alpha: Floats) -> float:
    """The least c in B_0 = c ln B for which Theorem 8's proof gives O(ln B): 8 H_2 log2 K, which takes the gaps."""
    return 8 * hardness(alpha) * math.log2(len(alpha))


def theorem_8(alpha: Floats, n: int, tokens: float, c: float, lag_rounds: float) -> float:
    """PETC with B_0 = c ln B rounds of Sequential Halving: rounds lost, and paid for switching.

    Exploration loses at most B_0 rounds; a wrong drafter, kept with probability 3 log2 K exp(-B_0 / (8 H_2 log2 K)), at
    most B; the K drafters together catch up on at most K times the (N + 1) B_0 tokens of the exploration, each
    ``lag_rounds`` long. The paper writes the last term lambda B_0, and counts B_0 in tokens in Algorithm 4 and in
    rounds in Algorithm 5.
    """
    explored = math.ceil(c * math.log(tokens))
    wrong = 3 * math.log2(len(alpha)) * math.exp(-explored / (8 * hardness(alpha) * math.log2(len(alpha))))
    return explored + tokens * min(1.0, wrong) + lag_rounds * len(alpha) * (n + 1) * explored


def sliding_bound(alpha: Sequence[Floats], n: int, tokens: float, changes: int, window: int) -> float:
    """Rounds that UCB over a sliding window loses where alpha changes; MetaSD has no theorem here (section H.2).

    In the manner of Garivier and Moulines (2011), whom it cites, for its own bonus sqrt(2 ln t / (N n_i)): a window of
    one phase holds at most 8 ln B / (N gap^2) + 1 rounds of a suboptimal drafter, but for deviations, of which there
    are pi^2/3 (a mean over any stretch of a drafter's rounds); every change spoils a window, and the round it is in.
    """
    least = [min(max(phase) - phase[i] or math.inf for phase in alpha) for i in range(len(alpha[0]))]
    windows = math.ceil(tokens / window)
    pulls = sum(windows * (8 * math.log(tokens) / (n * gap**2) + 1) + TAIL - 1 for gap in least if gap < math.inf)
    return pulls + changes * (window + 1)
