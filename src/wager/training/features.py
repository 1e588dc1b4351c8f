"""The target's features of every text, computed once: several epochs then need no forward of the target."""

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch

from wager.training.answers import Text
from wager.training.batches import Batch, once, sent
from wager.training.learners import Target, mixed

BATCH_TOKENS = 1 << 16
CPU_BYTES = 1 << 30  # most that is kept where there is no GPU
GPU_SHARE = 0.5  # of the free memory of a GPU


class FeatureCache:
    """Features of texts on the target's device, one after the other."""

    def __init__(self, target: Target, texts: Sequence[Text]) -> None:
        self.target = target
        lengths = torch.tensor([len(text.tokens) for text in texts])
        self.starts = lengths.cumsum(0) - lengths
        self.numbers = {id(text): at for at, text in enumerate(texts)}
        self.store = self._empty(int(lengths.sum()))
        for batch in once(texts, BATCH_TOKENS):
            inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
            at, known = sent(self._places(batch)[inside], target.device), sent(inside, target.device)
            with mixed(target.device):
                self.store.index_copy_(0, at, target.features(batch)[known].to(self.store.dtype))

    def of(self, texts: Sequence[Text]) -> Self:
        """The same features for batches made of these texts, which are some of the others."""
        some = copy(self)
        some.starts = self.starts[torch.tensor([self.numbers[id(text)] for text in texts])]
        return some

    def __call__(self, batch: Batch) -> torch.Tensor:
        """(texts, longest, hidden); in the padding stands the last token's feature."""
        return self.store[sent(self._places(batch), self.target.device)]

    def _places(self, batch: Batch) -> torch.Tensor:
        """(texts, longest): where each token's feature is kept."""
        at = torch.minimum(torch.arange(batch.tokens.shape[1]), batch.lengths[:, None] - 1)
        return self.starts[batch.index][:, None] + at

    def _empty(self, tokens: int) -> torch.Tensor:
        embed = self.target.embed
        return torch.empty(tokens, embed.shape[1], dtype=embed.dtype, device=embed.device)


def fits(target: Target, texts: Sequence[Text]) -> bool:
    """Whether there is memory for the features of these texts."""
    wanted = sum(len(text.tokens) for text in texts) * target.embed.shape[1] * target.embed.element_size()
    free = torch.cuda.mem_get_info(target.device)[0] * GPU_SHARE if target.device.type == "cuda" else CPU_BYTES
    return bool(wanted <= free)
