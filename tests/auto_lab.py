"""Set-ups for the tests of `auto`: engines, servers, random rounds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wager.core import OFF, Arm, Context, Hint, Round
from wager.core.batch import Batch, BatchRound
from wager.policies import build
from wager.policies.auto import Auto, AutoConfig
from wager.policies.auto.features import AGREEMENT, Proposal
from wager.policies.auto.positional import PositionalAcceptance

CONFIG = AutoConfig()
Other = tuple[int, int, int]  # first of another drafter's weights, tokens both propose, tokens it proposes


def drawn_tokens(model: PositionalAcceptance, key: str, length: int, draw: float | None = None) -> list[float]:
    """Tokens a round emits with drafts of 0, 1, … tokens, by one Thompson draw, or this one."""
    counts = model.of(key, length)
    draw = model.draws_for(1).pop() if draw is None else draw
    return model.tokens(counts.odds[:length], math.exp(draw * counts.deviation))


def proposal_of(hint: Hint, length: int, others: Sequence[Other] = (), index: int = 0) -> Proposal:
    """A proposal of drafter ``index``, with what others say to it."""
    own = Proposal(index, "x", length, [(str(first), first) for first, _, _ in others])
    hints = {str(first): Hint(size=size) for first, _, size in others}
    return own.fill(hint, length, hints, {str(first): common for first, common, _ in others})


NAMES = ("x", "y", "z")


def auto(spec: str = "auto", drafters: int = 3, longest: int = 6, seed: int = 0) -> Auto:
    arms = (OFF, *(Arm(name, n) for name in NAMES[:drafters] for n in range(1, longest + 1)))
    policy = build(spec, arms, seed=seed)
    assert isinstance(policy, Auto)
    assert policy.per_request
    return policy


def decide(policy: Auto, batch: Batch) -> tuple[Any, Any]:
    chosen = policy.choose_batch(batch)
    return chosen.drafter, chosen.length


def run_of(rng: np.random.Generator, chances: Sequence[float]) -> int:
    """Tokens accepted until the first that is not."""
    return next((j for j, chance in enumerate(chances) if rng.random() >= chance), len(chances))


def any_hint(rng: np.random.Generator, longest: int) -> Hint:
    size = int(rng.integers(0, longest + 1))
    sure = tuple((rng.random(int(rng.integers(0, size + 1))) ** 0.3).tolist())
    return Hint(int(rng.integers(0, 14)), sure, size)  # a match without a size: it may propose any number of tokens


def random_context(rng: np.random.Generator, policy: Auto, number: int) -> Context:
    """Hints of x, y and z, now and then missing; a tree, and w, which never says anything beforehand."""
    hints = {}
    for name in NAMES:
        if rng.random() < 0.9:
            size = int(rng.integers(0, 8))
            sure = tuple((rng.random(int(rng.integers(0, size + 1))) ** 0.3).tolist())
            hints[name] = Hint(int(rng.integers(0, 14)) if size else 0, sure, size)
    shared: dict[str, dict[str, int]] = {name: {} for name in hints}
    for one in hints:
        for other in hints:
            if one < other:
                common = int(rng.integers(0, min(hints[one].size, hints[other].size) + 1))
                shared[one][other] = shared[other][one] = common
    arms = tuple(arm for arm in policy.arms if rng.random() < 0.8) or policy.arms
    last = [arm for arm in policy.arms if arm.drafter == "w"]
    stays = bool(last) and rng.random() < 0.5  # w drafted last
    previous = None if number % 50 == 0 else last[0] if stays else OFF
    lag, remaining = (
        {"w": 0 if stays else int(rng.integers(0, 30))},
        int(rng.integers(1, 200)) if rng.random() < 0.7 else None,
    )
    return Context(arms, previous=previous, lag=lag, hints=hints, agreement=shared, remaining=remaining)


def random_round(rng: np.random.Generator, context: Context, arm: Arm, token_seconds: float = 0.002) -> Round:
    rates = {"x": 0.85, "y": 0.6, "z": 0.3, "w": 0.7, "v": 0.6, "u": 0.8}
    runs = {name: run_of(rng, [rates[name]] * hint.size) for name, hint in context.hints.items()}
    drafted = min(arm.length, context.hints[arm.drafter].size) if arm.drafter in context.hints else arm.budget
    accepted = run_of(rng, [rates.get(arm.drafter, 0.0)] * min(drafted, arm.length))
    verify = (0.02 + token_seconds * drafted) * (1 + 0.05 * rng.standard_normal())
    others = {name: min(run, accepted + 1) for name, run in runs.items() if name != arm.drafter}
    lag = context.lag["w"]
    of_the_head = {"draft_seconds": 0.0005 * arm.length, "lag_seconds": 0.0005 * lag} if arm.drafter == "w" else {}
    return Round(arm, drafted, accepted, accepted + 1, verify_seconds=verify, lag=lag, others=others, **of_the_head)


DRAFTS_AND_TREES = "y:2 y:4 x:1 x:2 x:3 x:4 x:5 x:6 w:3 w:3@2x6 off z:2 z:4 z:8 w:5"
WITH_TREES = tuple(Arm.parse(word) for word in DRAFTS_AND_TREES.split())
SEVERAL = (*WITH_TREES, *(Arm.parse(word) for word in ["v:3", "v:5", "u:2", "u:5"]))  # three models: w, v and u


def models_context(rng: np.random.Generator, context: Context, readers: frozenset[str] | None = None) -> Context:
    """The same with three models, which lag, and often without hints."""
    lag = {name: int(rng.integers(0, 30)) for name in "wvu"}
    hints = context.hints if rng.random() < 0.3 else {}
    return replace(context, lag=lag, hints=hints, agreement=context.agreement if hints else {}, readers=readers)


def random_reading(
    rng: np.random.Generator, context: Context, played: Round, policy: Auto, rates: Mapping[str, float]
) -> Round:
    """The round with what the models that the policy selects tell of tokens they read, and what that takes; ``rates``:
    of their tokens that are right, 0.7 of those that have none."""
    names, drafter = policy.select_readers(context), played.arm.drafter
    assert policy.select_readers(context) == names
    assert drafter not in names
    lag = context.lag.get(drafter, 0)
    scored = {
        name: tuple((rng.random(1 + context.lag[name]) < rates.get(name, 0.7)).astype(float))
        for name in sorted({*names, drafter} & {*"wvu"})
        if context.can_read(name)
    }
    drafting = 0.0005 * played.arm.length if lag else 0.0
    taken = {name: 0.0005 + 0.0001 * context.lag[name] for name in names if name in context.lag}
    return replace(played, lag=lag, lag_seconds=0.0001 * lag, draft_seconds=drafting,
                   others={**played.others, **scored}, read_seconds=taken)  # fmt: skip


class Engine:
    """Drafters that propose six tokens each, one text after the other."""

    def __init__(self, policy: Auto, rates: dict[str, float], seconds: Callable[[int], float], **ask: float) -> None:
        self.policy, self.rates, self.seconds, self.ask = policy, rates, seconds, ask
        self.rng, self.rounds = np.random.default_rng(0), 0
        self.previous: Arm | None = None
        self.same = False  # whether all propose the same
        self.names: tuple[str, ...] = ()  # asked in the last round

    def play(self, rounds: int) -> list[Arm]:
        chosen = []
        for _ in range(rounds):
            self.names = self.policy.select_drafters(Context(self.policy.arms, previous=self.previous))
            hints = {name: Hint(3, size=6) for name in self.names}
            shared = {a: {b: 6 if self.same else 0 for b in hints if b != a} for a in hints}
            asked = {name: self.ask[name] for name in self.names if name in self.ask}
            context = Context(
                self.policy.arms, previous=self.previous, hints=hints, agreement=shared, proposal_seconds=asked
            )
            self.previous = arm = self.policy.choose(context)
            run = run_of(self.rng, [self.rates[self.policy.drafters[0]]] * 6)
            runs = {name: run if self.same else run_of(self.rng, [self.rates[name]] * 6) for name in self.names}
            drafted = arm.length if arm.drafter in runs else 0
            accepted = min(drafted, runs.get(arm.drafter, 0))
            others = {name: min(run, accepted + 1) for name, run in runs.items() if name != arm.drafter}
            seconds = self.seconds(drafted + 1) * (1 + 0.02 * self.rng.standard_normal())
            spent = {"draft_seconds": sum(asked.values()), "verify_seconds": seconds}
            self.policy.observe(Round(arm, drafted, accepted, accepted + 1, others=others, **spent))
            chosen.append(arm)
        return chosen


def cheap(width: int) -> float:
    return 0.02 + 0.0005 * width


def dear(width: int) -> float:
    return 0.02 * width


def random_rows(
    rng: np.random.Generator, count: int, drafters: int, longest: int, fresh: float = 0.1, slots: int = 40
) -> Batch:
    size = rng.integers(0, longest + 1, (drafters, count))
    confidence = rng.random((drafters, count, longest)) ** 0.4
    confidence[confidence > 0.98] = 1.0
    told = rng.integers(0, longest + 1, (drafters, count, 1))
    confidence[np.arange(longest) >= told] = np.nan
    shared = np.floor(rng.random((drafters, drafters, count)) * (np.minimum(size[None], size[:, None]) + 1)).astype(int)
    return Batch(
        slots=rng.permutation(slots)[:count],
        fresh=rng.random(count) < fresh,
        match=np.where(size > 0, rng.integers(0, 14, (drafters, count)), 0),
        size=size,
        confidence=confidence,
        limit=np.where(rng.random(count) < 0.8, 100, rng.integers(0, longest + 1, count)),
        agreement=np.minimum(shared, shared.transpose(1, 0, 2)) if rng.random() < 0.7 else None,
    )


def shaken(rng: np.random.Generator, policy: Auto) -> Auto:
    """With weights and lucks that learning may have led to."""
    model = policy.acceptance
    for w in model.weights:
        w[:] = (np.array(w) + rng.normal(0, 0.5, len(w))).tolist()
    model.mean_ema = rng.uniform(-2, 2, model.drafters).tolist()
    model.slot_ema = rng.uniform(-2, 2, model.slot_ema.shape)
    return policy


def chances_of(policy: Auto, rows: Batch, d: int, i: int) -> list[float]:
    """As one stream would see a request's proposal."""
    model = policy.acceptance
    model.text_ema = model.slot_ema[rows.slots[i]].tolist()
    told = [p for p in rows.confidence[d, i, : rows.size[d, i]].tolist() if not math.isnan(p)]
    hint = Hint(int(rows.match[d, i]), tuple(told), int(rows.size[d, i]))
    others: list[Other] = []
    if rows.agreement is not None:
        others = [
            (AGREEMENT + 4 * j, int(rows.agreement[d, j, i]), int(rows.size[j, i]))
            for j in range(model.drafters)
            if j != d
        ]
    return model.evaluate(proposal_of(hint, hint.size, others, d), 0.0)


