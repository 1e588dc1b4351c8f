"""One round of a text: draft, verify, accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from wager.core import Arm, Signal
from wager.decoding.acceptance import continued, overlap
from wager.decoding.prepare import Processors
from wager.decoding.sampler import NO_IDS, RoundSampler, Sampler
from wager.decoding.text_ids import TextIds
from wager.drafters import Draft, Drafter
from wager.models.runner import WIDEST_TREE, Runner

NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Played:
    """A draft that was verified; the target's cache holds what was accepted."""

    draft: Draft
    path: list[int]  # indices of the accepted tokens
    following: int
    scores: torch.Tensor | None  # that both were decided by; None: they stayed on the device
    drafted: float  # when it was drafted, by the clock
    own: int  # of the accepted tokens, those that would be without what was merged into the draft


class Rounds:
    """Plays rounds of one text on its target, whatever arm each of them has."""

    target: Runner
    drafters: Mapping[str, Drafter]
    needs: frozenset[Signal]  # signals that somebody wants
    sampler: Sampler
    processors: Processors
    text: list[int]
    begins: int  # the prompt's tokens
    ids: TextIds | None  # the text, where someone looks at it
    on_device: bool  # whether a round may stay there: nobody looks at the text, the logits, or the draft beforehand

    @property
    def position(self) -> int:
        """That of the next token, among the new ones."""
        return len(self.text) - self.begins

    def meanwhile(self) -> Arm | None:
        """Done while the device works; the arm of the next round, if it is known."""
        return None

    def _play(self, arm: Arm, room: int, proposals: Mapping[str, Draft]) -> Played:
        """Draft, verify and accept."""
        began, length = perf_counter(), min(arm.length, room)
        merged = self._draft(arm.merged, room, proposals).tokens if arm.merged is not None else []
        if length and self.on_device and arm.drafter not in proposals:
            made = self.drafters[arm.drafter].play(length, arm.tree, self._choices, self._round_sampler(), merged)
            if made is not None:
                drafted = max(began + made.draft.lag_seconds, perf_counter() - made.verify_seconds)
                return Played(made.draft, made.path, made.following, None, drafted, made.own)
        draft = self._draft(arm, room, proposals)
        count = len(draft.tokens)
        if merged:
            draft = with_merged(draft, merged)
        drafted = perf_counter()
        if draft.parents is not None:
            path, following, scores = self._verify_tree(draft, draft.parents)
            return Played(draft, path, following, scores, drafted, sum(at < count for at in path))
        logits = self.target.forward([self.text[-1], *draft.tokens], count + 1)
        self.meanwhile()
        accepted, following, scores = self._accept(logits, draft)
        self.target.crop(len(self.text) + accepted)
        return Played(draft, list(range(accepted)), following, scores, drafted, accepted)

    def _choices(self, logits: torch.Tensor, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
        """The target's own tokens, chosen where the logits are; a ``DeviceChoices``."""
        return self.sampler.choices(self.processors(NO_IDS, logits), self.position, levels, depths)

    def _round_sampler(self) -> RoundSampler | None:
        if not self.sampler.samples:
            return None
        return RoundSampler(self.sampler, self.processors, self.begins, self.position)

    def _draft(self, arm: Arm, room: int, proposals: Mapping[str, Draft]) -> Draft:
        length = min(arm.length, room)
        if length == 0:
            return NO_DRAFT
        sample = self._round_sampler()
        if arm.tree is not None:
            draft = self.drafters[arm.drafter].propose_tree(length, arm.tree, sample)
            if draft.parents is not None:
                return _within(draft, draft.parents, self.target.vocabulary)
        elif arm.drafter in proposals:
            draft = proposals[arm.drafter].cut(length)
        else:
            draft = self.drafters[arm.drafter].propose(length, sample)
        for at, token in enumerate(draft.tokens):
            if token >= self.target.vocabulary:  # the target has no such token, and could not even look at it
                return draft.cut(at)
        return draft

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        """Tokens kept, the token after them, and the scores both were decided by."""
        scores = self.processors(self._with_draft(draft.tokens), logits)
        return *self.sampler.chain(scores, draft, self.position), scores

    def _with_draft(self, tokens: Sequence[int]) -> torch.Tensor:
        """The text with these tokens after it, (1, both), where someone looks at it."""
        return self.ids.with_draft(tokens) if self.ids else NO_IDS

    def _verify_tree(self, draft: Draft, parents: list[int]) -> tuple[list[int], int, torch.Tensor]:
        """The path that is kept, which alone stays in the target's cache, the token after it, and the scores."""
        tokens = draft.tokens
        logits = self.target.forward([self.text[-1], *tokens], len(tokens) + 1, [-1, *(at + 1 for at in parents)])
        self.meanwhile()
        scores = self._tree_scores(logits, tokens, parents)
        path, following = self.sampler.tree(scores, draft, parents, self.position)
        self.target.keep([0, *(at + 1 for at in path)])
        return path, following, scores

    def _tree_scores(self, logits: torch.Tensor, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """What each position's token is chosen by; whatever looks at the text is shown the position's own path."""
        if not self.processors.needs_text:
            return self.processors(NO_IDS, logits)
        paths: list[list[int]] = [[]]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*paths[parent + 1], token])
        rows = enumerate(paths)
        return torch.cat([self.processors(self._with_draft(path), logits[at : at + 1]) for at, path in rows])

    def _overlap(self, scores: torch.Tensor, draft: Draft, accepted: Sequence[int]) -> tuple[float, ...]:
        """1 - TV at each drafted position, if someone wants it; of a tree along one path.

        That is the accepted one, continued by the first token after each, the likeliest, as a chain goes on after a
        rejection.
        """
        if Signal.OVERLAP not in self.needs or not draft.tokens:
            return ()
        if draft.parents is None:
            way, rows = list(range(len(draft.tokens))), scores[: len(draft.tokens)]
        else:
            way = continued(accepted, draft.parents)
            rows = scores[[0, *(at + 1 for at in way[:-1])]]
        tokens = [draft.tokens[at] for at in way]
        q = None if draft.probs is None else draft.probs[way]
        if q is None and draft.raw is not None:
            # What it would have drawn from; its last token has the others before it.
            q = torch.softmax(self.processors(self._with_draft(tokens[:-1]), draft.raw(way)), -1, dtype=torch.float32)
        return overlap(torch.softmax(rows, -1, dtype=torch.float32), tokens, q)


