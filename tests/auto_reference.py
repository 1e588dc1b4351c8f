"""`auto` for one request, slowly: what every arm is worth, from what the policy has learned."""

import math

from auto_reference_cards import SlowCards

from wager.core import OFF, Arm, Context, Hint
from wager.policies.auto import Auto
from wager.policies.auto.features import AGREEMENT, CONFIDENCE, EMA, LEVELS, POSITION
from wager.policies.auto.weighing import SKIPPED


class Slow(SlowCards):
    """The decision of one round from what `auto` has learned: every arm's tokens less its seconds' worth."""

    def __init__(self, policy: Auto) -> None:
        self.known = Auto(policy.arms)  # a twin, so that its draws of luck are ours to repeat
        self.known.load_state_dict(policy.state_dict())
        self.seen, self.known._calibrated = policy._plain_seen, policy._calibrated
        self.known.in_text.reads = policy.in_text.reads
        self.seconds: dict[Arm, float] = {}  # of every arm that was weighed
        self.drawn: dict[str, float] = {}  # log odds by which each drafter or tree is taken to be better than expected
        self.trees: set[str] = set()  # drafters of which there are trees

    def chance(self, i: int, hint: Hint, j: int, beside: dict[int, tuple[int, int]]) -> float:
        """That token j of drafter i's proposal is accepted if those before it are."""
        w = self.known.acceptance.weights[i]
        z = w[sum(hint.match >= edge for edge in (2, 3, 4, 5, 6))]
        if j < len(hint.confidence):
            z += w[CONFIDENCE + 1 + math.floor(hint.confidence[j] * LEVELS)]
        else:
            z += w[CONFIDENCE]
        z += w[POSITION + min(j, 3)] + self.average(i)
        for other, (common, size) in beside.items():
            z += w[self.company(other, j, common, size)]
        return 1 / (1 + math.exp(-z))

    def average(self, i: int) -> float:
        return self.known.acceptance.weights[i][EMA] * self.known.acceptance.text_ema[i]

    def company(self, other: int, j: int, common: int, size: int) -> int:
        says = 2 if j < common else 0 if size == 0 else 3 if common == size else 1
        return AGREEMENT + 4 * other + says

    def rate(self) -> float:
        plain = self.known.latency.verify.seconds[1]
        tokens, seconds = self.known.latency.rates.sums.get(1, (1.0, plain))
        return max(tokens / seconds, 1 / plain)

    def value(self, tokens: float, seconds: float) -> float:
        return tokens - self.rate() * seconds

    def trust(self, i: int) -> float:
        scored = self.known.acceptance.scored[i]
        return scored / (scored + self.known.config.shrinkage)

    def width_most(self, width: int) -> float:
        """Seconds that a verification takes at most: of its own rounds, of narrower ones in turn, or of a wider one."""
        verify = self.known.latency.verify
        most = math.inf
        for wider in range(width, len(verify.rounds)):
            timed = max([u for u in range(2, wider + 1) if verify.rounds[u] >= 1.0], default=1)
            own = max(verify._shape[timed], verify.ratios[timed] if verify.rounds[timed] else 0.0)
            most = min(most, own * wider / timed, math.inf if timed == wider else 2 * verify._shape[wider])
        return most * verify.scale * (1 + 2 * verify.filter.usual_error)

    def most(self, arm: Arm, context: Context) -> float:
        """Seconds that a round takes at most."""
        known, plain, hint = self.known, self.known.latency.verify.seconds[1], context.hints.get(arm.drafter)
        if arm.tree is None and hint is not None:
            return self.width_most(1 + (min(arm.length, hint.size) or arm.length))
        key = arm.drafter if arm.tree is None else f"{arm.drafter}@{arm.tree}"
        line, lags = known.latency.drafts.line(key, 1), known.latency.drafts.lags.get(arm.drafter)
        fixed, each = known.latency.drafts.parts(key, 1, plain)
        noise = 1 + 2 * known.latency.verify.filter.usual_error
        draft = (fixed + each * arm.length) * (noise if line.count >= 3 else 2)
        lag = context.lag.get(arm.drafter, 0)
        late = known.latency.drafts.catch_up(arm.drafter, lag, plain)
        beyond = 2.0 ** max(0, lag.bit_length() - max(lags)) if lags else 2.0
        return draft + late * beyond + self.width_most(arm.budget + 1)

    def plain(self) -> float:
        verify = self.known.latency.verify
        return min(verify.seconds[1], verify.plain or math.inf)

    def standing(self) -> float:
        bound = self.known.exploration.bound
        return bound.balance - (bound.excess if bound.waits else 0.0)

    def room(self) -> float:
        """Seconds that a round may take so that the text stays within its bound though the draft is rejected."""
        bound = self.known.exploration.bound
        return self.plain() * (1 + 3 + 0.02 * bound.tokens + self.standing()) / bound.slower

    def values(self, context: Context, cautious: bool = False) -> dict[Arm, float]:
        """Of every arm that may be played and is within the text's bound; where that is so."""
        out = self.every_value(context, cautious)
        room = self.room() if OFF in context.arms else math.inf
        out = {arm: value for arm, value in out.items() if self.most(arm, context) <= room}
        hinted = {arm for arm in out if arm.tree is None and arm.drafter in context.hints}
        models = [value for arm, value in out.items() if arm not in hinted]
        best = max((out[arm] for arm in hinted), default=-math.inf)
        if models and max(models) > best - self.leaving(context):
            return {arm: value for arm, value in out.items() if arm not in hinted}
        return out

    def leaving(self, context: Context) -> float:
        """What it costs the model that drafted last to read what another drafter brings."""
        last, drafts = context.previous, self.known.latency.drafts
        if not last or not last.length or last.drafter in {*self.known.hinted, *context.hints}:
            return 0.0
        here = context.lag.get(last.drafter, 0) < 2
        return self.rate() * drafts.catch_up(last.drafter, SKIPPED, self.known.latency.verify.seconds[1]) * here

    def every_value(self, context: Context, cautious: bool = False) -> dict[Arm, float]:
        """Of every arm that may be played; where that is cautious, with lower acceptance the less is known."""
        known, seconds = self.known, self.known.latency.verify.seconds
        out: dict[Arm, float] = {}
        for i, name in enumerate(known.drafters):
            hint = context.hints.get(name)
            if hint is None:
                continue
            beside = {
                known.index[other]: (context.agreement[name].get(other, 0), said.size)
                for other, said in context.hints.items()
                if other != name
            }
            reached, trust = [1.0], self.trust(i) if cautious else 1.0  # by tokens accepted
            while len(reached) <= min(hint.size, known.longest) and reached[-1] >= 0.02:
                reached.append(reached[-1] * trust * self.chance(i, hint, len(reached) - 1, beside))
            for arm in context.arms:
                drafted = min(arm.length, hint.size)
                if arm.drafter == name and not arm.tree and 0 < drafted < len(reached):
                    # an arm longer than what is proposed is as good as the shortest that plays all of it
                    late = 1e-9 * arm.length if arm.length > hint.size else 0.0
                    out[arm] = self.value(sum(reached[: drafted + 1]), seconds[drafted + 1]) - late
                    self.seconds[arm] = seconds[drafted + 1]
        self.trees = {arm.drafter for arm in context.arms if arm.tree}
        if not cautious:
            self.draw(context)
        for name in known.drafters:
            if name in known.hinted or name in context.hints:
                continue
            own = [arm for arm in known.arms if arm in context.arms and arm.drafter == name]
            own.sort(key=lambda arm: arm.length)
            for tree in dict.fromkeys(arm.tree for arm in own):
                arms = [arm for arm in own if arm.tree == tree]
                key = name if tree is None else f"{name}@{tree}"
                here = self.compared(context)
                drawn = self.is_drawn(key, context, cautious) if self.several(context) else True
                tokens = self.tokens(name, key, arms[-1].length, cautious, drawn=drawn, here=here)
                lag = known.latency.drafts.catch_up(name, context.lag.get(name, 0), seconds[1])
                again = min(lag, known.latency.drafts.catch_up(name, SKIPPED, seconds[1]))
                fee = self.fee(name, context)
                for arm in arms:
                    fixed, each = known.latency.drafts.parts(key, 1, seconds[1])
                    cost = seconds[arm.budget + 1] + fixed + arm.length * each
                    cost += again / known.exploration.expected_stay if fee is None else 0.0
                    rounds = min(known.config.round_memory, (context.remaining or math.inf) / tokens[arm.length])
                    once = self.rate() * (lag - again) / rounds if fee is None else 0.0
                    out[arm], self.seconds[arm] = self.value(tokens[arm.length], cost) - (fee or 0.0) - once, cost
        return out

    def compared(self, context: Context) -> bool:
        """Whether there are several models, and what they read was scored."""
        return self.several(context) and bool(self.known.in_text.readable) and bool(self.known.in_text.drafters)

    def several(self, context: Context) -> bool:
        silent = {arm.drafter for arm in context.arms if arm.length} - {*self.known.hinted, *context.hints}
        return len(silent) > 1

    def shift(self, name: str) -> float:
        """Of a drafter's log odds in this text, beyond that of all drafters."""
        known = self.known.in_text.drafters
        common = sum(own.surplus for own in known.values()) / (2 + sum(own.information for own in known.values()))
        own = known.get(name)
        return (own.surplus - common * own.information) / (own.information + self.usual()) if own else 0.0

    def usual(self) -> float:
        """What it is worth to know by how much drafters differ in a text."""
        return 1 / max(self.known.in_text.variance, 0.004)

    def draw(self, context: Context) -> None:
        """Draw for every drafter without hints, and for each of its trees; a draw fades over some choices."""
        known, shared = self.known.positional, dict[str, float]()
        keys = [
            (name, name if tree is None else f"{name}@{tree}", max(arm.length for arm in own if arm.tree == tree))
            for name in self.known.drafters
            if name not in self.known.hinted and name not in context.hints
            for own in [[arm for arm in self.known.arms if arm in context.arms and arm.drafter == name]]
            for tree in dict.fromkeys(arm.tree for arm in sorted(own, key=lambda arm: arm.length))
        ]
        numbers = known.draws_for(len(keys) + len(known.shifts) + (len(known.shifts) > 1))
        alike: float | None = None  # drawn for what all drafters with a card have in common
        for name, key, longest in keys:
            card, number = known.of(key, longest).card, numbers.pop()
            if card:
                number = 0.9 * known.drawn[key] + math.sqrt(1 - 0.9**2) * number if key in known.drawn else number
                known.drawn[key] = number
                alike = numbers.pop() if alike is None else alike
                if name not in shared:
                    shared[name] = numbers.pop() if len(known.shifts) > 1 else 0.0
            own, drafter, common = self.deviations(key)
            if card:
                number = 0.5 * (number * own + shared[name] * drafter + (alike or 0.0) * common)
            self.drawn[key] = number if card else number * own

    def is_drawn(self, key: str, context: Context, cautious: bool) -> bool:
        here = self.known.in_text
        card = key in self.known.positional.counts and bool(self.known.positional.counts[key].card)
        reads = here.reads is not False and (context.readers is None or key in context.readers)
        known = key in here.readable or (card and reads)
        return cautious or not known or key.partition("@")[0] in self.trees

    def tokens(self, name: str, key: str, length: int, cautious: bool, *, drawn: bool, here: bool) -> list[float]:
        """Tokens a round emits with drafts of 0, 1, …; by the mean of what is known, for drafters that read here."""
        moved = -math.hypot(*self.deviations(key)) if cautious else self.drawn[key]
        moved = (moved if drawn else 0.0) + (self.shift(name) if here else 0.0)
        odds = [x * math.exp(moved) for x in self.odds(key, length)]
        return [1 + sum(math.prod(x / (1 + x) for x in odds[: k + 1]) for k in range(n)) for n in range(length + 1)]

    def fee(self, name: str, context: Context) -> float | None:
        """Tokens that a change to another drafter has to bring; None: this is none."""
        text, lag = self.known.in_text, context.lag.get(name, 0)
        if not self.compared(context) or text.current in ("", name):
            return None
        plain, drafts = self.known.latency.verify.seconds[1], self.known.latency.drafts
        cost, timed = self.rate() * drafts.catch_up(name, lag, plain), sorted(drafts.lags.get(name, ()))
        if len(timed) > 1 and lag.bit_length() > timed[-1]:
            grown = drafts.lags[name][timed[-1]] / drafts.lags[name][timed[-2]]
            cost *= min(2.0, max(1.0, grown ** (1 / (timed[-1] - timed[-2])))) ** (lag.bit_length() - timed[-1])
        rounds = 100 if context.remaining is None else min(100, context.remaining)
        return max(cost - text.credit.get(name, 0.0), cost / rounds)

    def affords(self, arm: Arm, context: Context) -> bool:
        """Whether the arm may be tried though little is known of it."""
        bound = self.known.exploration.bound
        own = 1 + 0.005 * bound.tokens + self.standing()
        if context.remaining is not None:
            own = min(own, 0.02 * context.remaining)
        plain = self.known.latency.verify.seconds[1]
        late = self.known.latency.drafts.catch_up(arm.drafter, context.lag.get(arm.drafter, 0), plain)
        if self.untried(arm, context) and context.remaining is not None and self.seconds[arm] <= plain * (1 + own):
            own = max(own, min(3 + 0.02 * bound.tokens + self.standing(), 0.02 * context.remaining))
        return self.seconds[arm] + late <= plain * (1 + own)

    def untried(self, arm: Arm, context: Context) -> bool:
        """Whether it is a model of which less is known than eight verified tokens tell."""
        key = arm.drafter if arm.tree is None else f"{arm.drafter}@{arm.tree}"
        few = self.known.positional.of(key, arm.length).total < 7.5
        return few and arm.drafter not in {*self.known.hinted, *context.hints}

    def timed(self) -> bool:
        """Whether plain decoding is known well enough for now."""
        widths, bound = self.known.latency.verify, self.known.exploration.bound
        calibrated = self.known._calibrated
        lead = self.rate() * widths.seconds[1] - 1 if calibrated else 0.0
        if widths.rounds[1] < 3 or widths.overdue(lead):
            return False
        return bound.timed or bound.balance >= 0 or (calibrated and bound.tokens < 8)

    def choose(self, context: Context) -> dict[Arm, float]:
        """What every arm is worth; where plain decoding has to be timed, it alone."""
        widths = self.known.latency.verify
        if context.previous is None:
            self.known.acceptance.text_ema = list(self.known.acceptance.mean_ema)
            self.known.exploration.begin()
            self.known.exploration.bound.timed = self.seen and context.remaining is not None
            self.known.in_text.begin()
        off = {OFF: self.value(1.0, widths.seconds[1])} if OFF in context.arms else {}
        if off and not self.timed():
            return off
        out = off | self.values(context)
        best = max(out, key=out.__getitem__, default=OFF)
        if off and best != OFF and not self.affords(best, context):
            return off | self.values(context, cautious=True)
        return out or {min(context.arms, key=lambda arm: (arm.budget, self.known.slot[arm])): 0.0}
