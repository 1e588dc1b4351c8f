"""Acceptance of drafters without hints, slowly: by their counts and their cards, from what `auto` has shown of them."""

import math

import numpy as np

from wager.policies.auto import Auto


def learned(told: float, compared: list[tuple[float, float]]) -> float:
    """A variance that counts as ten comparisons, with more of them: the variance by each, and what of it is chance."""
    shares = [10.0, *((1 + 2 * chance) ** -2 for _, chance in compared)]
    return float(np.average([told, *(seen for seen, _ in compared)], weights=shares))


SHARE = 0.25  # of a token, where drafters are compared that were run in other texts


class SlowCards:
    """The part of the reference of `auto` that knows of cards."""

    known: Auto

    def deviations(self, key: str) -> tuple[float, float, float]:
        """Of a drafter's or tree's log odds: its own, and where there is a card, those of all the drafter's, and of
        all drafters."""
        counts = self.known.positional.counts[key]
        rate = (sum(counts.kept) + 1) / (sum(counts.tried) + 2)
        if not counts.card:
            return 1 / math.sqrt((sum(counts.tried) + 2) * rate * (1 - rate)), 0.0, 0.0
        tokens = self.card_prior_tokens(key)
        own = 1 / math.sqrt((sum(counts.tried) + tokens * len(counts.card)) * rate * (1 - rate))
        _, covariance = self.moved()
        at = 1 + list(self.known.positional.shifts).index(key.partition("@")[0])
        common = (covariance[0, 0] + covariance[at, 0]) / math.sqrt(covariance[0, 0])
        whole = covariance[0, 0] + 2 * covariance[at, 0] + covariance[at, at]
        return own, math.sqrt(max(0.0, whole - common**2)), common

    def variance(self) -> float:
        """Of what is not common to the distances of drafters from their cards: as these tell, or as it shows."""
        shifts = list(self.known.positional.shifts.values())
        told = max(self.known.positional.between_drafter_variance, 0.004)
        best = max(shifts, key=lambda shift: shift.long_information)
        compared = []
        for other in shifts:
            if other is not best and other.long_information:
                chance = 1 / other.long_information + 1 / best.long_information
                move = other.long_evidence / other.long_information - best.long_evidence / best.long_information
                compared.append((0.5 * (move**2 - chance), chance))
        return max(told, learned(told, compared))

    def moved(self) -> tuple[np.ndarray, np.ndarray]:
        """What all drafters' distances from their cards have in common, by the latest tokens, and the rest of each, by
        more of them: means, and the covariance by the latest."""
        shifts = list(self.known.positional.shifts.values())
        means, covariance = self.conditioned([(shift.evidence, shift.information) for shift in shifts])
        rest, _ = self.conditioned([(shift.long_evidence, shift.long_information) for shift in shifts])
        return np.array([means[0], *rest[1:]]), covariance

    def conditioned(self, shown: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
        """The same by Gaussian conditioning on what each drafter has shown of the sum."""
        prior = np.diag([4.0] + [1 / self.variance() if len(shown) > 1 else 1e12] * len(shown))
        seen = np.zeros(1 + len(shown))
        for at, (evidence, information) in enumerate(shown, 1):
            both = np.zeros(1 + len(shown))
            both[[0, at]] = 1.0
            prior += information * np.outer(both, both)
            seen += evidence * both
        covariance = np.linalg.inv(prior)
        return covariance @ seen, covariance

    def distance(self, name: str) -> float:
        """Of a drafter's log odds from those on its card."""
        shifts = self.known.positional.shifts
        means, _ = self.moved()
        return float(shifts[name].start + means[0] + means[1 + list(shifts).index(name)])

    def share(self) -> float:
        """Of a token that counts at a position."""
        return SHARE if len(self.known.positional.shifts) > 1 else 1.0

    def card_prior_tokens(self, key: str) -> float:
        """Tokens at each position that the proportions on a card are worth."""
        if len(self.known.positional.shifts) < 2:
            return 50.0
        counts, compared = self.known.positional.counts[key], []
        for k, n, p in zip(counts.kept, counts.tried, self.by_card(key), strict=True):
            if n:
                each = 1 / (n * p * (1 - p))
                chance = each / self.share()
                compared.append((((k - n * p) * each) ** 2 - chance, chance))
        return max(50.0, 4 / max(0.004, learned(self.variance(), compared)))

    def by_card(self, key: str) -> list[float]:
        """Chance at each position: by the card, moved as far as the drafter is from it."""
        counts, moved = self.known.positional.counts[key], math.exp(self.distance(key.partition("@")[0]))
        listed = [counts.card[min(j, len(counts.card) - 1)] * moved for j in range(len(counts.tried))]
        return [x / (1 + x) for x in listed]

    def odds(self, key: str, length: int) -> list[float]:
        """Of acceptance at each position: by the counts, and by the card, moved as far as the drafter's others are, or
        else by the rate over all positions."""
        counts = self.known.positional.of(key, length)
        rate = (sum(counts.kept) + 1) / (sum(counts.tried) + 2)
        expected, tokens, share = [rate] * len(counts.tried), 8.0, 1.0
        if counts.card:
            expected, tokens, share = self.by_card(key), self.card_prior_tokens(key), self.share()
        pairs = zip(counts.kept, counts.tried, expected, strict=True)
        return [(share * k + tokens * p) / (share * (n - k) + tokens * (1 - p)) for k, n, p in pairs][:length]