def with_merged(draft: Draft, chain: Sequence[int]) -> Draft:
    """The draft and a chain beside it, as one tree: the draft's own tokens first, then what the chain has beyond them.

    Every token counts as certain, as the chain's are, whatever of the chain is new: that is exact, however the draft's
    own were drawn. There are no more tokens than one forward verifies as a tree.
    """
    tokens, most = list(draft.tokens), max(WIDEST_TREE - 1, len(draft.tokens))
    parents = list(draft.parents) if draft.parents is not None else list(range(-1, len(tokens) - 1))
    below = {(parent, token): at for at, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    last = -1
    for token in chain:
        if (last, token) not in below:
            if len(tokens) == most:
                break
            below[last, token] = len(tokens)
            tokens.append(token)
            parents.append(last)
        last = below[last, token]
    if len(tokens) == len(draft.tokens):
        return replace(draft, probs=None)
    return Draft(tokens, draft.hint, lag=draft.lag, lag_seconds=draft.lag_seconds, parents=parents, begun=draft.begun)


def _within(draft: Draft, parents: Sequence[int], vocabulary: int) -> Draft:
    """The tree without tokens the target does not have, or has among their siblings already, and all after them."""
    siblings: set[tuple[int, int]] = set()
    now: dict[int, int] = {-1: -1}  # old index -> new
    for at, (token, parent) in enumerate(zip(draft.tokens, parents, strict=True)):
        if token < vocabulary and parent in now and (parent, token) not in siblings:
            siblings.add((parent, token))
            now[at] = len(now) - 1
    if not siblings:
        return Draft(hint=draft.hint, lag=draft.lag, lag_seconds=draft.lag_seconds)
    if len(siblings) == len(draft.tokens):
        return draft
    del now[-1]
    probs = None if draft.probs is None else draft.probs[list(now)]
    kept = [draft.tokens[at] for at in now]
    above = [now.get(parents[at], -1) for at in now]
    old, raw = list(now), draft.raw
    own = None if raw is None else (lambda at: raw([old[i] for i in at]))
    return Draft(kept, draft.hint, probs, draft.lag, draft.lag_seconds, above, own)
