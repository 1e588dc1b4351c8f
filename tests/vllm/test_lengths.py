"""The scheduler hook's clock: how often the policy is asked."""

import random
from typing import Any

import pytest

from wager.core import OFF, Arm
from wager.policies import build
from wager.vllm.lengths import DECIDING, LONGEST_HOLD, Lengths
from wager.vllm.metrics import Meter

ARMS = (OFF, Arm("ngram", 2))


class Slow:
    """A policy that takes its time, on a clock of its own."""

    def __init__(self, policy: Any, seconds: float) -> None:
        self.policy, self.seconds, self.now, self.asked = policy, seconds, 0.0, []
        self.holds, self.carries, self.exploring = policy.holds, policy.carries, False
        self.tries_cheaper = policy.tries_cheaper

    def clock(self) -> float:
        return self.now

    def choose(self, context: Any) -> Arm:
        self.now += self.seconds
        self.asked.append(context.batch)
        arm: Arm = self.policy.choose(context)
        self.exploring = self.policy.exploring
        return arm

    def observe(self, round: Any) -> None:
        self.now += self.seconds
        self.policy.observe(round)


def asked(name: str, seconds: float, batches: list[int]) -> list[int]:
    """Of steps of 10 ms, the batches for which the policy was asked; nothing it drafts is ever accepted."""
    policy = Slow(build(name, ARMS, tokens=1000), seconds)
    meter = Meter("scheduler", name, ARMS, drafters=("ngram",), log_seconds=0.0, export=False, clock=policy.clock)
    lengths, length = Lengths(policy, ARMS, meter, clock=policy.clock), 0  # type: ignore[arg-type]
    for batch in batches:
        step, began = lengths.plan(batch, batch, length * batch, False)
        policy.now += 0.010
        lengths.finish(step, began, 0, batch, (0,) * step.arm.length, busy=True)
        length = step.length
    return policy.asked


@pytest.mark.parametrize("name", ["auto", "random", "nightjar"])
def test_a_policy_that_decides_quickly_is_asked_in_every_step(name: str) -> None:
    assert len(asked(name, 0.1 * DECIDING * 0.010, [4] * 200)) == 200


def test_auto_is_asked_as_rarely_as_its_time_allows_and_other_policies_in_every_step() -> None:
    slow = 1.6 * DECIDING * 0.010  # to choose, and as long to observe
    assert 0.2 * 400 < len(asked("auto", slow, [4] * 400)) < 0.4 * 400
    assert len(asked("random", slow, [4] * 400)) == 400


def test_another_batch_is_asked_about_at_once() -> None:
    slow = 20 * DECIDING * 0.010
    seen = asked("auto", slow, [4] * 40 + [9] * 3 + [4] * 160)
    assert 9 in seen
    assert 200 / (LONGEST_HOLD + 1) < len(seen) < 200 / 2


def test_the_steps_of_a_hold_are_counted_as_if_the_policy_had_been_asked() -> None:
    seen = []
    for seconds in (0.0, 20 * DECIDING * 0.010):
        policy = Slow(build("fixed:drafter=ngram,length=2", ARMS, tokens=1000), seconds)
        policy.holds = True
        options: Any = {"drafters": ("ngram",), "log_seconds": 0.0, "export": False, "clock": policy.clock}
        meter = Meter("scheduler", "fixed", ARMS, **options)
        lengths, length = Lengths(policy, ARMS, meter, clock=policy.clock), 0  # type: ignore[arg-type]
        for number in range(100):
            batch = 32 - number % 2
            mixed, timed = number % 10 == 3, number % 10 != 2
            first = 3 if mixed else 0  # tokens of prompts
            step, began = lengths.plan(batch, batch, length * batch, mixed)
            policy.now += 0.010
            right = batch if length else 0
            survivors = (batch, 0)[:length]
            lengths.finish(step, began, right, batch + right + first, survivors, busy=number < 99, timed=timed)
            length = step.length
        totals = meter._now()
        counts = totals.steps, totals.batch, totals.lengths, totals.drafted, totals.accepted, totals.emitted
        assert totals.tokens == totals.emitted + 10 * 3
        seen.append((*counts, meter._tallies[ARMS[1]].totals[:4], lengths.rounds.tokens, len(policy.asked)))
    assert seen[0][:-1] == seen[1][:-1]
    assert seen[0][-1] >= 99
    assert seen[1][-1] < 30
    assert seen[0][0] == 100


