"""Walks finished texts with every drafter, to record what each would have had accepted at every position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from wager.core import Tree
from wager.core.recording import Text, Track
from wager.decoding.acceptance import accept_greedy, overlap
from wager.decoding.decoder import Decoder, Prompt
from wager.decoding.writer import Noise, Written, write
from wager.drafters import Draft, Drafter, drafter_agreement
from wager.drafters.draft_model import DraftModel
from wager.eagle.drafter import SHARPER, Eagle
from wager.eagle.everywhere import Everywhere, Level, accepted_chain, accepted_tree
from wager.models.runner import Runner

CHUNK = 256  # positions whose distributions are compared at once


class Recorder:
    """Lets a decoder write texts, then asks drafters at every position how they would have gone on.

    The drafters must not be the decoder's own: one that remembers would know the text before it is asked.
    ``seconds`` holds what a proposal of each cheap drafter took, one number a position. Of heads trees are recorded
    too, of the shapes (depth and ``Tree``) in ``trees``. Sampled texts are those of shared noise, which do not depend
    on what is drafted; model drafters then draft with that noise, as in the engine. Trees, and how sure model drafters
    are, take most of the time and space: ``detail`` names the drafters of which they are recorded; None: all.
    """

    def __init__(
        self, decoder: Decoder, drafters: Mapping[str, Drafter], longest: int, trees: Sequence[tuple[int, Tree]] = (),
        detail: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        if any(drafter in decoder.drafters.values() for drafter in drafters.values()):
            raise ValueError("a recorder needs drafters of its own, not those the decoder writes with")
        self.decoder, self.drafters, self.longest, self.trees = decoder, drafters, longest, trees
        self.detail = frozenset(drafters if detail is None else detail)
        if unknown := sorted(self.detail - set(drafters)):
            raise ValueError(f"{unknown[0]} is not recorded, so there is no detail of it")
        for drafter in drafters.values():
            drafter.fit(decoder.target.vocabulary)
            drafter.follow(decoder.target)
        self.seconds: dict[str, list[float]] = {name: [] for name, d in drafters.items() if d.cheap}

    def record(self, prompt: Prompt, label: str, count: int, *, temperature: float = 0.0, seed: int = 0) -> Text | None:
        """One text of at most ``count`` tokens, greedy or sampled; None where it ends at once."""
        how: dict[str, Any] = {"do_sample": False}
        if temperature:
            how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        prepared = self.decoder.prepare(prompt, {"max_new_tokens": count, **how})
        ids: list[int] = prepared.ids[0].tolist()
        target = self.decoder.target
        tokens = [t for step in self.decoder.run(prepared, target, seed=seed) for t in step.tokens]
        features = target.features[: len(ids) + len(tokens) - 1] if target.watched else None
        return self._text(Written(ids, tokens, min(count, target.limit - len(ids)), features), label, temperature, seed)

    def record_batch(
        self, prompts: Sequence[list[int]], labels: Sequence[str], count: int, *, temperature: float = 0.0,
        seed: int = 0, batch: int = 16,
    ) -> Iterator[Text | None]:  # fmt: skip
        """As ``record`` of one after the other, seeds from ``seed`` on; so many are written at once."""
        target, written = self.decoder.target, dict[int, Written]()
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for start in range(0, len(prompts), batch):
            own = by_length[start : start + batch]
            noise = [Noise(target, seed + i, temperature, count) for i in own] if temperature else []
            texts = write(self.decoder.model, target, [prompts[i] for i in own], count, noise)
            written |= dict(zip(own, texts, strict=True))
        for i, label in enumerate(labels):
            yield self._text(written.pop(i), label, temperature, seed + i)

    @torch.inference_mode()
    def _text(self, text: Written, label: str, temperature: float, seed: int) -> Text | None:
        """What every drafter makes of a finished text."""
        ids, tokens, target = text.prompt, text.tokens, self.decoder.target
        if len(tokens) < 2:
            return None
        noise = Noise(target, seed, temperature, text.limit + self.longest) if temperature else None
        if text.features is None:
            expected = _expected(target, ids, tokens[:-1])
        else:
            expected = target.project(text.features[len(ids) : len(ids) + len(tokens) - 1]).float()
        expected = torch.softmax(expected / (temperature or 1.0), -1)
        tracks: dict[str, Track] = {}
        drafts: dict[str, list[list[int]]] = {}  # of the cheap drafters, by position
        for name, drafter in self.drafters.items():
            full = name in self.detail
            if isinstance(drafter, Eagle) and not drafter.window:
                tracks[name] = self._head(drafter, text, expected, noise, full)
            elif isinstance(drafter, DraftModel):
                tracks[name] = _compare(drafter, ids, tokens, self.longest, expected, noise, full)
            else:
                if noise is not None and not drafter.cheap:
                    raise ValueError(f"{name} is not recorded on sampled texts; leave it out, or record greedy ones")
                tracks[name], drafts[name] = self._walk(name, drafter, ids, tokens, text.limit, expected)
        return Text(label, len(ids), len(tokens), tracks, text.limit, _agreement(drafts), _repeats(ids, tokens))

    def _head(self, drafter: Eagle, text: Written, expected: torch.Tensor, noise: Noise | None, full: bool) -> Track:
        """A head's track, all positions at once; every one has the tokens that it may still draft (``room``)."""
        tokens, count, limit = text.tokens, len(text.tokens) - 1, text.limit
        room = [max(0, min(self.longest, limit - at - 2)) for at in range(count)]
        shapes = self.trees if full else ()
        deepest = max([self.longest, *(depth for depth, _ in shapes)])
        head = drafter.plain(self.decoder.target)
        whole = [*text.prompt, *tokens]
        every = Everywhere(head, whole, len(text.prompt) - 1, count, deepest, text.features)
        coming = torch.full((count, deepest), -1)
        for at in range(count):
            coming[at, : len(tokens) - at - 1] = torch.tensor(tokens[at + 1 : at + 1 + deepest])
        coming = coming.to(every.at.device)
        sampled = (None, 1.0) if noise is None else (noise.rows[1:], SHARPER * noise.temperature)
        sure: list[tuple[float, ...]] = [()] * count
        if full and noise is None:  # with noise it would not be the head's own
            chain = list(every.grow(self.longest, 1))
            agreed, sure = accepted_chain(chain, coming).tolist(), _confidence(chain, room)
        else:
            agreed = every.agreed(coming[:, : self.longest], *sampled).tolist()
        q = torch.softmax(every.first_logits().float() / sampled[1], -1)
        shared = torch.minimum(expected, q[:, : expected.shape[-1]]).sum(-1).clamp(0, 1).tolist()
        trees: dict[str, list[int]] = {}
        for breadth in {shape.breadth for _, shape in shapes}:
            own = [(depth, shape) for depth, shape in shapes if shape.breadth == breadth]
            levels = list(every.grow(max(depth for depth, _ in own), breadth, *sampled))
            for depth, shape in own:
                by_depth = [accepted_tree(levels[: d + 1], coming, shape.nodes).tolist() for d in range(depth)]
                deep = [min(depth, limit - at - 2) for at in range(count)]
                trees[f"{depth}@{shape}"] = [by_depth[d - 1][at] if d > 0 else 0 for at, d in enumerate(deep)]
        right = [min(n, most) for n, most in zip(agreed, room, strict=True)]
        return Track(room, right, [0] * count, sure, shared, cheap=False, trees=trees, head=True)

    def _walk(
        self, name: str, drafter: Drafter, prompt: Sequence[int], tokens: Sequence[int], limit: int,
        expected: torch.Tensor,
    ) -> tuple[Track, list[list[int]]]:  # fmt: skip
        """The drafter's track, and what it proposed at each position."""
        track, drafts = Track([], [], [], [], cheap=drafter.cheap), []
        drafter.begin(prompt)
        for at, token in enumerate(tokens[:-1], 1):
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
            track.overlap.append(_overlap(expected[at - 1], draft))
            drafts.append(draft.tokens)
        drafter.extend(tokens[-1:])
        return track, drafts


