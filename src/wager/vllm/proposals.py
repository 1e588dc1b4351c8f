"""Proposals of all drafters for all requests as arrays, and their score on the tokens that came."""

import math
from collections.abc import Sequence

import numpy as np

from wager.core.batch import Batch
from wager.drafters import Draft

NO_TOKEN = -(2**31)  # after the end of a proposal


class ProposalArrays:
    """Makes arrays of proposals of at most so many tokens."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._depth = np.arange(longest + 1)
        self._mask = np.tri(longest + 1, k=-1, dtype=np.bool_)  # in row n, the first n columns
        self._unknown = [[math.nan] * n for n in range(longest + 1)]

    def make(
        self, proposals: Sequence[Draft], drafters: int, slots: np.ndarray, fresh: np.ndarray, limits: np.ndarray
    ) -> tuple[Batch, np.ndarray]:
        """The proposals, drafter by drafter, as a Batch; and their tokens (drafters, requests, longest + 1)."""
        shape = drafters, len(slots)
        # Lists first and one array of each at the end: writing into arrays piece by piece takes thrice as long.
        lengths: list[int] = []
        matches: list[int] = []
        tokens: list[int] = []
        confidences: list[float] = []
        for draft in proposals:
            hint, n = draft.hint, len(draft.tokens)
            lengths.append(n)
            matches.append(hint.match)
            tokens += draft.tokens
            confidences += hint.confidence or self._unknown[n]
        count, total = len(lengths), len(tokens)
        length = np.fromiter(lengths, np.int64, count)
        proposed = self._mask.take(length, axis=0)  # (proposals, longest + 1); the last column is empty
        table = np.full(proposed.shape, NO_TOKEN, np.int32)
        table[proposed] = np.fromiter(tokens, np.int32, total)
        confidence = np.zeros(proposed.shape)
        confidence[proposed] = np.fromiter(confidences, np.float64, total)
        batch = Batch(
            slots,
            fresh,
            np.fromiter(matches, np.int64, count).reshape(shape),
            length.reshape(shape),
            confidence.reshape(*shape, -1)[:, :, :-1],
            limits,
        )
        by_drafter = table.reshape(*shape, -1)
        batch.agreement = self._agreement(by_drafter, batch.size)
        return batch, by_drafter

    def _agreement(self, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Leading tokens that two drafters both propose, (drafters, drafters, requests)."""
        drafters, count = lengths.shape
        agreement = np.zeros((drafters, drafters, count), np.int64)
        for i in range(drafters):
            for j in range(i + 1, drafters):
                differ = tokens[i] != tokens[j]
                first = differ.argmax(axis=1)  # 0 also where nothing differs
                first[~differ.any(axis=1)] = self.longest
                agreement[i, j] = agreement[j, i] = np.minimum(first, np.minimum(lengths[i], lengths[j]))
        return agreement

    def score(self, tokens: np.ndarray, token_ids: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """How many leading tokens of each proposal are the true ones, (drafters, requests).

        tokens: as `make` gave them; of each request, its true tokens are counts many from starts on in the flat
        token_ids; what lies past them does not count.
        """
        true = token_ids.reshape(-1).take(starts[:, None] + self._depth, mode="clip")
        scores: np.ndarray = np.minimum((tokens == true).argmin(axis=2), counts)
        return scores
