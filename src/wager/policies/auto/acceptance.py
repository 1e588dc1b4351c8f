"""How many tokens of a draft are accepted: one logistic model per drafter, for one request and for a batch.

The probability that a proposed token is accepted, given that all before it were, is the logistic function of a sum of
weights: one for the length of the match, one for the drafter's confidence in the token, one for the token's position,
one for each other drafter by whether it proposes the same, and one times the drafter's acceptance average in this
text. All lengths of all requests share these weights. They start at 0 and are learned by AdaGrad from every token
that can be scored.

``cut`` and ``learn`` evaluate it for one request; ``survival`` and ``learn_batch`` do for arrays of shape (K, D, B):
positions, drafters, requests.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import exp, floor, inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wager.core.batch import Batch, Ints
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.features import (
    AGAINST,
    AGREEMENT,
    CONFIDENCE,
    EMA,
    ENDED,
    LEVELS,
    MATCHES,
    POSITION,
    POSITIONS,
    SILENT,
    WITH,
    Proposal,
)
from wager.policies.base import Learner

Floats = NDArray[np.float64]

MIN_REACH = 0.02  # probability of being reached below which the tokens of a proposal are not evaluated
SAMPLE = 64  # requests of a step that are learned from, at least
COLUMNS = LEVELS + 2  # of the lookup table of a batch
UNKNOWN = (-1.0 / LEVELS,)  # as a confidence: the weight before that of the first level
LOST, WON = -2.0, 2.0  # what a rejected and an accepted token add to the acceptance average: about its log odds

_MATCH = np.array(MATCHES)


class Scored(NamedTuple):
    """What `survival` looked up, for `learn_batch`."""

    cells: Ints  # (K, D, B) position in the lookup table
    chances: Floats  # (K, D, B) of acceptance, given that all before were accepted
    codes: Ints | None  # ((D - 1) * D, B) what each drafter says to each other's proposal


class AcceptanceModel(Learner):
    """Acceptance probabilities of the drafters whose proposals are known before a round; each called by its index."""

    learned = ("weights", "squares", "scored", "mean_ema", "text_ema", "slot_ema", "turn")

    def __init__(self, drafters: int, config: AutoConfig) -> None:
        self.drafters, self.config = drafters, config
        self.width = AGREEMENT + 4 * drafters
        self.weights = [[0.0] * self.width for _ in range(drafters)]
        self.squares = [[1.0] * self.width for _ in range(drafters)]  # sums of squared gradients
        self.scored = [0] * drafters  # tokens learned from
        self.mean_ema = [0.0] * drafters  # acceptance average over all texts
        self.text_ema = [0.0] * drafters  # of the one text that is generated now
        self.slot_ema: Floats = np.zeros((16, max(1, drafters)))  # of the requests of a batch, by slot
        self.turn = 0  # which requests of a large batch are learned from

    # --- one request -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new text: its acceptance average starts from that of all texts."""
        self.text_ema = list(self.mean_ema)

    def resume(self, slot: int) -> None:
        """Go on with the text of a batch's slot."""
        if slot < len(self.slot_ema):
            self.text_ema = self.slot_ema[slot, : self.drafters].tolist()

    def suspend(self, slot: int) -> None:
        """Keep the text's acceptance average in a batch's slot."""
        self._grow(slot)
        self.slot_ema[slot, : self.drafters] = self.text_ema

    def trust(self, drafter: int) -> float:
        """What its probabilities are multiplied by in caution: the less it has been scored on, the lower."""
        return self.scored[drafter] / (self.scored[drafter] + self.config.shrinkage)

    def cut(self, proposals: Sequence[Proposal], seconds: Sequence[float], rate: float, cautious: bool = False,
            min_reach: float = MIN_REACH, longest: int = 1 << 30) -> list[tuple[float, int, float]]:  # fmt: skip
        """The prefix of each proposal of largest value: that value, its tokens, and the tokens expected of the round.

        The value is in tokens: those expected, less ``rate`` for every second of verification (``seconds``, by width).
        No prefix is longer than ``longest``.
        """
        found = []
        first, levels, trust = CONFIDENCE + 1, float(LEVELS), 1.0
        weights, text_ema = self.weights, self.text_ema
        for proposal in proposals:
            i, hint, length = proposal.index, proposal.hint, proposal.length
            agreement, hints, sure = proposal.agreement, proposal.hints, hint.confidence
            w, chances, places = weights[i], proposal.chances, proposal.places
            base = w[EMA] * text_ema[i] + w[MATCHES[hint.match] if hint.match < 6 else 5]
            # What another drafter says changes once along a proposal: where it differs, or ends.
            steps = [0.0] * length
            for name, silent in proposal.others:
                common = agreement.get(name)
                if common:
                    alike = w[silent + WITH]
                    base += alike
                    if common < length:  # of size 0 is one that may propose any number of tokens
                        size = hints[name].size
                        steps[common] += w[silent + (ENDED if common == size else AGAINST if size else SILENT)] - alike
                else:
                    base += w[silent + AGAINST] if hints[name].size else w[silent]
            if cautious:
                trust = self.trust(i)
            if len(sure) < length:
                sure += UNKNOWN * (length - len(sure))
            reach = tokens = 1.0
            top, best, expected = -inf, 0, 1.0
            j = -1
            for j, step in enumerate(steps if length <= longest else steps[:longest]):
                base += step
                chances[j] = chance = 1.0 / (1.0 + exp(-(base + w[first + floor(sure[j] * levels)] + w[places[j]])))
                reach *= chance * trust
                tokens += reach
                value = tokens - rate * seconds[j + 2]
                if value > top:
                    top, best, expected = value, j + 1, tokens
                if reach < min_reach:
                    break
            proposal.evaluated = j + 1
            found.append((top, best, expected))
        return found

    def evaluate(self, proposal: Proposal, min_reach: float = MIN_REACH) -> list[float]:
        """Each token's probability of being accepted if all before it are."""
        self.cut([proposal], [0.0] * (proposal.length + 2), 0.0, min_reach=min_reach)
        return proposal.chances[: proposal.evaluated]

    def learn(self, proposal: Proposal, scored: int, agreed: int) -> None:
        """Of ``scored`` tokens, ``agreed`` were right: all, or all but the last."""
        if scored > proposal.evaluated:
            self.evaluate(proposal, 0.0)
        i, config, chances = proposal.index, self.config, proposal.chances
        keep, rate = 1.0 - 1.0 / config.count_memory, config.learning_rate
        text, every = 1.0 / config.short_memory, 1.0 / config.round_memory
        weights, squares, ema, mean = self.weights[i], self.squares[i], self.text_ema[i], self.mean_ema[i]
        for j in range(scored):
            truth, target = (1.0, WON) if j < agreed else (0.0, LOST)
            error = chances[j] - truth
            step, square = rate * error, error * error
            for at in proposal.features(j):
                squares[at] = total = keep * squares[at] + square
                weights[at] -= step / sqrt(total)
            squares[EMA] = total = keep * squares[EMA] + square * ema * ema
            weights[EMA] -= step * ema / sqrt(total)
            ema += text * (target - ema)
            mean += every * (target - mean)
        self.text_ema[i], self.mean_ema[i] = ema, mean
        self.scored[i] += scored

    # --- a batch -----------------------------------------------------------------------------------------------------

    def survival(self, batch: Batch, size: Ints) -> tuple[Floats, Scored]:
        """Probability that each token is reached and accepted, (K, D * B); 0 past ``size``, (D, B)."""
        drafters, count, longest = batch.confidence.shape
        w = np.array(self.weights)
        table = w[:, None, CONFIDENCE:POSITION] + w[:, POSITION:EMA, None]  # (D, POSITIONS, COLUMNS)
        own = w.take(_MATCH.take(batch.match, mode="clip") + np.arange(0, w.size, self.width)[:, None])  # (D, B)
        own += w[:, EMA, None] * self._averages(batch).T
        at = np.empty((longest, drafters, count))
        np.multiply(batch.confidence.transpose(2, 0, 1), float(LEVELS), out=at)
        np.fmax(at, -1.0, out=at)  # nan: the column before the first level
        at += _starts(longest, drafters)
        cells = at.astype(np.intp)
        z = table.take(cells, mode="clip")
        z += own
        codes = None
        if batch.agreement is not None and drafters > 1:
            pairs, others, places, first = _pairs(longest, drafters, self.width)
            codes = batch.agreement.reshape(-1, count).take(pairs, axis=0) * (longest + 1)
            codes += batch.size.take(others, axis=0)
            said = w.take(places).take(codes + first, axis=1, mode="clip")  # (K, (D - 1) * D, B)
            for n in range(0, len(pairs), drafters):
                z += said[:, n : n + drafters]
        np.negative(z, out=z)
        np.exp(z, out=z)
        z += 1.0
        chances = np.reciprocal(z, out=z)
        padded = np.empty((longest + 1, drafters * count))
        chains = padded[:longest]
        chains[:] = chances.reshape(longest, drafters * count)
        ends = np.multiply(size.ravel(), size.size, dtype=np.intp)
        padded.reshape(-1)[ends + np.arange(size.size)] = 0.0  # after the last token; it makes all that follow 0
        for before, row in pairwise(chains):
            np.multiply(before, row, row)
        return chains, Scored(cells, chances, codes)

    def learn_batch(self, batch: Batch, found: Scored, scored: Ints, agreed: Ints) -> None:
        """One AdaGrad step for every weight from all scored tokens; (D, B): ``agreed`` of ``scored`` were right."""
        part = slice(None)
        count = scored.shape[1]
        if count >= 2 * SAMPLE:  # of a large batch some requests are enough, others in every step
            self.turn = (self.turn + 1) % (count // SAMPLE)
            part = slice(self.turn, None, count // SAMPLE)
        places, errors, ema = self._errors(batch, found, scored[:, part], agreed[:, part], part)
        kinds = len(places) // max(1, len(errors)) - 1
        size = self.drafters * self.width
        total = np.bincount(places, np.concatenate([errors] * kinds + [errors * ema]), size)
        errors, ema = errors * errors, ema * ema
        more = np.bincount(places, np.concatenate([errors] * kinds + [errors * ema]), size)
        keep, rate = 1.0 - 1.0 / self.config.count_memory, self.config.learning_rate
        for place in np.flatnonzero(more).tolist():
            i, j = divmod(place, self.width)
            own = self.squares[i]
            own[j] = seen = keep * own[j] + float(more[place])
            self.weights[i][j] -= rate * float(total[place]) / seen**0.5
        hits = np.minimum(agreed, scored)
        known, right_of = scored[:, part].sum(axis=1).tolist(), hits[:, part].sum(axis=1).tolist()
        for i, (tokens, right) in enumerate(zip(known, right_of, strict=True)):
            if tokens:
                left = (1.0 - 1.0 / self.config.round_memory) ** tokens
                self.mean_ema[i] = left * self.mean_ema[i] + (1 - left) * (LOST + (WON - LOST) * right / tokens)
        average, share = self.slot_ema[batch.slots].T, 1.0 / self.config.short_memory
        average = WON - (WON - average) * (1.0 - share) ** hits
        average += (scored > agreed) * share * (LOST - average)
        self.slot_ema[batch.slots] = average.T

    def _errors(
        self, batch: Batch, found: Scored, scored: Ints, agreed: Ints, part: slice
    ) -> tuple[Ints, Floats, Floats]:
        """Of every scored token: the weights it is made of (that of the average last), its error, and the average."""
        cells = found.cells[..., part]
        position, drafter, request = at = np.nonzero(np.arange(len(cells))[:, None, None] < scored)
        errors = found.chances[..., part][at] - (position < agreed[drafter, request])
        ema = self.slot_ema[batch.slots[part][request], drafter]
        first = drafter * self.width
        kinds = [
            _MATCH.take(batch.match[:, part][drafter, request], mode="clip"),
            CONFIDENCE + cells[at] % COLUMNS,
            POSITION + np.minimum(position, POSITIONS - 1),
        ]
        if found.codes is not None:
            states, codes = _agreement_states(len(cells)), found.codes[:, part]
            for n in range(self.drafters - 1):
                state = states[position, codes[n * self.drafters + drafter, request]]
                kinds.append(AGREEMENT + 4 * (n + (n >= drafter)) + state)
        return np.concatenate([first + kind for kind in kinds] + [first + EMA]), errors, ema

    def _averages(self, batch: Batch) -> Floats:
        """Acceptance averages of these requests, (B, D); new ones start from that of all texts."""
        self._grow(int(batch.slots.max()))
        if np.count_nonzero(batch.fresh):
            self.slot_ema[batch.slots[batch.fresh]] = self.mean_ema
        own: Floats = self.slot_ema.take(batch.slots, axis=0)
        return own

    def _grow(self, slot: int) -> None:
        if slot >= len(self.slot_ema):
            wider = np.zeros((2 * slot + 1, self.slot_ema.shape[1]))
            wider[: len(self.slot_ema)] = self.slot_ema
            self.slot_ema = wider


@cache
def _starts(longest: int, drafters: int) -> Floats:
    """Where the first level of each position and drafter stands in the lookup table, (K, D, 1)."""
    depth: Floats = np.minimum(np.arange(longest), POSITIONS - 1)[:, None, None] * float(COLUMNS)
    return depth + np.arange(drafters)[:, None] * (POSITIONS * COLUMNS) + 1.0


@cache
def _agreement_states(longest: int) -> Ints:
    """By position and code (common tokens times ``longest`` + 1, plus the other's tokens): what it says there."""
    common, size = np.divmod(np.arange((longest + 1) ** 2), longest + 1)
    then = np.where(size == 0, SILENT, np.where(common == size, ENDED, AGAINST))
    return np.where((np.arange(longest)[:, None] < common) & (size > 0), WITH, then)


@cache
def _pairs(longest: int, drafters: int, width: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Every drafter with its first other one, then every drafter with its second and so on, N pairs in all: the place
    of each in (D, D); the other one; the weights of what that says by position and code, (K, N * codes); and the first
    of the pair's codes, (N, 1)."""
    one, n = np.tile(np.arange(drafters), drafters - 1), np.repeat(np.arange(drafters - 1), drafters)
    other = n + (n >= one)
    states = _agreement_states(longest)
    weights = (one * width + AGREEMENT + 4 * other)[:, None] + states[:, None]  # (K, N, codes)
    codes = states.shape[1]
    return one * drafters + other, other, weights.reshape(longest, -1), np.arange(len(one))[:, None] * codes
