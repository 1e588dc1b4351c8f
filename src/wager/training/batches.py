"""Texts as batches: a fixed number of tokens each, like lengths together, the same order again after a resume."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from wager.training.answers import Text

HELD_OUT = 50  # one prompt in so many is never trained on
ROUND = 32  # lengths are padded to a multiple of this, so that shapes repeat


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of like length; what stands after a text's end is padding that nothing before it sees."""

    tokens: torch.Tensor  # (texts, longest)
    prompts: torch.Tensor  # (texts,) tokens of each prompt
    lengths: torch.Tensor  # (texts,)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(x.to(device, non_blocking=True) for x in (self.tokens, self.prompts, self.lengths)))

    def continued(self) -> torch.Tensor:
        """(texts, longest): whether a token belongs to an answer that goes on after it."""
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (at >= self.prompts[:, None]) & (at + 1 < self.lengths[:, None])


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Texts to learn from, and greedy ones to judge by; no prompt is in both."""
    train = [t for t in texts if t.key % HELD_OUT]
    held = [t for t in texts if not t.key % HELD_OUT and t.temperature == 0]
    return train, held


def batches(texts: Sequence[Text], tokens: int, *, seed: int = 0, start: int = 0) -> Iterator[Batch]:
    """Batches without end, epoch after epoch, each of about so many tokens; the first ``start`` are left out."""
    if not texts:
        raise ValueError("no text to learn from; choose other domains or answer more prompts")
    epoch = made = 0
    while True:
        dice = random.Random(f"{seed} {epoch}")
        groups = list(_groups(sorted(texts, key=lambda text: (len(text.tokens) // ROUND, dice.random())), tokens))
        dice.shuffle(groups)
        for group in groups:
            if made >= start:
                yield _padded(group)
            made += 1
        epoch += 1


def once(texts: Sequence[Text], tokens: int) -> Iterator[Batch]:
    """Every text once."""
    return map(_padded, _groups(sorted(texts, key=lambda text: len(text.tokens)), tokens))


def _groups(texts: Sequence[Text], tokens: int) -> Iterator[list[Text]]:
    group: list[Text] = []
    for text in texts:
        longest = max(len(text.tokens), len(group[-1].tokens) if group else 0)
        if group and (len(group) + 1) * (longest + ROUND) > tokens:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def _padded(texts: Sequence[Text]) -> Batch:
    lengths = torch.tensor([len(t.tokens) for t in texts])
    longest = -(-int(lengths.max()) // ROUND) * ROUND
    tokens = torch.zeros((len(texts), longest), dtype=torch.long)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.from_numpy(text.tokens)
    return Batch(tokens, torch.tensor([t.prompt for t in texts]), lengths)