K, D = 6, 3
Seconds = Callable[[int, int, bool], float]  # of a step: requests, draft tokens, ragged


class Server:
    """Requests that come and go; the drafters' hints say nothing, so only a request's own record tells its kind."""

    def __init__(self, seconds: Seconds, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.seconds = seconds
        self.kind = self.left = self.slots = np.zeros(0, dtype=int)
        self.tokens, self.clock = 0, 0.0

    def rows(self, count: int) -> Batch:
        rng, alive = self.rng, self.left > 0
        kept = [column[alive][:count] for column in (self.kind, self.left, self.slots)]
        new = count - len(kept[0])
        free = np.setdiff1d(np.arange(2 * count), kept[2])[:new]
        arrivals = (rng.integers(0, D, new), rng.geometric(1 / 80, new), free)
        self.kind, self.left, self.slots = (np.append(a, b) for a, b in zip(kept, arrivals, strict=True))
        size = np.where(rng.random((D, count)) < 0.85, K, rng.integers(0, K + 1, (D, count)))
        match = np.where(size > 0, rng.integers(1, 12, (D, count)), 0)
        fresh = np.arange(count) >= count - new
        return Batch(self.slots, fresh, match, size, np.full((D, count, K), np.nan), np.full(count, K))

    def play(self, rows: Batch, drafter: Any, length: Any) -> BatchRound:
        rng, count = self.rng, len(drafter)
        chance = np.where(np.arange(D)[:, None] == self.kind, 0.85, 0.15)
        run = np.logical_and.accumulate(rng.random((K, D, count)) < chance, axis=0).sum(axis=0)
        run = np.minimum(run, rows.size)
        accepted = np.where(drafter >= 0, np.minimum(run[drafter, np.arange(count)], length), 0)
        emitted = np.minimum(accepted + 1, self.left)
        n = int(length.sum())
        seconds = self.seconds(count, n, n not in (0, count * K)) * (1 + 0.03 * rng.standard_normal())
        self.left = self.left - emitted
        self.tokens += int(emitted.sum())
        self.clock += seconds
        return BatchRound(rows, drafter, length, emitted, np.minimum(run, emitted), seconds)


def serve(
    choose: Auto | tuple[int, int], seconds: Seconds, load: Sequence[int], warm: int = 0
) -> tuple[float, list[float]]:
    """Tokens per second after warm-up, and draft tokens per request in every step."""
    server, drafted = Server(seconds), []
    for number, count in enumerate(load):
        if number == warm:
            server.tokens, server.clock = 0, 0.0
        rows = server.rows(count)
        if isinstance(choose, Auto):
            drafter, length = decide(choose, rows)
            choose.observe_batch(server.play(rows, drafter, length))
        else:
            length = np.minimum(rows.size[choose[0]], choose[1])
            server.play(rows, np.where(length > 0, choose[0], -1), length)
        drafted.append(float(length.sum()) / count)
    return server.tokens / server.clock, drafted


FLAT: Seconds = lambda b, n, ragged: 0.02 + 0.00005 * (b + n)  # noqa: E731
DEARER: Seconds = lambda b, n, ragged: 0.02 + 0.0012 * (b + n)  # noqa: E731
STEEP: Seconds = lambda b, n, ragged: 0.0025 * (b + 1.5 * n)  # noqa: E731
GRAPHS: Seconds = lambda b, n, ragged: 0.02 + 0.0002 * (b + n) + 0.01 * ragged  # noqa: E731