def _expected(target: Runner, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """The target's logits after each of the tokens, (tokens, vocabulary)."""
    target.begin()
    target.prefill(prompt)
    rows = []
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        rows.append(target.forward(part, len(part)).float().clone())
    return torch.cat(rows)


def _confidence(chain: Sequence[Level], room: Sequence[int]) -> list[tuple[float, ...]]:
    """A head's own probability of each token of the chains that it drafts, as long as there is room for them."""
    paths = torch.cat([level.paths for level in chain], 1).exp()  # (positions, length): of all tokens up to each
    own = torch.cat((paths[:, :1], paths[:, 1:] / paths[:, :-1].clamp(min=1e-30)), 1).clamp(0, 1).tolist()
    return [tuple(row[:most]) for row, most in zip(own, room, strict=True)]


def _overlap(p: torch.Tensor, draft: Draft) -> float:
    """1 - TV of target and drafter at the first drafted position; 0 where nothing is drafted."""
    if not draft.tokens or draft.tokens[0] >= len(p):
        return 0.0
    q = None if draft.raw is None else torch.softmax(draft.raw([0]).float(), -1)[:, : len(p)]
    return overlap(p[None, : len(p) if q is None else q.shape[-1]], draft.tokens[:1], q)[0]


def _repeats(prompt: list[int], tokens: list[int]) -> list[int]:
    """For every token after the first whether prompt or text had it before (Signal.REPEATS)."""
    seen, found = set(prompt), []
    for token in tokens:
        found.append(int(token in seen))
        seen.add(token)
    return found[1:]


def _agreement(drafts: dict[str, list[list[int]]]) -> dict[str, dict[str, list[int]]]:
    """Leading tokens that every two drafters both propose, at each position."""
    names = list(drafts)
    at = [drafter_agreement(dict(zip(names, each, strict=True))) for each in zip(*drafts.values(), strict=True)]
    return {
        one: {other: [common[one][other] for common in at] for other in names[i + 1 :]}
        for i, one in enumerate(names[:-1])
    }


def _compare(
    drafter: DraftModel, prompt: Sequence[int], tokens: Sequence[int], longest: int, expected: torch.Tensor,
    noise: Noise | None, full: bool,
) -> Track:  # fmt: skip
    """A model drafts the text's own tokens for as long as it agrees with it, so one reading of the text tells all."""
    # Its confidence past the first disagreement is that along the text, not along its own draft.
    positions = len(tokens) - 1
    readable = min(positions, _readable(drafter.runner, [*prompt, *tokens]) - len(prompt))
    if readable < 1:
        return Track([0] * positions, [0] * positions, [0] * positions, [()] * positions, cheap=False)
    drafter.runner.begin()
    drafter.runner.prefill(prompt)
    likeliest: list[int] = []
    sure: list[float] = []
    shared: list[float] = []
    for start in range(0, readable, CHUNK):
        part = tokens[start : min(start + CHUNK, readable)]
        heat = 1.0 if noise is None else noise.temperature
        p = expected[start : start + len(part)]
        logits = drafter.runner.forward(part, len(part))[:, : p.shape[-1]].float() / heat
        q = torch.softmax(logits, -1)
        if noise is not None:
            rows = noise.rows[start + 1 : start + 1 + len(part)]
            logits = logits[:, : rows.shape[1]] + rows[:, : logits.shape[1]]
        likeliest += logits.argmax(-1).tolist()
        sure += q.max(-1).values.clamp(max=1).tolist()
        shared += torch.minimum(p[:, : q.shape[-1]], q).sum(-1).clamp(0, 1).tolist()
    size = [max(0, min(longest, drafter.runner.limit - len(prompt) - at - 1)) for at in range(readable)]
    agreed = [0] * (readable + 1)
    for at in range(readable - 1, -1, -1):
        agreed[at] = agreed[at + 1] + 1 if likeliest[at] == tokens[at + 1] else 0
    blind = positions - readable  # positions at the end where it cannot draft
    right = [min(run, most) for run, most in zip(agreed, size, strict=False)]
    confidence = [tuple(sure[at : at + most]) if full else () for at, most in enumerate(size)]
    columns = size + [0] * blind, right + [0] * blind, [0] * positions, confidence + [()] * blind
    return Track(*columns, shared + [0.0] * blind, cheap=False)


def _readable(runner: Runner, text: Sequence[int]) -> int:
    """Tokens the model can read of a text: no more than it holds, and up to one that its table lacks."""
    foreign = next((i for i, token in enumerate(text) if token >= runner.vocabulary), len(text))
    return min(foreign, runner.limit)
