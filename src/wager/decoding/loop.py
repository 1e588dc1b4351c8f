"""The loop: one request, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from wager.core import Arm, Context, PromptFeatures, Round, Signal
from wager.core.round import Accepted
from wager.decoding.acceptance import accept_greedy, continued, overlap
from wager.decoding.arms import fit_arms
from wager.decoding.generation import BONUS, PLAIN, Piece
from wager.decoding.hold import Hold
from wager.decoding.prepare import Prepared, Stopping
from wager.decoding.sampler import NO_IDS, RoundSampler, Sampler
from wager.decoding.scoring import TextScorer
from wager.decoding.text_ids import TextIds
from wager.drafters import Draft, Drafter, drafter_agreement
from wager.models.runner import Runner
from wager.policies.base import Policy

Features = Callable[[Sequence[int], float], PromptFeatures]  # of a prompt and its perplexity
EVERYTHING = frozenset(Signal)
WORK_ALONE = {"cuda"}  # devices on which the host does something else in the meantime
NO_DRAFT = Draft()
NO_PROPOSALS: Mapping[str, Draft] = {}


@dataclass(frozen=True, slots=True)
class _Played:
    """A draft that was verified; the target's cache holds what was accepted."""

    draft: Draft
    path: list[int]  # indices of the accepted tokens
    following: int
    scores: torch.Tensor | None  # that both were decided by; None: they stayed on the device
    drafted: float  # when it was drafted, by the clock


