"""`auto`: the drafter and length worth most, by what proposals promise, what rounds cost, and what time is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from wager.core import OFF, Arm, Context, Hint, Round
from wager.policies.auto.acceptance import AGREEMENT, AcceptanceModel, Proposal
from wager.policies.auto.batch import BatchAuto
from wager.policies.auto.latency import (
    OFF_STEP,
    RAGGED,
    UNIFORM,
    DraftLatency,
    ReferenceRate,
    StepLatency,
    VerifyLatency,
    kind_of,
)
from wager.policies.auto.positional import PositionalAcceptance
from wager.policies.base import ArmPolicy, Option, require
from wager.policies.rows import Ints, Outcome, Rows

IDEAS = ("costs", "sharing", "hints", "others", "off", "memory", "pace", "asking", "staying")
STAY = 32  # rounds a drafter that was woken is expected to stay awake, at most
STAYED = 0.2  # how fast that follows what is seen
DOZE = 64  # rounds until a drafter that does not pay is asked again, at most
VALUE_FADE, PROBE_FADE = 0.98, 0.7  # of what asking a drafter has brought, from round to round, and once it sleeps
VALUE_GAIN, PROBE_GAIN = 1 - VALUE_FADE, 1 - PROBE_FADE  # of what it brings now
CREDIT = 0.6  # of its seconds' worth that a drafter must bring; the rest it earns by what it says of the others
TRIFLE = 0.01  # of plain decoding's seconds: what takes less is always asked
SETTLE = 30  # rounds between two drafters' falling asleep
NOBODY: Mapping[str, Any] = {}
NOTHING = Hint()
Seat = tuple[int, str, Proposal]  # of a drafter that was asked: its place, its name, what it proposes
Weighed = tuple[Arm, float, float]  # an arm, and the tokens and seconds expected of it
OVERDUE = 250  # rounds without plain decoding after which one is played
PROBE = 250  # rounds of nothing but plain decoding after which something is drafted
TRIES = 3  # steps of each kind for every size of batch, to begin with
EXPLORE = 0.005  # of a batch's steps are trials of what steps cost
LOSS = 0.1  # goodput a trial may cost; a dearer one is as much rarer


class Auto(ArmPolicy):
    """Whatever brings most tokens beyond what its seconds are worth; learns from all drafters that are cheap to ask."""

    # A round of value v takes s seconds, in which the engine would otherwise have brought r·s tokens at its present
    # rate r. The whole text is done soonest if every round has the arm of largest v - r·s: the ratio v/s is what the
    # rounds have to maximise together, not one by one.
    uses = frozenset({"hints", "others"})
    # What every round looks at has a slot: past 30 names an object's dictionary is slow to search.
    __slots__ = (
        *("expected_stay", "rounds_stayed", "last_drafter"),
        *(
            "drafters",
            "place",
            "acceptance",
            "verify_latency",
            "reference_rate",
            "drafter_value",
            "probe_backoff",
            "rounds_since_sleep",
            "rounds_since_draft",
            "hinted",
        ),
        *("_by_ratio", "_unpriced", "_unhinting", "_unscored", "_sleepless", "_driven"),
        *("_menu_of", "_off", "_reach", "_over", "_seats", "_asked", "_weighed", "_chosen", "_rated"),
    )
    learned: ClassVar[tuple[str, ...]] = ("saved",)

    def __init__(self, arms: Sequence[Arm], *, budget: int = 0, without: str = "", seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        require(budget >= 0, f"budget is at least 0 tokens a step (0: no limit), not {budget}")
        self.without = frozenset(filter(None, without.split("+")))
        if unknown := sorted(self.without - set(IDEAS)):
            raise ValueError(f"auto has no idea {unknown[0]!r} to do without; it has {', '.join(IDEAS)}")
        self._by_ratio, self._unpriced = "pace" in self.without, "costs" in self.without
        self._unshared, self._unhinting = "sharing" in self.without, "hints" in self.without
        self._unscored, self._sleepless = "others" in self.without, "asking" in self.without
        self._restless = "staying" in self.without
        self.budget = budget
        self.drafters = tuple(dict.fromkeys(arm.drafter for arm in self.arms if arm.length))
        self.place = {name: i for i, name in enumerate(self.drafters)}
        self._driven = "off" in self.without and bool(self.drafters)  # to draft, whether it pays or not
        self._menu_of: tuple[Arm, ...] | None = None
        self.reset()

    def reset(self) -> None:
        super().reset()
        count = len(self.drafters)
        self.acceptance = AcceptanceModel(count)
        self.positional = PositionalAcceptance(self.rng)
        self.verify_latency = VerifyLatency(1 + max(arm.budget for arm in self.arms))
        self.step_latency = StepLatency()
        self.draft_latency = DraftLatency()
        self.reference_rate = ReferenceRate()
        self.batch = BatchAuto(self)
        self.drafter_value = [1.0] * count  # tokens a round that asking each drafter has brought of late
        self.rounds_until_probe = [0] * count  # rounds until it is asked again
        self.probe_backoff = [1] * count  # rounds it sleeps when it does not pay
        self.rounds_since_sleep = 0  # rounds since a drafter fell asleep or woke
        self.rounds_since_draft = 0  # rounds since something was drafted
        self.last_drafter, self.rounds_stayed = (
            "",
            0,
        )  # the drafter that says nothing beforehand played last, and for how many rounds
        self.expected_stay = float(STAY)  # rounds such a drafter stays, of late
        self.tried: dict[int, list[int]] = {}  # size of batch -> steps of each kind that were learned from
        self.hinted: set[int] = set()  # drafters that tell beforehand
        self._seats: dict[tuple[str, ...], list[Seat]] = {}  # by who has a hint
        self._asked: list[Seat] = []  # of those that propose something
        self._weighed: list[Weighed] = []

    # --- which drafters to ask ---------------------------------------------------------------------------------------

    def asking(self) -> list[str]:
        """The cheap drafters whose proposals are worth their time; the others are asked now and then."""
        asleep = self.rounds_until_probe
        if not any(asleep):
            return list(self.drafters)
        names = []
        for i, name in enumerate(self.drafters):
            if asleep[i]:
                asleep[i] -= 1
            else:
                names.append(name)
        return names

    def appraise(self, gains: Sequence[float], asked: Mapping[str, float], rate: float, plain: float) -> None:
        """Learn what asking has brought beyond the rest, and let the one sleep that costs most beyond that.

        One at a time: of two that propose the same, each alone seems to bring nothing.
        """
        if self._sleepless:
            return
        self.rounds_since_sleep += 1
        poorest, loss = -1, 0.0
        place, worth, doze, trifle = self.place, self.drafter_value, self.probe_backoff, TRIFLE * plain
        for name, seconds in asked.items():
            i = place[name]
            if doze[i] == 1:
                worth[i] = VALUE_FADE * worth[i] + VALUE_GAIN * gains[i]
                if seconds > trifle and CREDIT * rate * seconds - worth[i] > loss:
                    poorest, loss = i, CREDIT * rate * seconds - worth[i]
            else:
                worth[i] = PROBE_FADE * worth[i] + PROBE_GAIN * gains[i]
                if seconds > trifle and CREDIT * rate * seconds - worth[i] > 0:
                    doze[i] = self.rounds_until_probe[i] = min(DOZE, 2 * doze[i])
                else:
                    doze[i], self.rounds_since_sleep = 1, 0
        if poorest >= 0 and self.rounds_since_sleep > SETTLE:
            doze[poorest] = self.rounds_until_probe[poorest] = 8
            self.rounds_since_sleep = 0

    # --- one text ----------------------------------------------------------------------------------------------------

    def choose(self, context: Context) -> Arm:
        if context.arms is not self._menu_of:
            self._read(context.arms)
        if context.batch > 1:
            return self._choose_for_all(context)
        if context.previous is None:
            self._begin()
        if self._off and self.verify_latency.overdue(OVERDUE, TRIES):
            return self._just_off()
        probing = self.rounds_since_draft >= PROBE
        seconds, pace = self.verify_latency.seconds, self.reference_rate.sums.get(1)
        rate = pace[0] / pace[1] if pace else 1.0 / seconds[1]
        if self._unpriced:
            seconds = [1.0] * len(seconds)
        best, top = OFF, -inf
        if self._off and not probing and not self._driven:
            top = self._value(1.0, seconds[1], rate)
        second, leader = top, -1  # second: the best without the drafter of the best
        weighed = [(OFF, 1.0, seconds[1])]
        self._asked = asked = self._proposals(context)
        reach, over, cut = self._reach, self._over, self.acceptance.cut
        for i, _, proposal in asked:
            value, n, tokens = cut(i, proposal, seconds, rate)
            arm, taken = reach[i][n] if n < proposal.length else over[i][n], seconds[n + 1]
            if arm is None or self._by_ratio:  # no arm has just so many tokens
                found = self._best_cut(i, proposal, seconds, rate)
                if found is None:
                    continue
                arm, tokens, taken = found
                value = self._value(tokens, taken, rate)
            weighed.append((arm, tokens, taken))
            if value > top:
                second, top = top, value
                best, leader = arm, i
            elif value > second:
                second = value
        if context.asked:
            gains = [0.0] * len(self.drafters)
            if leader >= 0:
                gains[leader] = top - second if second > -inf else 1.0
            self.appraise(gains, context.asked, rate, seconds[1])
        known = top
        if len(self.hinted) < len(self.drafters):
            for found in self._unhinted(context, seconds):
                weighed.append(found)
                value = self._value(found[1], found[2], rate)
                if value > top:
                    best, top = found[0], value
        if probing and top == known and best is not OFF:  # one token tells what drafting costs now
            best = next((arm for arm in self._reach[leader] if arm is not None), best)
        if best is OFF and not self._off:
            best = min(self._menu, key=_budget)
            weighed.append((best, 1.0, seconds[best.budget + 1]))
        self._weighed, self._chosen, self._rated = weighed, best, rate
        return best

    def _value(self, tokens: float, seconds: float, rate: float) -> float:
        """Of a round, in tokens beyond what its seconds are worth."""
        return tokens / seconds if self._by_ratio else tokens - rate * seconds

    def _best_cut(self, i: int, proposal: Proposal, seconds: list[float], rate: float) -> Weighed | None:
        """The part of a proposal that is worth most of those there is an arm for, with what is expected of it."""
        alive = tokens = 1.0
        top, best = -inf, None
        for n, chance in enumerate(proposal.chances[: proposal.looked], 1):
            alive *= chance
            tokens += alive
            value = self._value(tokens, seconds[n + 1], rate)
            arm = self._reach[i][n] if n < proposal.length else self._over[i][n]
            if value > top and arm is not None:
                top, best = value, (arm, tokens, seconds[n + 1])
        return best

    def _just_off(self) -> Arm:
        seconds = self.verify_latency.seconds[1]
        self._asked = []
        self._weighed, self._chosen, self._rated = [(OFF, 1.0, seconds)], OFF, self.reference_rate.at(1, 1.0 / seconds)
        return OFF

    def _proposals(self, context: Context) -> list[Seat]:
        """What the drafters that were asked propose; those with nothing to propose are left out."""
        hints, shared, longest = context.hints, context.shared, self.longest
        names = tuple(hints)
        seats = self._seats.get(names)
        if seats is None:
            seats = self._seats[names] = self._seat(names)
        out = []
        for seat in seats:
            _, name, proposal = seat
            hint = hints[name]
            length = hint.size or (longest if hint.match else 0)
            if not length:
                continue
            if length > longest:
                length = longest
            proposal.hint, proposal.length = hint, length
            proposal.common, proposal.hints = shared.get(name, NOBODY), hints
            if self._unhinting:
                proposal.hint = Hint(2, size=length)
            out.append(seat)
        return out

    def _seat(self, names: Sequence[str]) -> list[Seat]:
        """Those who tell beforehand, where these do: in the drafters' order, each with the others beside it."""
        known = [name for name in names if name in self.place and not self._unshared]
        self.hinted.update(self.place[name] for name in known)
        seats = []
        for name in sorted(known, key=self.place.__getitem__):
            proposal = Proposal(NOTHING, self.longest)
            if not self._unhinting:
                proposal.drafter_agreement = [
                    (other, AGREEMENT + 4 * self.place[other]) for other in known if other != name
                ]
            seats.append((self.place[name], name, proposal))
        return seats

    def _unhinted(self, context: Context, seconds: list[float]) -> list[Weighed]:
        """What each arm of the drafters that say nothing beforehand may bring, with a draw of luck, and cost."""
        out: list[Weighed] = []
        for i, name in enumerate(self.drafters):
            if i in self.hinted:
                continue
            lag = self.draft_latency.lag(name, context.lag.get(name, 0)) / self.expected_stay
            for arms in self._plain[i]:
                if self._unshared:  # every arm by itself, as if nothing could be learned of it from the others
                    out += [
                        (a, self.positional.tokens(str(a), a.length)[a.length], seconds[a.budget + 1]) for a in arms
                    ]
                    continue
                key = _key(arms[0])
                tokens = self.positional.tokens(key, arms[-1].length)
                fixed, each = self.draft_latency.parts(key, seconds[1])
                fixed += lag
                out += [(a, tokens[a.length], seconds[a.budget + 1] + fixed + each * a.length) for a in arms]
        return out

    def observe(self, round: Round) -> None:
        if round.batch > 1:
            self._observe_all(round)
            return
        arm, drafted, emitted, others = round.arm, round.drafted, round.emitted, round.others
        if round.verify_seconds > 1e-9:
            self.verify_latency.learn(drafted + 1, round.verify_seconds)
        elif not drafted:  # without a clock there is nothing to wait for
            self.verify_latency.rounds[1] += 1.0
        self.reference_rate.learn(1, emitted, round.seconds)
        self._notice(drafted > 0, round.accepted >= max(1, drafted))
        hinted = False
        for i, name, proposal in self._asked:
            agreed, length = -1, proposal.length  # -1: the true tokens are not known
            if name == arm.drafter:
                agreed, hinted = round.accepted, True
                if length > drafted:
                    length = drafted
            elif name in others and not self._unscored:
                agreed = others[name]
            scored = agreed + 1
            if scored > length:
                scored = length
            if scored > emitted:
                scored = emitted
            self.acceptance.learn(i, proposal, scored, agreed)
            proposal.hint, proposal.common, proposal.hints = NOTHING, NOBODY, NOBODY  # the round is let go
        self._asked = []
        self._follow(arm.drafter if drafted and not hinted else "")
        if drafted and not hinted:
            length = arm.length if arm.tree else drafted
            self.positional.learn(str(arm) if self._unshared else _key(arm), round.accepted, length)
            self.draft_latency.learn(_key(arm), length, round.draft_seconds)
        if round.lag_seconds:
            self.draft_latency.caught_up(arm.drafter, round.lag, round.lag_seconds)

    def _follow(self, drafter: str) -> None:
        """Learn for how many rounds those who had to catch up stay: the fewer, the more each round pays for it."""
        if drafter == self.last_drafter:
            self.rounds_stayed += 1
        else:
            if self.last_drafter and not self._restless:
                self.expected_stay += STAYED * (min(self.rounds_stayed, STAY) - self.expected_stay)
            self.last_drafter, self.rounds_stayed = drafter, 1

    def _notice(self, drafted: bool, lucky: bool) -> None:
        """Count rounds in which nothing was drafted; a try that went well is followed by another."""
        if not drafted:
            self.rounds_since_draft += 1
        elif self.rounds_since_draft < PROBE or not lucky:
            self.rounds_since_draft = 0

    def options(self) -> list[Option]:
        """What was expected of the best arm of every drafter in the round chosen last."""
        own = [Option(arm, tokens, max(seconds, 1e-9)) for arm, tokens, seconds in self._weighed]
        own.sort(key=lambda o: (o.arm != self._chosen, o.seconds * self._rated - o.tokens))
        return own

    def _begin(self) -> None:
        """Another text begins."""
        if "memory" in self.without:
            self.reset()
        self.acceptance.begin()
        self.rounds_until_probe = [0] * len(self.drafters)

    def _read(self, arms: tuple[Arm, ...]) -> None:
        """Which arms there are, drafter by drafter."""
        self._menu = [self.arms[i] for i in self.available(arms)]
        self._off = OFF in self._menu
        chains = [{a.length: a for a in self._menu if a.drafter == name and a.tree is None} for name in self.drafters]
        numbers = range(self.longest + 1)
        self._reach = [[own.get(n) for n in numbers] for own in chains]  # the arm of exactly n tokens
        # the shortest arm of at least n tokens: what proposals of n tokens are played with
        self._over = [[next((own[m] for m in sorted(own) if m >= n > 0), None) for n in numbers] for own in chains]
        self._plain = []
        for name in self.drafters:
            by_tree: dict[Any, list[Arm]] = {}
            for arm in sorted((a for a in self._menu if a.drafter == name), key=_length):
                by_tree.setdefault(arm.tree, []).append(arm)
            self._plain.append(list(by_tree.values()))
        self._menu_of = arms

    # --- a batch, one arm for all ------------------------------------------------------------------------------------

    def _choose_for_all(self, context: Context) -> Arm:
        """The arm of a step for requests of which nothing is known one by one."""
        count = context.batch
        size = 1 << count.bit_length()
        base, token, ragged = self.step_latency.at(count)
        rate = self.reference_rate.at(count, count / base)
        leaders: list[Arm | None] = [None, None, None]
        values, tokens_of, seconds_of = [-inf] * 3, [0.0] * 3, [1.0] * 3
        self._asked = []
        for name, by_tree in zip(self.drafters, self._plain, strict=True):
            lag = self.draft_latency.lag(name, context.lag.get(name, 0)) / STAY
            for arms in by_tree:
                expected = self.positional.tokens(_key(arms[0]), arms[-1].length)
                for arm in arms:
                    if 0 < self.budget < arm.budget * count:
                        continue
                    kind = kind_of(arm.budget, self.longest)
                    tokens = count * expected[arm.length]
                    seconds = base + token * arm.budget * count + (ragged if kind == RAGGED else 0.0) + lag
                    if tokens - rate * seconds > values[kind]:
                        values[kind], leaders[kind] = tokens - rate * seconds, arm
                        tokens_of[kind], seconds_of[kind] = tokens, seconds
        if self._off:
            values[OFF_STEP], leaders[OFF_STEP] = count - rate * base, OFF
            tokens_of[OFF_STEP], seconds_of[OFF_STEP] = float(count), base
        if self._off and self.rounds_since_draft >= PROBE and any(values[kind] > -inf for kind in (RAGGED, UNIFORM)):
            drafter = max((arm for arm in leaders[1:] if arm is not None), key=_length).drafter
            self._chosen = min((arm for arm in self._menu if arm.drafter == drafter), key=_budget)
            return self._chosen
        goodput = [t / s for t, s in zip(tokens_of, seconds_of, strict=True)]
        kind = self.trial(size, values, goodput)[0]
        self._weighed = [
            (arm, t, s) for arm, t, s in zip(leaders, tokens_of, seconds_of, strict=True) if arm is not None
        ]
        self._rated = rate
        self._chosen = leaders[kind] or min(self._menu, key=_budget)
        return self._chosen

    def _observe_all(self, round: Round) -> None:
        seconds = round.draft_seconds + round.verify_seconds
        if seconds > 1e-9:
            self.step_latency.learn(round.batch, round.drafted, self.longest * round.batch, seconds)
            self.reference_rate.learn(round.batch, round.emitted, round.seconds)
            # by what was played: a drafter may have had less to propose than it was allowed
            self.note(round.batch, kind_of(round.arm.budget, self.longest))
        if round.lag_seconds:
            self.draft_latency.caught_up(round.arm.drafter, round.lag, round.lag_seconds)
        arm = round.arm
        rate = self.positional.tokens(_key(arm), 1, mean=True)[1] - 1.0 if round.drafted else 0.0
        self._notice(round.drafted > 0, round.accepted > rate * (round.accepted + round.rejected))
        if round.drafted:
            self.positional.learn_all(_key(round.arm), round.accepted, round.rejected, round.arm.length)

    def note(self, count: int, kind: int) -> None:
        """A step of this kind was learned from."""
        self.tried.setdefault(1 << count.bit_length(), [0, 0, 0])[kind] += 1

    def trial(self, size: int, values: Sequence[float], goodput: Sequence[float]) -> tuple[int, int]:
        """The kind of step to play, and whether with more (1) or fewer (-1) tokens than seems best.

        A kind that is not possible has goodput 0. Trials are for what steps cost; acceptance is learned otherwise.
        """
        leader = max(range(3), key=values.__getitem__)
        best = max(goodput)
        tries = self.tried.get(size, [0, 0, 0])
        steps = sum(tries)
        for kind in (OFF_STEP, RAGGED, UNIFORM):  # off costs at most the tokens of a step: it is tried in any case
            if tries[kind] < TRIES and goodput[kind] > (best / 2 if kind else 0.0):
                return kind, 0
        if self.rng.random() >= EXPLORE + 0.5 / (steps + 10):
            return leader, 0
        kind = (leader + 1 + int(self.rng.random() * (3 if leader == RAGGED else 2))) % 3
        luck = self.rng.random()
        if kind == leader:
            return RAGGED, 1 if luck < 0.5 else -1
        if goodput[kind] > 0.0 and luck * (best - goodput[kind]) < LOSS * best:
            return kind, 1
        return leader, 0

    # --- a batch, request by request ---------------------------------------------------------------------------------

    def choose_rows(self, rows: Rows) -> tuple[Ints, Ints]:
        """Drafter and length per request: the tokens worth more than their seconds."""
        return self.batch.choose(rows)

    def observe_rows(self, outcome: Outcome) -> None:
        """Learn from a finished step: every proposal's tokens as far as the true ones are known, and the seconds."""
        self.batch.observe(outcome)

    # --- saving ------------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned, in lists."""
        parts = (
            "acceptance",
            "positional",
            "verify_latency",
            "step_latency",
            "draft_latency",
            "reference_rate",
            "batch",
        )
        asked = {i: proposal.saved for i, _, proposal in self._asked}
        return {
            **{name: getattr(self, name).saved for name in parts},
            "drafter_value": list(self.drafter_value),
            "rounds_until_probe": list(self.rounds_until_probe),
            "probe_backoff": list(self.probe_backoff),
            "rounds_since_sleep": self.rounds_since_sleep,
            "rounds_since_draft": self.rounds_since_draft,
            "expected_stay": self.expected_stay,
            "rounds_stayed": self.rounds_stayed,
            "last_drafter": self.last_drafter,
            "tried": {size: list(tries) for size, tries in self.tried.items()},
            "hinted": sorted(self.hinted),
            "asked": [asked.get(i) for i in range(len(self.drafters))],
        }

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            if name in ("drafter_value", "rounds_until_probe", "probe_backoff"):
                setattr(self, name, list(value))
            elif name in (
                "rounds_since_sleep",
                "rounds_since_draft",
                "tried",
                "expected_stay",
                "rounds_stayed",
                "last_drafter",
            ):
                setattr(self, name, value)
            elif name == "hinted":
                self.hinted = set(value)
            elif name == "asked":
                named = zip(range(len(value)), self.drafters, value, strict=True)
                self._asked = [(i, who, Proposal.load(*parts)) for i, who, parts in named if parts is not None]
            else:
                getattr(self, name).saved = value


def _key(arm: Arm) -> str:
    """Whose curve an arm's rounds belong to: the drafter's, or that of its tree."""
    return arm.drafter if arm.tree is None else f"{arm.drafter}@{arm.tree}"


def _length(arm: Arm) -> int:
    return arm.length


def _budget(arm: Arm) -> int:
    return arm.budget
