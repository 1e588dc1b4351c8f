"""A drafter and a length for every request of a batch, in columns: `auto` where requests are many.

Arrays over a batch are (K, N): positions, then drafters and requests. The estimator is `AcceptanceModel`'s, its weights
shared with the single stream; what each request has shown of its own luck is kept by slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wager.policies.auto.acceptance import (
    AGAINST,
    AGREEMENT,
    CONFIDENCE,
    EMA,
    ENDED,
    FADE,
    GRID,
    LASTING,
    MATCHES,
    POSITION,
    RATE,
    RECENT,
    SILENT,
    STEEP,
    SURE,
    WITH,
    Floats,
    bucket,
)
from wager.policies.auto.latency import OFF_STEP, RAGGED, UNIFORM
from wager.policies.base import require
from wager.policies.rows import Ints, Outcome, Rows

if TYPE_CHECKING:
    from wager.policies.auto import Auto

COLUMNS = GRID + 2  # no confidence, then [0, 1/40) … [39/40, 1), 1
DEPTHS = 4  # positions told apart
PART = DEPTHS * COLUMNS  # of the table, for one drafter
SAMPLE = 64  # rows of a step that are learned from, at least

_MATCHES = np.array(MATCHES)
_SURE = np.array([CONFIDENCE, *(bucket(i / GRID) for i in range(GRID + 1))])  # weight of each column
_CELL = _SURE + 0 * np.arange(DEPTHS)[:, None]  # (DEPTHS, COLUMNS)
_DEPTH = np.repeat(np.arange(POSITION, POSITION + DEPTHS)[:, None], COLUMNS, axis=1)


class BatchAuto:
    """The batch's half of `auto`."""

    def __init__(self, auto: Auto) -> None:
        self.auto = auto
        self.drafters = len(auto.drafters)
        self.turn = 0  # which rows of a large batch are learned from
        self.kind = OFF_STEP  # of the step chosen last
        self.acceptance_ema: Floats = np.zeros((16, max(1, self.drafters)))  # by slot and drafter
        self._numbers = np.arange(1024)
        self._parts: dict[int, Floats] = {}
        self._known: dict[int, Ints] = {}

    def choose(self, rows: Rows) -> tuple[Ints, Ints]:
        """Drafter and length per request: the tokens whose chance exceeds what their seconds are worth."""
        drafters, count, longest = rows.confidence.shape
        if drafters != self.drafters:
            raise ValueError(f"rows of {drafters} drafters for a policy of {self.drafters}: {self.auto.drafters}")
        if not drafters or not count or not longest:
            return _nobody(count)
        auto = self.auto
        size = 1 << count.bit_length()
        base, token, ragged = auto.step_latency.at(count)
        rate = auto.reference_rate.at(count, count / base)
        room = int(np.minimum.reduce(rows.limit))
        chains = self._survival(rows, rows.size if room >= longest else np.minimum(rows.size, rows.limit))

        # A draft token takes `token` seconds, worth `price` tokens. A request's drafter is the one whose tokens bring
        # most beyond that: largest sum of S - price where it is positive, and so of max(S, price).
        price = rate * token
        gain = np.add.reduce(np.maximum(chains, price), axis=0)
        gain = gain.reshape(drafters, count)
        best = gain.argmax(axis=0)
        if len(rows.asked):
            self._appraise(rows.asked, gain, best, price * longest, rate, base)
        kept = chains.take(best * count + self._upto(count), axis=1)  # (K, B)

        # AcceptanceModel falls along a chain, so the tokens above any price are always prefixes (as in TETRIS).
        lengths: Ints = np.add.reduce(kept > price, axis=0)
        n, most, full = int(np.add.reduce(lengths)), auto.budget, longest * count
        if most and n > most:
            lengths, n = _likeliest(kept, most), most
        values = [count - rate * base, -np.inf, -np.inf]
        goodput = [count / base, 0.0, 0.0]
        if n:
            tokens = count + float(kept[self._upto(longest)[:, None] < lengths].sum())
            seconds = base + ragged + token * n
            values[RAGGED], goodput[RAGGED] = tokens - rate * seconds, tokens / seconds
        if room >= longest and (not most or full <= most):
            tokens, seconds = count + float(kept.sum()), base + token * full
            values[UNIFORM], goodput[UNIFORM] = tokens - rate * seconds, tokens / seconds
        kind, vary = auto.trial(size, values, goodput)
        self.kind = kind
        if kind == OFF_STEP:
            return _nobody(count)
        if kind == UNIFORM:
            return best, np.full(count, longest)
        if vary:  # to learn what tokens cost, at another number of them
            lengths = np.add.reduce(kept > price * (0.5 if vary > 0 else 2.0), axis=0)
            if most and int(np.add.reduce(lengths)) > most:
                lengths = _likeliest(kept, most)
        best[lengths == 0] = -1
        return best, lengths

    def _appraise(
        self, asked: Sequence[float], gain: Floats, best: Ints, nothing: float, rate: float, base: float
    ) -> None:
        """Tell what each drafter's proposals are worth beyond those of the others, or beyond drafting nothing."""
        rest = gain.copy()
        rest[best, self._upto(gain.shape[1])] = nothing
        margin = gain.max(axis=0) - np.maximum(rest.max(axis=0), nothing)
        brought = np.bincount(best, margin, len(gain)).tolist()
        named = zip(self.auto.drafters, asked, strict=True)
        self.auto.appraise(brought, {name: seconds for name, seconds in named if seconds}, rate, base)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        rows, agreed = outcome.rows, outcome.agreed
        drafters, count, longest = rows.confidence.shape
        if not drafters or not count or not longest:
            return
        auto = self.auto
        if outcome.seconds > 0.0:
            seconds = outcome.seconds + outcome.draft_seconds
            auto.step_latency.learn(count, int(np.add.reduce(outcome.drafted)), longest * count, seconds)
            auto.note(count, self.kind)
            auto.reference_rate.learn(count, int(np.add.reduce(outcome.emitted)), seconds)
        if rows.work is None:
            self._survival(rows, rows.size)
        cells, chances, codes = rows.work
        # A token is scored if all before it agreed and the true token is known.
        scored = np.minimum(agreed + 1, np.minimum(rows.size, outcome.emitted))
        part = slice(None)
        if count >= 2 * SAMPLE:  # of a large batch some rows are enough, others in every step
            step = count // SAMPLE
            self.turn = (self.turn + 1) % step
            part = slice(self.turn, None, step)
        self._learn(
            cells[..., part],
            chances[..., part],
            None if codes is None else codes[..., part],
            scored[:, part],
            agreed[:, part],
            rows.match[:, part],
            rows.slots[part],
        )
        self._lucky(rows.slots, np.minimum(agreed, scored), scored > agreed)

    # --- the estimator, in columns -----------------------------------------------------------------------------------

    def _survival(self, rows: Rows, size: Ints) -> Floats:
        """Probability that each proposed token is reached and accepted, (K, N); 0 past ``size``, (D, B)."""
        drafters, count, longest = rows.confidence.shape
        w = np.array(self.auto.acceptance.weights)
        table = w[:, _CELL] + w[:, _DEPTH]  # (D, DEPTHS, COLUMNS): confidence and position at once
        own = w[self._upto(drafters)[:, None], _MATCHES.take(rows.match, mode="clip")]  # (D, B)
        own += w[:, EMA, None] * self._lucks(rows).T
        at = np.empty((longest, drafters, count))
        np.multiply(rows.confidence.transpose(2, 0, 1), float(GRID), out=at)
        np.fmax(at, -1.0, out=at)  # where there is no confidence: the column before the first
        at += self._part(longest)
        cells = at.astype(np.intp)
        z = table.take(cells)
        z += own
        codes = self._company(rows)
        if codes is not None:
            states = self._states(longest)
            for i in range(drafters):
                for j in range(drafters):
                    if i != j:
                        z[:, i] += w[i, AGREEMENT + 4 * j + states].take(codes[i, j], axis=1)
        np.clip(z, -STEEP, STEEP, out=z)
        chances = 1.0 / (1.0 + np.exp(-z))
        np.minimum(chances, SURE, out=chances)
        flat = chances.reshape(longest, drafters * count)
        rows.work = cells, chances, codes
        padded = np.empty((longest + 1, drafters * count))
        chains = padded[:longest]
        chains[:] = flat
        padded.reshape(-1)[self._at(size)] = 0.0  # after a chain's last token; it makes all that follow 0
        before = chains[0]
        for row in chains[1:]:
            np.multiply(before, row, row)
            before = row
        return chains

    def _company(self, rows: Rows) -> Ints | None:
        """What every other drafter says to a drafter's proposal, as a column of the states: (D, D, B)."""
        if rows.shared is None:
            return None
        said: Ints = rows.size[None]
        return np.where(said > 0, 1 + 2 * rows.shared + (rows.shared == said), 0)

    def _states(self, longest: int) -> Ints:
        """By position and what two proposals have in common: whether the other is with or against it there."""
        known = self._known.get(longest)
        if known is None:
            common, ended = np.divmod(np.arange(2 * longest + 2), 2)
            then = np.where(ended > 0, ENDED, AGAINST)
            depth = np.arange(longest)[:, None]
            known = np.where(depth < common, WITH, then)
            known = self._known[longest] = np.concatenate((np.full((longest, 1), SILENT), known), axis=1)
        return known

    def _learn(
        self, cells: Ints, chances: Floats, codes: Ints | None, scored: Ints, agreed: Ints, match: Ints, slots: Ints
    ) -> None:
        """One step of AdaGrad for every weight, from all scored tokens together."""
        depth = self._upto(len(cells))[:, None, None]
        at = np.nonzero(depth < scored)  # positions, drafters, requests
        position, drafter, request = at
        errors = chances[at] - (position < agreed[drafter, request])
        luck = self.acceptance_ema[slots[request], drafter]  # of before the step: later it would know the answer
        width = self.auto.acceptance.width
        first = drafter * width
        kinds = [
            _MATCHES.take(match[drafter, request], mode="clip"),
            _SURE.take(cells[at] % COLUMNS),
            np.minimum(position, DEPTHS - 1) + POSITION,
        ]
        if codes is not None:
            states = self._states(len(cells))
            for other in range(self.drafters):
                code = codes[drafter, other, request]
                # the one beside itself: a place nobody reads
                kinds.append(AGREEMENT + 4 * other + np.where(drafter == other, SILENT, states[position, code]))
        places = np.concatenate([first + kind for kind in kinds] + [first + EMA])
        total = np.bincount(places, np.concatenate([errors] * len(kinds) + [errors * luck]), self.drafters * width)
        errors, luck = errors * errors, luck * luck
        more = np.bincount(places, np.concatenate([errors] * len(kinds) + [errors * luck]), self.drafters * width)
        survival = self.auto.acceptance
        for place in np.flatnonzero(more).tolist():
            i, j = divmod(place, width)
            own = survival.squares[i]
            own[j] = seen = FADE * own[j] + float(more[place])
            survival.weights[i][j] -= RATE * float(total[place]) / seen**0.5
        hits = np.minimum(agreed, scored).sum(axis=1).tolist()
        for i, (tokens, right) in enumerate(zip(scored.sum(axis=1).tolist(), hits, strict=True)):
            if tokens:
                keep = (1.0 - LASTING) ** tokens
                survival.mean_acceptance_ema[i] = keep * survival.mean_acceptance_ema[i] + (1 - keep) * (
                    4.0 * right / tokens - 2.0
                )

    # --- what each request has shown ---------------------------------------------------------------------------------

    def _lucks(self, rows: Rows) -> Floats:
        """Luck of these requests, (B, D); that of new ones is everybody's."""
        top = int(rows.slots.max())
        if top >= len(self.acceptance_ema):
            wider = np.zeros((2 * top + 1, self.acceptance_ema.shape[1]))
            wider[: len(self.acceptance_ema)] = self.acceptance_ema
            self.acceptance_ema = wider
        if np.count_nonzero(rows.fresh):
            self.acceptance_ema[rows.slots[rows.fresh]] = self.auto.acceptance.mean_acceptance_ema
        own: Floats = self.acceptance_ema.take(rows.slots, axis=0)
        return own

    def _lucky(self, slots: Ints, hits: Ints, lost: Any) -> None:
        """So many tokens were accepted, and perhaps one was not, (D, B)."""
        own = self.acceptance_ema[slots].T
        own = 2.0 - (2.0 - own) * (1.0 - RECENT) ** hits
        own += lost * RECENT * (-2.0 - own)
        self.acceptance_ema[slots] = own.T

    # --- arrays that are the same in every step ----------------------------------------------------------------------

    def _at(self, depth: Ints) -> Ints:
        """Places in a flat (K, N) array of the given depth per drafter and request."""
        places = np.multiply(depth.ravel(), depth.size, dtype=np.intp)
        places += self._upto(depth.size)
        return places

    def _upto(self, count: int) -> Ints:
        """0, 1, ... count - 1."""
        if len(self._numbers) < count:
            self._numbers = np.arange(2 * count)
        return self._numbers[:count]

    def _part(self, longest: int) -> Floats:
        """Where the part of each position and drafter begins in the table, (K, D, 1)."""
        known = self._parts.get(longest)
        if known is None:
            require(longest < 128, f"a proposal has fewer than 128 tokens, not {longest}")
            depth = np.minimum(np.arange(longest), DEPTHS - 1)[:, None, None] * COLUMNS
            known = self._parts[longest] = depth + np.arange(self.drafters)[:, None] * float(PART) + 1.0
        return known

    @property
    def saved(self) -> dict[str, Any]:
        """What is known of requests under way."""
        return {"turn": self.turn, "kind": self.kind, "acceptance_ema": self.acceptance_ema.tolist()}

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        self.turn, self.kind, self.acceptance_ema = saved["turn"], saved["kind"], np.array(saved["acceptance_ema"])


def _nobody(count: int) -> tuple[Ints, Ints]:
    return np.full(count, -1), np.zeros(count, dtype=np.int64)


def _likeliest(kept: Floats, most: int) -> Ints:
    """Lengths that take the ``most`` likeliest tokens, (B,); earlier requests and positions first where they tie."""
    longest, count = kept.shape
    order = np.argsort(-kept.T.ravel(), kind="stable")[:most]
    return np.bincount(order // longest, minlength=count)
