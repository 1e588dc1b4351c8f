"""Texts as batches: a fixed number of tokens each, like lengths together, the same order again after a resume."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from wager.training.answers import Text

HELD_OUT = 50  # one prompt in so many is never trained on
ROUND = 32  # lengths are padded to a multiple of this, so that shapes repeat

Numbered = tuple[int, Text]  # a text and where it stands in its sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of like length, on the CPU; what stands after a text's end is padding that nothing before it sees."""

    tokens: torch.Tensor  # (texts, longest)
    prompts: torch.Tensor  # (texts,) tokens of each prompt
    lengths: torch.Tensor  # (texts,)
    index: torch.Tensor  # (texts,) where each stands in the sequence that the batch was made of

    def continued(self) -> torch.Tensor:
        """(texts, longest): whether a token belongs to an answer that goes on after it."""
        at = torch.arange(self.tokens.shape[1])
        return (at >= self.prompts[:, None]) & (at + 1 < self.lengths[:, None])

    def window(self, lead: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The entries of a head (entry j: up to token j + 1) from which or in which an answer's tokens are drafted.

        (texts, width) entries: those of the answer and ``lead`` before it; and, by their place in this table when it
        is flat, the entries whose next token belongs to the answer.
        """
        judged = self.continued()[:, 1:]
        first = (self.prompts - 1 - lead).clamp_min(0)
        width = max(1, int((self.lengths - 2 - first).max()))
        width = min(-(-width // ROUND) * ROUND, judged.shape[1])
        entries = first[:, None] + torch.arange(width)
        inside = entries < judged.shape[1]
        entries = entries.clamp_max(judged.shape[1] - 1)
        return entries, (judged.gather(1, entries) & inside).flatten().nonzero()[:, 0]


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device, which is not waited for."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


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
        order = sorted(enumerate(texts), key=lambda pair: (len(pair[1].tokens) // ROUND, dice.random()))
        groups = list(_groups(order, tokens))
        dice.shuffle(groups)
        for group in groups:
            if made >= start:
                yield _padded(group)
            made += 1
        epoch += 1


def once(texts: Sequence[Text], tokens: int) -> Iterator[Batch]:
    """Every text once."""
    return map(_padded, _groups(sorted(enumerate(texts), key=lambda pair: len(pair[1].tokens)), tokens))


def _groups(texts: Sequence[Numbered], tokens: int) -> Iterator[list[Numbered]]:
    group: list[Numbered] = []
    for at, text in texts:
        longest = max(len(text.tokens), len(group[-1][1].tokens) if group else 0)
        if group and (len(group) + 1) * (longest + ROUND) > tokens:
            yield group
            group = []
        group.append((at, text))
    if group:
        yield group


def _padded(texts: Sequence[Numbered]) -> Batch:
    lengths = torch.tensor([len(text.tokens) for _, text in texts])
    longest = -(-int(lengths.max()) // ROUND) * ROUND
    tokens = torch.zeros((len(texts), longest), dtype=torch.long)
    for row, (_, text) in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.from_numpy(text.tokens)
    prompts, index = ([text.prompt for _, text in texts], [at for at, _ in texts])
    return Batch(tokens, torch.tensor(prompts), lengths, torch.tensor(index))