class Loop:
    """Plays rounds on one target until the text is finished.

    ``needs`` are the signals to measure: those the policy needs, or all of them for a trace. The target holds as much
    of the prompt as it has read already, nothing as a rule.
    """

    def __init__(self, target: Runner, drafters: Mapping[str, Drafter], policy: Policy, arms: tuple[Arm, ...],
                 needs: frozenset[Signal], features: Features,
                 calibrate: Callable[[Sequence[int]], object] | None = None) -> None:  # fmt: skip
        self.target, self.drafters, self.policy = target, drafters, policy
        self.needs, self.features = needs, features
        self.calibrate = calibrate  # called with the text before its first round, once the first token is out
        self.calibration_seconds = 0.0  # that took; not a part of decoding
        hinting = bool(needs & {Signal.HINTS, Signal.OTHERS})
        self.cheap = [d for d in drafters.values() if d.cheap and hinting]
        self.selective = needs < EVERYTHING  # a trace holds what every drafter would have had accepted
        self.dear = [d for d in drafters.values() if not d.cheap]
        readers = [d for d in self.dear if d.reads] if Signal.READ in needs else []
        self.readers = readers if len(readers) >= policy.least_readers or not self.selective else []
        self.longest = max(arm.length for arm in arms)
        fit_arms(arms, target)
        self.arms = arms  # one tuple throughout: policies keep what they worked out for it
        self.hold = Hold(self.selective)
        self.finish = ""

    @property
    def position(self) -> int:
        """That of the next token, among the new ones."""
        return len(self.text) - self.begins

    def run(self, request: Prepared, sampler: Sampler) -> Iterator[Piece]:
        """The request's pieces, without their text, until it is finished; ``finish`` then says why."""
        self.sampler, self.processors = sampler, request.processors
        self.stopping = Stopping(request.criteria, self.target.limit)
        self.text: list[int] = request.ids[0].tolist()
        self.begins, self.finish = len(self.text), ""
        self.seen = set(self.text) if Signal.REPEATS in self.needs else None
        # Whether a round may stay on the device: nobody looks at the text, the logits, or the draft beforehand.
        self.on_device = sampler.on_device and not self.processors.needs_text and Signal.OVERLAP not in self.needs
        looked_at = self.processors.needs_text or self.stopping.needs_text
        self.ids = TextIds(self.text, self.target.device) if looked_at else None
        self.previous: Arm | None = None
        self.unobserved: Round | None = None  # the last round, where the next one does not depend on it
        self.hold.begin()
        self.scorer = TextScorer(self.text, self.begins, sampler, self.processors) if self.readers else None
        for drafter in self.drafters.values():
            drafter.scorer = self.scorer if drafter in self.readers else None
            drafter.meanwhile = self._observe
            drafter.begin(self.text)
        yield self._prefill()
        if self.calibrate is not None and not self.finish:
            began = perf_counter()
            self.calibrate(self.text)
            self.calibration_seconds = perf_counter() - began
        while not self.finish:
            yield self._round()

    def _prefill(self) -> Piece:
        """Read the prompt and take the first token, which its own forward gives."""
        unread = self.text[self.target.length :]
        self.prompt: PromptFeatures | None = None
        if Signal.PROMPT in self.needs:
            logits, perplexity = self.target.prefill_scored(unread)
            self.prompt = self.features(self.text, perplexity)
        else:
            logits = self.target.prefill(unread)
        _, token, scores = self._accept(logits, NO_DRAFT)
        if self.scorer is not None:
            self.scorer.taken(scores, [0])
        tokens, _ = self._commit([token])
        return Piece("", tuple(tokens), (PLAIN,) * len(tokens), None)

    def _round(self) -> Piece:
        # Choose.
        began = perf_counter()
        remaining = self.stopping.limit - len(self.text)
        room = min(self.longest, remaining - 1)  # the target adds one itself
        arm, context, proposals, proposing = self.hold.take(), None, NO_PROPOSALS, 0.0
        if arm is None:
            context, proposals = self._propose(room, remaining)
            proposing = sum(context.proposal_seconds.values())
            arm = self.policy.choose(context)
        # Draft, verify, accept.
        chose = perf_counter()
        done = self._play(arm, room, proposals)
        verified = perf_counter()
        draft, path, scores = done.draft, done.path, done.scores
        accepted, kept = len(path), [draft.tokens[at] for at in path]
        rejected = tuple(token for at, token in enumerate(draft.tokens) if at not in path)
        shared: tuple[float, ...] = ()
        if scores is not None:
            shared = self._overlap(scores, draft, path)  # while the text is what the draft goes on from
            if self.scorer is not None:
                self.scorer.taken(scores, [0, *(at + 1 for at in path)])
        tokens, repeated = self._commit([*kept, done.following])
        committed = perf_counter()
        read_seconds = self._read(context, arm) if context else {}
        selecting = perf_counter() - committed - sum(read_seconds.values())  # who reads
        if self.finish:  # a text that ended inside its draft: whoever goes on from this cache must not find the rest
            self.target.crop(min(self.target.length, len(self.text) - 1))
        # Observe.
        draft_seconds = max(0.0, done.drafted - chose - draft.lag_seconds) + proposing
        played = Round(
            arm, len(draft.tokens), accepted, len(tokens), draft_seconds=draft_seconds,
            verify_seconds=verified - done.drafted, lag=draft.lag, lag_seconds=draft.lag_seconds, begun=draft.begun,
            overlap=shared, others=self._others(proposals, arm, tokens), repeated=repeated, read_seconds=read_seconds,
        )  # fmt: skip
        self._observe()
        self.unobserved, ended = played, perf_counter()
        if context is not None or not self.hold.left or self.finish or self.target.device.type not in WORK_ALONE:
            self._observe()  # otherwise in the next round, while the device works
        if context is not None:
            learning = selecting + perf_counter() - ended
            self.hold.chosen(arm, self.policy.may_stand, chose - began, verified - chose, learning, begun=draft.begun)
        self.previous, self.prompt = arm, None
        # Seconds that are neither model nor drafter.
        self.overhead = perf_counter() - verified + chose - began - proposing - sum(read_seconds.values())
        sources = [arm.drafter] * accepted + [BONUS if draft.tokens else PLAIN]
        return Piece("", tuple(tokens), tuple(sources[: len(tokens)]), played, rejected, context is None)

    def _observe(self) -> None:
        if self.unobserved is not None:
            played, self.unobserved = self.unobserved, None
            self.policy.observe(played)

    def _propose(self, room: int, remaining: int) -> tuple[Context, dict[str, Draft]]:
        """What is known before the round, and the proposals of the cheap drafters that the policy selects."""
        lag = {d.name: d.lag for d in self.dear}
        context = Context(self.arms, 1, self.position, self.previous, lag, prompt=self.prompt, remaining=remaining)
        if not room or not self.cheap:
            return context, {}
        names = self.policy.select_drafters(context) if self.selective else self.drafters
        proposals: dict[str, Draft] = {}
        seconds: dict[str, float] = {}
        before = perf_counter()
        for drafter in self.cheap:
            if drafter.name in names:
                proposals[drafter.name] = drafter.propose(room)
                after = perf_counter()
                seconds[drafter.name] = after - before
                before = after
        hints = {name: draft.hint for name, draft in proposals.items()}
        agreement = drafter_agreement({name: draft.tokens for name, draft in proposals.items()})
        known = (self.arms, 1, self.position, self.previous, lag, hints, agreement, seconds, self.prompt)
        return Context(*known, remaining), proposals

    def _play(self, arm: Arm, room: int, proposals: Mapping[str, Draft]) -> _Played:
        """Draft, verify and accept."""
        began, length = perf_counter(), min(arm.length, room)
        if length and self.on_device and arm.drafter not in proposals:
            made = self.drafters[arm.drafter].play(length, arm.tree, self._choices, self._round_sampler())
            if made is not None:
                drafted = max(began + made.draft.lag_seconds, perf_counter() - made.verify_seconds)
                return _Played(made.draft, made.path, made.following, None, drafted)
        draft = self._draft(arm, room, proposals)
        drafted = perf_counter()
        if draft.parents is not None:
            return _Played(draft, *self._verify_tree(draft, draft.parents), drafted)
        logits = self.target.forward([self.text[-1], *draft.tokens], len(draft.tokens) + 1)
        self._observe()
        accepted, following, scores = self._accept(logits, draft)
        self.target.crop(len(self.text) + accepted)
        return _Played(draft, list(range(accepted)), following, scores, drafted)

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

    def _commit(self, tokens: list[int]) -> tuple[list[int], int | None]:
        """Add verified tokens to the text, up to where it ends; how many of them had occurred before."""
        taken, self.finish = self.stopping.check(len(self.text), tokens, self._with_draft(tokens))
        if self.ids:
            self.ids.length += len(tokens)
        tokens = tokens[:taken]
        self.text += tokens
        for drafter in self.drafters.values():
            drafter.extend(tokens)
        if self.seen is None:
            return tokens, None
        known = 0
        for token in tokens:
            known += token in self.seen
            self.seen.add(token)
        return tokens, known

    def _read(self, context: Context, arm: Arm) -> dict[str, float]:
        """Let the models that the policy selects read the text without drafting; the seconds of each."""
        seconds: dict[str, float] = {}
        names = self.policy.select_readers(context) if self.readers and not self.finish else ()
        for drafter in self.readers if names else ():
            if drafter.name in names and drafter.name != arm.drafter:
                before = perf_counter()
                drafter.read()
                seconds[drafter.name] = perf_counter() - before
        return seconds

    def _others(self, proposals: Mapping[str, Draft], arm: Arm, tokens: Sequence[int]) -> dict[str, Accepted]:
        """What every other cheap drafter would have had accepted, as far as the text now tells, and what models that
        have read tokens they had missed would have had accepted there."""
        if Signal.OTHERS not in self.needs:
            return {}
        known: dict[str, Accepted] = {
            name: accept_greedy([*tokens, -1], draft.tokens[: len(tokens)])
            for name, draft in proposals.items()
            if name != arm.drafter
        }
        for drafter in self.readers:
            if scores := drafter.take_scores():
                known[drafter.name] = scores
        return known


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