@pytest.mark.parametrize("seconds", [0.0, 20 * DECIDING * 0.010])
def test_what_is_written_has_every_step_so_far_also_of_a_hold_and_the_last_before_a_pause(seconds: float) -> None:
    policy = Slow(build("fixed:drafter=ngram,length=2", ARMS, tokens=1000), seconds)
    policy.holds = True
    options: Any = {"drafters": ("ngram",), "log_seconds": 0.0, "export": False, "clock": policy.clock}
    meter = Meter("scheduler", "fixed", ARMS, interval=0.055, **options)
    meter.pending.append(lambda: setattr(policy, "now", policy.now + 1e-3))  # writing takes so long
    lengths, length, written = Lengths(policy, ARMS, meter, clock=policy.clock), 0, 0  # type: ignore[arg-type]
    for number in range(1, 201):
        before, busy = meter._flushed.tokens, number % 90 != 0
        step, began = lengths.plan(4, 4, length * 4, False)
        policy.now += 0.010
        lengths.finish(step, began, 0, 4, (0,) * step.arm.length, busy=busy)
        length = step.length
        now = meter._flushed
        if now.tokens != before:
            written += 1
            assert (now.tokens, now.emitted, now.pulls, now.steps) == (4 * number, 4 * number, 4 * number, number)
        assert busy or now.steps == number
    assert 20 < written < 50, "every five or six steps"


@pytest.mark.parametrize("exploring", [False, True])
@pytest.mark.parametrize(("other", "most"), [(OFF, 10), (ARMS[1], 16)])
def test_a_probe_does_not_end_what_makes_holds_long(other: Arm, most: int, exploring: bool) -> None:
    """Of 100 steps after a long hold; the other arm is chosen once every 25, or for good."""
    policy = Slow(build("off", ARMS, tokens=1000), 20 * DECIDING * 0.010)
    policy.holds = True
    meter = Meter("scheduler", "off", ARMS, drafters=("ngram",), log_seconds=0.0, export=False, clock=policy.clock)
    lengths, length, asked = Lengths(policy, ARMS, meter, clock=policy.clock), 0, 0  # type: ignore[arg-type]
    probe = 0

    def choose(context: Any) -> Arm:
        nonlocal asked, probe
        asked, policy.now = asked + 1, policy.now + policy.seconds
        policy.exploring = exploring and number >= probe + 25
        if number >= probe + 25:
            probe = number
            return ARMS[1]
        return other if number > 200 else OFF

    policy.choose = choose  # type: ignore[method-assign]
    for number in range(300):
        asked = 0 if number == 200 else asked
        step, began = lengths.plan(4, 4, length * 4, False)
        policy.now += 0.010
        lengths.finish(step, began, 0, 4, (0,) * step.arm.length, busy=True)
        length = step.length
    assert asked <= most + 4


def test_a_single_step_without_drafts_is_not_held_because_such_steps_were_before() -> None:
    """Plain decoding was played for long, then drafts for longer; then it is timed in one step."""
    policy = Slow(build("off", ARMS, tokens=1000), 20 * DECIDING * 0.010)
    policy.holds = True
    meter = Meter("scheduler", "off", ARMS, drafters=("ngram",), log_seconds=0.0, export=False, clock=policy.clock)
    lengths, length, plain = Lengths(policy, ARMS, meter, clock=policy.clock), 0, 0  # type: ignore[arg-type]
    timing = False

    def choose(context: Any) -> Arm:
        nonlocal timing
        policy.now += policy.seconds
        first, timing = number > 500 and not timing, timing or number > 500
        return OFF if number < 100 or first else ARMS[1]

    policy.choose = choose  # type: ignore[method-assign]
    for number in range(600):
        step, began = lengths.plan(4, 4, length * 4, False)
        policy.now += 0.010
        lengths.finish(step, began, 0, 4, (0,) * step.arm.length, busy=True)
        length = step.length
        plain += number > 200 and not length
    assert plain == 1


def test_what_is_chosen_to_learn_of_it_is_never_held() -> None:
    policy = Slow(build("off", ARMS, tokens=1000), 20 * DECIDING * 0.010)
    meter = Meter("scheduler", "off", ARMS, drafters=("ngram",), log_seconds=0.0, export=False, clock=policy.clock)
    lengths, length, asked = Lengths(policy, ARMS, meter, clock=policy.clock), 0, 0  # type: ignore[arg-type]

    def choose(context: Any) -> Arm:
        nonlocal asked
        asked, policy.now, policy.exploring = asked + 1, policy.now + policy.seconds, 100 <= number < 150
        return ARMS[1] if policy.exploring else OFF

    policy.choose = choose  # type: ignore[method-assign]
    for number in range(200):
        before = asked
        step, began = lengths.plan(4, 4, length * 4, False)
        policy.now += 0.010
        lengths.finish(step, began, 0, 4, (0,) * step.arm.length, busy=True)
        length = step.length
        assert not length or asked == before + 1, number
    assert 20 < asked < 80


BOTH = (OFF, *(Arm(name, n) for name in ("suffix", "eagle") for n in range(1, 6)))


