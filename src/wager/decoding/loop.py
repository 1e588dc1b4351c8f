"""The loop: one request, round after round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter

import torch

from wager.core import Arm, Context, PromptFeatures, Round, Signal
from wager.core.garbage import collect_due, uncollected
from wager.core.round import Accepted
from wager.decoding.acceptance import accept_greedy
from wager.decoding.arms import fit_arms
from wager.decoding.generation import BONUS, PLAIN, Piece
from wager.decoding.hold import Hold
from wager.decoding.prepare import Prepared, Stopping
from wager.decoding.rounds import NO_DRAFT, Rounds
from wager.decoding.sampler import Sampler
from wager.decoding.scoring import TextScorer
from wager.decoding.text_ids import TextIds
from wager.drafters import Draft, Drafter, drafter_agreement
from wager.models.runner import Runner
from wager.policies.base import Policy
from wager.policies.choice import choice_of

Features = Callable[[Sequence[int], float], PromptFeatures]  # of a prompt and its perplexity
KindsOf = Callable[[Sequence[int]], Mapping[str, float]]  # how likely a prompt is of each kind
EVERYTHING = frozenset(Signal)
WORK_ALONE = {"cuda"}  # devices on which the host does something else in the meantime
NO_PROPOSALS: Mapping[str, Draft] = {}
NO_KINDS: Mapping[str, float] = {}
RECENT = 2  # rounds since a model has drafted, after which it is not expected to draft in the next one


def works_alone(device: torch.device) -> bool:
    """Whether the host does something else while the device works."""
    return device.type in WORK_ALONE


class Loop(Rounds):
    """Plays rounds on one target until the text is finished.

    ``needs`` are the signals to measure: those the policy needs, or all of them for a trace. The target holds as much
    of the prompt as it has read already, nothing as a rule.
    """

    def __init__(self, target: Runner, drafters: Mapping[str, Drafter], policy: Policy, arms: tuple[Arm, ...],
                 needs: frozenset[Signal], features: Features, calibrate: Callable[[Sequence[int]], None] | None = None,
                 hold: Hold | None = None, kinds: KindsOf | None = None) -> None:  # fmt: skip
        self.target, self.drafters, self.policy = target, drafters, policy
        self.needs, self.features, self.kinds_of = needs, features, kinds if Signal.KINDS in needs else None
        self.calibrate = calibrate  # called with the text before its first round, once the first token is out
        self.calibration_seconds = 0.0  # that took; not a part of decoding
        hinting = bool(needs & {Signal.HINTS, Signal.OTHERS})
        self.cheap = [d for d in drafters.values() if d.cheap and hinting]
        self.selective = needs < EVERYTHING  # a trace holds what every drafter would have had accepted
        self.dear = [d for d in drafters.values() if not d.cheap]
        self.quick = {name for name, d in drafters.items() if d.cheap}
        readers = [d for d in self.dear if d.reads] if Signal.READ in needs else []
        self.readers = readers if len(readers) >= policy.least_readers or not self.selective else []
        self.can_read = frozenset(d.name for d in self.readers)
        self.longest = max(arm.length for arm in arms)
        fit_arms(arms, target)
        self.arms = arms  # one tuple throughout: policies keep what they worked out for it
        self.hold = hold if hold is not None and hold.policy is policy else Hold(policy)
        self.finish = ""

    def run(self, request: Prepared, sampler: Sampler) -> Iterator[Piece]:
        """The request's pieces, without their text, until it is finished; ``finish`` then says why."""
        self.sampler, self.processors = sampler, request.processors
        self.stopping = Stopping(request.criteria, self.target.limit)
        self.text = request.ids[0].tolist()
        self.begins, self.finish = len(self.text), ""
        self.seen = set(self.text) if Signal.REPEATS in self.needs else None
        self.on_device = sampler.on_device and not self.processors.needs_text and Signal.OVERLAP not in self.needs
        # By the residual rule, what was drawn for a draft would count as certain beside a chain: it is accepted less.
        self.merges = sampler.on_device and self.target.trees
        looked_at = self.processors.needs_text or self.stopping.needs_text
        self.ids = TextIds(self.text, self.target.device) if looked_at else None
        self.previous: Arm | None = None
        self.unobserved: Round | None = None  # the last round, where the next one does not depend on it
        self.hold.begin()
        # What is done while the device works, of what would else come between two rounds.
        self.alone = works_alone(self.target.device)
        self.late = self.alone and self.selective and self.policy.late
        self.collects = False  # whether the caller has garbage collected automatically
        self.untold: list[int] = []  # tokens of the text that the cheap drafters were not told of
        self.chosen: tuple[Context, Arm] | None = None  # for the next round
        self.wanted: tuple[str, ...] = ()  # cheap drafters that propose for it, where that is known; none: it is not
        self.playing: tuple[Arm, Context | None] | None = None  # in this round
        self.selected: tuple[str, ...] | None = None  # models that read after it
        self.drafted: tuple[Arm, int] | None = None  # by a model, and the rounds since
        self.scorer = TextScorer(self.text, self.begins, sampler, self.processors) if self.readers else None
        for drafter in self.drafters.values():
            drafter.scorer = self.scorer if drafter in self.readers else None
            drafter.meanwhile = self.meanwhile
        yield self._prefill()
        if self.calibrate is not None and not self.finish:
            began = perf_counter()
            self.calibrate(self.text)
            self.calibration_seconds = perf_counter() - began
        while not self.finish:
            yield self._undisturbed_round() if self.alone else self._round()

    def _undisturbed_round(self) -> Piece:
        """Without an automatic collection of garbage, which would come while the device waits."""
        self.collects = gc.isenabled()
        with uncollected():
            return self._round()

    def _prefill(self) -> Piece:
        """Read the prompt and take the first token, which its own forward gives."""
        unread = self.text[self.target.length :]
        self.prompt: PromptFeatures | None = None
        if Signal.PROMPT in self.needs:
            logits, perplexity = self.target.prefill_scored(unread)
            self.prompt = self.features(self.text, perplexity)
        else:
            logits = self.target.prefill(unread)
        for drafter in self.drafters.values():  # a device still reads
            drafter.begin(self.text)
        self.kinds = self.kinds_of(self.text) if self.kinds_of is not None else NO_KINDS
        if self.late and self.calibrate is None and self.prompt is None:
            self._choose_first()
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
        (context, arm), asked = self._take(), False
        proposals, proposing = NO_PROPOSALS, 0.0
        if arm is None:
            context, proposals = self._propose(room, remaining)
            proposing, asked = sum(context.proposal_seconds.values()), True
            arm = choice_of(self.policy, context)
        # Draft, verify, accept.
        chose = perf_counter()
        bare = arm.alone  # what is merged into a draft is of this round only
        self.playing, self.selected = (arm, context), None
        if arm.drafter in self.quick or arm.merged is not None:
            self._tell()
        done = self._play(arm, room, proposals)
        self.playing, verified = None, perf_counter()
        draft, path, scores = done.draft, done.path, done.scores
        accepted, kept = len(path), [draft.tokens[at] for at in path]
        rejected = tuple(token for at, token in enumerate(draft.tokens) if at not in path)
        shared: tuple[float, ...] = ()
        if scores is not None:
            shared = () if arm.merged else self._overlap(scores, draft, path)  # while the text is what it goes on from
            if self.scorer is not None:
                self.scorer.taken(scores, [0, *(at + 1 for at in path)])
        tokens, repeated = self._commit([*kept, done.following])
        committed = perf_counter()
        read_seconds = self._read(context, bare) if context else {}
        selecting = perf_counter() - committed - sum(read_seconds.values())  # who reads
        if self.finish:  # a text that ended inside its draft: whoever goes on from this cache must not find the rest
            self.target.crop(min(self.target.length, len(self.text) - 1))
        # Observe.
        draft_seconds = max(0.0, done.drafted - chose - draft.lag_seconds) + proposing
        cut, own = self._merging(arm, done.own, room, proposals)
        played = Round(
            arm, len(draft.tokens), accepted, len(tokens), draft_seconds=draft_seconds,
            verify_seconds=verified - done.drafted, lag=draft.lag, lag_seconds=draft.lag_seconds, begun=draft.begun,
            overlap=shared, others=self._others(proposals, arm, tokens), repeated=repeated, read_seconds=read_seconds,
            rejected=cut, unmerged=own,
        )  # fmt: skip
        self._observe()
        self.unobserved, ended = played, perf_counter()
        if self.finish or not (self.late or (self.alone and self.hold.left and context is None)):
            self._observe()  # otherwise in the next round, while the device works
        if context is not None and self.selective:
            # where the next choice is made already, the round takes no seconds that it could be held for
            learning, seconds = selecting + perf_counter() - ended, 0.0 if self.chosen else verified - chose
            self.hold.chosen(bare, chose - began if asked else 0.0, seconds, learning, begun=draft.begun)
        self.previous, self.prompt, self.kinds = bare, None, NO_KINDS
        self._prepare(bare, room)
        # Seconds that are neither model nor drafter.
        self.overhead = perf_counter() - verified + chose - began - proposing - sum(read_seconds.values())
        sources = [arm.drafter] * done.own + [arm.merged.drafter if arm.merged else ""] * (accepted - done.own)
        sources.append(BONUS if draft.tokens else PLAIN)
        return Piece("", tuple(tokens), tuple(sources[: len(tokens)]), played, rejected, not asked)

    def _merging(self, arm: Arm, own: int, room: int, proposals: Mapping[str, Draft]) -> tuple[int, int]:
        """Of an arm with something merged: whether its own draft was cut short, and the accepted tokens of that."""
        if arm.merged is None:
            return -1, -1
        drafted = len(proposals[arm.drafter].tokens) if arm.drafter in proposals else room
        return int(own < min(arm.length, drafted)), own

    def _take(self) -> tuple[Context | None, Arm | None]:
        """The arm of the next round, if it was chosen already or is held, with what it was chosen by."""
        if self.chosen is not None:
            taken, self.chosen = self.chosen, None
            return taken
        held = self.hold.take()
        if held is not None:
            self.wanted = ()  # who is to propose is known anew before the next choice
        return None, held

    def meanwhile(self) -> Arm | None:
        """While the device works: learn from the last round, and choose for the next one, if no proposals are wanted.

        A choice made here does not know what this round brings; so it is made only while the same arm is played again,
        and in a text's first round, of which the device would otherwise wait for the next.
        """
        if self.collects:
            collect_due()
        self._observe()
        self._tell()
        if not self.late or self.playing is None:
            return None
        arm, context = self.playing
        if context is not None and self.selected is None:
            self.selected = self.policy.select_readers(context) if self.readers else ()
        if self.hold.left:
            return self.hold.arm
        left = self.stopping.limit - len(self.text) - 1 - arm.deepest  # at least, after this round
        if left < 2 or self.chosen is not None or self.wanted:
            return None
        bare = arm.alone
        following = self._before(bare, left, unobserved=True)
        if self.cheap:
            self.wanted = self.policy.select_drafters(following)
        if self.wanted:
            self.policy.foresee(following)
        if self.wanted or (self.previous is not None and bare != self.previous):
            return None
        self.chosen = following, choice_of(self.policy, following)
        return self.chosen[1]

    def _choose_first(self) -> None:
        """While the device reads the prompt: choose for the first round, if no proposals are wanted."""
        remaining = self.stopping.limit - len(self.text) - 1  # that forward gives a token
        if remaining > 1:  # otherwise no draft has room
            context = self._before(None, remaining)
            self.wanted = self.policy.select_drafters(context) if self.cheap else ()
            self.chosen = None if self.wanted else (context, choice_of(self.policy, context))

    def _before(self, previous: Arm | None, remaining: int, *, unobserved: bool = False) -> Context:
        """What is known of the next round while the device still works for this one, or reads the prompt."""
        lag, kinds = {d.name: d.lag for d in self.dear}, self.kinds if previous is None else NO_KINDS
        return Context(
            self.arms, 1, self.position + 1, previous, lag, remaining=remaining, unobserved=unobserved,
            readers=self.can_read, kinds=kinds,
        )  # fmt: skip

    def _observe(self) -> None:
        if self.unobserved is not None:
            played, self.unobserved = self.unobserved, None
            self.policy.observe(played)

    def _tell(self) -> None:
        """Tell the cheap drafters how the text went on."""
        if self.untold:
            for drafter in self.drafters.values():
                if drafter.cheap:
                    drafter.extend(self.untold)
            self.untold = []

    def _prepare(self, arm: Arm, room: int) -> None:
        """Have the model that drafted last begin the next draft, where the device would wait for the host to choose."""
        if arm.length and arm.drafter not in self.quick:
            self.drafted = arm, 0
        elif self.drafted is not None and arm.length and self.alone and self.on_device and not self.finish:
            last, since = self.drafted
            self.drafted = last, since + 1
            if since < RECENT and self.scorer is None and (length := min(last.length, room)):
                self.drafters[last.drafter].prepare(length, last.tree, self._round_sampler())

    def _propose(self, room: int, remaining: int) -> tuple[Context, dict[str, Draft]]:
        """What is known before the round, and the proposals of the cheap drafters that the policy selects."""
        lag, late = {d.name: d.lag for d in self.dear}, self.unobserved is not None
        known = (self.arms, 1, self.position, self.previous, lag)
        rest = (self.prompt, remaining, late, self.merges, self.can_read)
        names, self.wanted = self.wanted, ()
        if not names:
            context = Context(*known, {}, {}, {}, *rest, self.kinds)
            if not room or not self.cheap:
                return context, {}
            names = self.policy.select_drafters(context) if self.selective else tuple(self.drafters)
        self._tell()
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
        return Context(*known, hints, agreement, seconds, *rest, self.kinds), proposals

    def _commit(self, tokens: list[int]) -> tuple[list[int], int | None]:
        """Add verified tokens to the text, up to where it ends; how many of them had occurred before."""
        taken, self.finish = self.stopping.check(len(self.text), tokens, self._with_draft(tokens))
        if self.ids:
            self.ids.length += len(tokens)
        tokens = tokens[:taken]
        self.text += tokens
        self.untold += tokens
        for drafter in self.dear:
            drafter.extend(tokens)
        if not self.alone or self.finish:
            self._tell()
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
        names = self.selected if self.selected is not None else ()
        if self.selected is None and self.readers and not self.finish:
            names = self.policy.select_readers(context)
        for drafter in self.readers if names and not self.finish else ():
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
