"""The target's features of every text, computed once: epochs and drafters after the first need no forward of it."""

import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Self

import torch

from wager.training.answers import Text
from wager.training.batches import Batch, once, sent
from wager.training.learners import Learner, Target, mixed

BATCH_TOKENS = 1 << 16  # on a GPU
CPU_BATCH_TOKENS = 1 << 12
CPU_SHARE = 0.25  # of the memory of a machine without a GPU
GPU_SHARE = 0.5  # of the free memory of a GPU

Known = Callable[[Batch], torch.Tensor | None]  # the features of a batch; None: they are not kept


class FeatureCache:
    """Features of texts on the target's device, one after the other, with the states after these layers."""

    def __init__(self, target: Target, texts: Sequence[Text], layers: Sequence[int] = ()) -> None:
        self.target, self.layers = target, tuple(layers)
        self.width = (1 + len(self.layers)) * target.embed.shape[1]  # numbers a token
        lengths = torch.tensor([len(text.tokens) for text in texts])
        self.starts = lengths.cumsum(0) - lengths
        self.numbers = {id(text): at for at, text in enumerate(texts)}
        self.store = self._empty(int(lengths.sum()))
        for batch in once(texts, BATCH_TOKENS if target.device.type == "cuda" else CPU_BATCH_TOKENS):
            inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
            at, known = sent(self._places(batch)[inside], target.device), sent(inside, target.device)
            with mixed(target.device):
                self.store.index_copy_(0, at, target.features(batch, self.layers)[known].to(self.store.dtype))

    def of(self, texts: Sequence[Text], learner: Learner) -> Self:
        """What a learner reads of the target, for batches made of these texts, which are some of the others."""
        some = copy(self)
        some.starts = self.starts[torch.tensor([self.numbers[id(text)] for text in texts])]
        some.width = (1 + len(learner.layers)) * self.target.embed.shape[1]
        return some

    def __call__(self, batch: Batch) -> torch.Tensor:
        """(texts, longest, width); in the padding stands the last token's feature."""
        return self.store[:, : self.width][sent(self._places(batch), self.target.device)]

    def _places(self, batch: Batch) -> torch.Tensor:
        """(texts, longest): where each token's feature is kept."""
        at = torch.minimum(torch.arange(batch.tokens.shape[1]), batch.lengths[:, None] - 1)
        return self.starts[batch.index][:, None] + at

    def _empty(self, tokens: int) -> torch.Tensor:
        embed = self.target.embed
        return torch.empty(tokens, self.width, dtype=embed.dtype, device=embed.device)


def fits(target: Target, texts: Sequence[Text], layers: Sequence[int] = ()) -> bool:
    """Whether there is memory for the features of these texts, with the states after these layers."""
    numbers = sum(len(text.tokens) for text in texts) * (1 + len(layers)) * target.embed.shape[1]
    if target.device.type == "cuda":
        free = torch.cuda.mem_get_info(target.device)[0] * GPU_SHARE
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE
    return bool(numbers * target.embed.element_size() <= free)


def known(read: Sequence[tuple[Learner, Sequence[Text]]]) -> list[Known]:
    """For each learner of one target what gives the features of batches of its texts, from one cache if there is room.

    Where there is room for the features alone, learners that read states as well compute both anew every time.
    """
    target = read[0][0].target
    deepest = max((learner.layers for learner, _ in read), key=len)  # all that read states read the same ones
    for layers in dict.fromkeys((deepest, ())):
        fitting = [(learner, texts) for learner, texts in read if set(learner.layers) <= set(layers)]
        every = _distinct(text for _, texts in fitting for text in texts)
        if every and fits(target, every, layers):
            cache = FeatureCache(target, every, layers)
            return [cache.of(texts, one) if set(one.layers) <= set(layers) else _unknown for one, texts in read]
    return [_unknown for _ in read]


def _distinct(texts: Iterable[Text]) -> list[Text]:
    return list({id(text): text for text in texts}.values())


def _unknown(batch: Batch) -> None:
    return None