def test_texts_that_are_copied_one_after_the_other_are_not_drafted_for_token_by_token() -> None:
    """A request at a time, matching beside a head. The bug: drafts of one token, made to learn what a text is like,
    were held and made again, in a seventh of all steps."""
    short = 0
    for seed in range(4):
        rng, policy = random.Random(seed), Slow(build("auto", BOTH, seed=seed, tokens=1_000_000), 5 * DECIDING * 0.002)
        options: Any = {"drafters": ("suffix", "eagle"), "log_seconds": 0.0, "export": False, "clock": policy.clock}
        meter = Meter("scheduler", "auto", BOTH, **options)
        lengths, length = Lengths(policy, BOTH, meter, overlap=True, clock=policy.clock), 0  # type: ignore[arg-type]
        for number in range(1200):
            begins, copied = number % 40 == 0, number >= 400 and number % 40 < 30
            step, began = lengths.plan(1, 1 - begins, length * (1 - begins), begins)
            head = 0.5 if step.next_arm.drafter == "eagle" else 0.0
            policy.now += 1e-3 * rng.gauss(1, 0.05) * (9.0 if begins else 2.0 + 0.4 * bool(length) + head)
            likely = 0.97 if copied else 0.5 if step.arm.drafter == "eagle" else 0.1
            right = 0 if begins else next((n for n in range(length) if rng.random() > likely), length)
            survivors = tuple(int(right >= n) for n in range(1, step.arm.length + 1))
            lengths.finish(step, began, right, right + 1, survivors, busy=True, timed=not begins)
            length = step.length
            short += number >= 500 and step.next_arm.length == 1
    assert short < 0.05 * 4 * 700


def test_what_is_not_drafted_while_prompts_come_is_not_held() -> None:
    """Nothing is drafted beside prefills at a load that was not observed; the first step without one asks again."""
    steps = [4] * 40 + [64] * 20
    policy = Slow(build("fixed:drafter=ngram,length=2", ARMS, tokens=1000), 20 * DECIDING * 0.010)
    policy.holds = True
    meter = Meter("scheduler", "fixed", ARMS, drafters=("ngram",), log_seconds=0.0, export=False, clock=policy.clock)
    lengths, length = Lengths(policy, ARMS, meter, clock=policy.clock), 0  # type: ignore[arg-type]
    for number, batch in enumerate(steps):
        mixed = 40 <= number < 58
        step, began = lengths.plan(batch, batch, length * batch, mixed)
        policy.now += 0.010
        lengths.finish(step, began, 0, batch, (0,) * step.arm.length, busy=True)
        length = step.length
        assert length == (0 if mixed else 2)


def held_off() -> tuple[Slow, Lengths]:
    """A policy without drafts that takes its time, so that its choice is held."""
    policy = Slow(build("off", ARMS, tokens=1000), 20 * DECIDING * 0.010)
    meter = Meter("scheduler", "off", ARMS, drafters=("ngram",), log_seconds=0.0, export=False, clock=policy.clock)
    return policy, Lengths(policy, ARMS, meter, clock=policy.clock)  # type: ignore[arg-type]


def test_the_policy_is_told_the_same_after_steps_that_were_passed_over() -> None:
    told, passed = [], [0, 0]
    for quick in (False, True):
        policy, lengths = held_off()
        choose, seen = policy.choose, list[Any]()

        def note(context: Any, choose: Any = choose, seen: list[Any] = seen) -> Arm:
            seen.append((context.batch, context.tokens, dict(context.lag)))
            arm: Arm = choose(context)
            return arm

        policy.choose = note  # type: ignore[method-assign]
        for _ in range(300):
            step, began = lengths.repeat(4) if quick else None, 0.0
            passed[quick] += step is not None
            if step is None:
                step, began = lengths.plan(4, 4, 0, False)
            policy.now += 0.010
            lengths.finish(step, began, 0, 4, busy=True)
        told.append(seen)
    assert told[0] == told[1]
    assert told[1][-1][2]["ngram"] > 200, "steps in which it has not drafted"
    assert passed[1] > 200


def test_steps_are_not_passed_over_once_there_is_another_policy() -> None:
    policy, lengths = held_off()
    for _ in range(100):
        step, began = lengths.plan(4, 4, 0, False)
        policy.now += 0.010
        lengths.finish(step, began, 0, 4, busy=True)
        if lengths.repeat(4) is not None and lengths._hold > 1:
            break
    assert lengths._hold > 1
    other = Slow(build("fixed:drafter=ngram,length=2", ARMS, tokens=1000), 0.0)
    lengths.rounds.policy = other  # type: ignore[assignment]
    assert lengths.repeat(4) is None
    assert lengths.plan(4, 4, 0, False)[0].length == 2
