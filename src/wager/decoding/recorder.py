"""Walks finished texts with every drafter, to record what each would have had accepted at every position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import torch

from wager.core.recording import Text, Track
from wager.decoding.acceptance import accept_greedy, overlap
from wager.decoding.decoder import Decoder, Prompt
from wager.drafters import Draft, Drafter, drafter_agreement
from wager.drafters.draft_model import DraftModel
from wager.models.runner import Runner

CHUNK = 256  # positions whose distributions are compared at once


class Recorder:
    """Lets a decoder write texts, then asks drafters at every position how they would have gone on.

    The drafters must not be the decoder's own: one that remembers would know the text before it is asked.
    ``seconds`` holds what a proposal of each cheap drafter took, one number a position.
    """

    def __init__(self, decoder: Decoder, drafters: Mapping[str, Drafter], longest: int) -> None:
        if any(drafter in decoder.drafters.values() for drafter in drafters.values()):
            raise ValueError("a recorder needs drafters of its own, not those the decoder writes with")
        self.decoder, self.drafters, self.longest = decoder, drafters, longest
        for drafter in drafters.values():
            drafter.fit(decoder.target.vocabulary)
            drafter.follow(decoder.target)
        self.seconds: dict[str, list[float]] = {name: [] for name, d in drafters.items() if d.cheap}

    def record(self, prompt: Prompt, label: str, count: int) -> Text | None:
        """One text of at most ``count`` tokens, greedily; None where it ends at once."""
        prepared = self.decoder.prepare(prompt, {"max_new_tokens": count, "do_sample": False})
        ids: list[int] = prepared.ids[0].tolist()
        target = self.decoder.target
        tokens = [t for step in self.decoder.run(prepared, target) for t in step.tokens]
        if len(tokens) < 2:
            return None
        limit = min(count, target.limit - len(ids))
        tracks: dict[str, Track] = {}
        drafts: dict[str, list[list[int]]] = {}  # of the cheap drafters, by position
        for name, drafter in self.drafters.items():
            if isinstance(drafter, DraftModel):
                tracks[name] = _compare(drafter, target, ids, tokens, self.longest)
            else:
                tracks[name], drafts[name] = self._walk(name, drafter, ids, tokens, limit)
        return Text(label, len(ids), len(tokens), tracks, limit, _agreement(drafts))

    def _walk(
        self, name: str, drafter: Drafter, prompt: Sequence[int], tokens: Sequence[int], limit: int
    ) -> tuple[Track, list[list[int]]]:
        """The drafter's track, and what it proposed at each position."""
        track, drafts = Track([], [], [], [], cheap=drafter.cheap), []
        target = self.decoder.target
        target.begin()
        target.prefill(prompt)
        drafter.begin(prompt)
        for at, token in enumerate(tokens[:-1], 1):
            if at % CHUNK == 1:  # what the target expects after each of the next tokens
                part = tokens[at - 1 : min(at - 1 + CHUNK, len(tokens) - 1)]
                expected = torch.softmax(target.forward(part, len(part)).float(), -1)
            drafter.extend([token])
            began = perf_counter()
            draft = drafter.propose(min(self.longest, limit - at - 1))  # as in a round: the target adds one itself
            if drafter.cheap:
                self.seconds[name].append(perf_counter() - began)
            coming = tokens[at : at + self.longest]
            track.size.append(len(draft.tokens))
            track.agreed.append(accept_greedy([*coming, -1], draft.tokens[: len(coming)]))
            track.match.append(draft.hint.match)
            track.confidence.append(draft.confidence())
            track.overlap.append(_overlap(expected[(at - 1) % CHUNK], draft))
            drafts.append(draft.tokens)
        drafter.extend(tokens[-1:])
        return track, drafts


def _overlap(p: torch.Tensor, draft: Draft) -> float:
    """1 - TV of target and drafter at the first drafted position; 0 where nothing is drafted."""
    if not draft.tokens or draft.tokens[0] >= len(p):
        return 0.0
    q = None if draft.raw is None else torch.softmax(draft.raw([0]).float(), -1)[:, : len(p)]
    return overlap(p[None, : len(p) if q is None else q.shape[-1]], draft.tokens[:1], q)[0]


def _agreement(drafts: dict[str, list[list[int]]]) -> dict[str, dict[str, list[int]]]:
    """Leading tokens that every two drafters both propose, at each position."""
    names = list(drafts)
    at = [drafter_agreement(dict(zip(names, each, strict=True))) for each in zip(*drafts.values(), strict=True)]
    return {
        one: {other: [common[one][other] for common in at] for other in names[i + 1 :]}
        for i, one in enumerate(names[:-1])
    }


def _compare(drafter: DraftModel, target: Runner, prompt: Sequence[int], tokens: Sequence[int], longest: int) -> Track:
    """A model drafts the text's own tokens for as long as it agrees with it, so one reading of the text tells all."""
    # Its confidence past the first disagreement is that along the text, not along its own draft.
    positions = len(tokens) - 1
    readable = min(positions, _readable(drafter.runner, [*prompt, *tokens]) - len(prompt))
    if readable < 1:
        return Track([0] * positions, [0] * positions, [0] * positions, [()] * positions, cheap=False)
    for runner in (drafter.runner, target):
        runner.begin()
        runner.prefill(prompt)
    likeliest: list[int] = []
    sure: list[float] = []
    shared: list[float] = []
    for start in range(0, readable, CHUNK):
        part = tokens[start : min(start + CHUNK, readable)]
        logits = drafter.runner.forward(part, len(part))[:, : target.vocabulary].float()
        q, p = torch.softmax(logits, -1), torch.softmax(target.forward(part, len(part)).float(), -1)
        likeliest += logits.argmax(-1).tolist()
        sure += q.max(-1).values.clamp(max=1).tolist()
        shared += torch.minimum(p[:, : q.shape[-1]], q).sum(-1).clamp(0, 1).tolist()
    size = [max(0, min(longest, drafter.runner.limit - len(prompt) - at - 1)) for at in range(readable)]
    agreed = [0] * (readable + 1)
    for at in range(readable - 1, -1, -1):
        agreed[at] = agreed[at + 1] + 1 if likeliest[at] == tokens[at + 1] else 0
    blind = positions - readable  # positions at the end where it cannot draft
    right = [min(run, most) for run, most in zip(agreed, size, strict=False)]
    confidence = [tuple(sure[at : at + most]) for at, most in enumerate(size)]
    columns = size + [0] * blind, right + [0] * blind, [0] * positions, confidence + [()] * blind
    return Track(*columns, shared + [0.0] * blind, cheap=False)


def _readable(runner: Runner, text: Sequence[int]) -> int:
    """Tokens the model can read of a text: no more than it holds, and up to one that its table lacks."""
    foreign = next((i for i, token in enumerate(text) if token >= runner.vocabulary), len(text))
    return min(foreign, runner.limit)
