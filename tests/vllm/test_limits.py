"""Requests that limit their own drafts: no more is drafted than one of them takes, and what was cut is not learned."""

from typing import Any

import pytest

from wager.core import OFF, Arm
from wager.policies import build
from wager.policies.steps import StepRounds

serving = pytest.importorskip("serving", reason="vLLM is not installed; see the README on serving")

from serving import Engine, make_request, make_scheduler, true_text  # noqa: E402
from test_scheduler_hook import KINDS, folder, noted, observed, run  # noqa: E402, F401

from wager.vllm.lengths import Lengths  # noqa: E402
from wager.vllm.metrics import Meter  # noqa: E402

ARMS = (OFF, Arm("ngram", 2), Arm("ngram", 4))
FIXED = "fixed:drafter=ngram,length=5"


@KINDS
@pytest.mark.parametrize("policy", ["round-robin", "nightjar", FIXED])
def test_nothing_is_drafted_where_no_request_takes_it(folder: str, asynchronous: bool, policy: str) -> None:  # noqa: F811
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy=policy)
    rounds = observed(scheduler)
    choices = noted(scheduler.lengths.rounds.policy, "choose", lambda _, chosen: chosen)
    requests = [make_request(name, 12, 60, limit=0) for name in ("one", "two")]
    engine = run(scheduler, *requests, asynchronous=asynchronous)
    assert not choices, "there is nothing to choose"
    assert set(engine.asked) == {0}
    assert all(engine.emitted[request.request_id] == true_text(request, 60) for request in requests)
    assert {one.arm for one in rounds} == {OFF}
    engine = run(scheduler, make_request("free", 12, 60), asynchronous=asynchronous)
    assert max(engine.asked) > 0


@KINDS
def test_as_much_is_drafted_as_the_request_takes_that_takes_most(folder: str, asynchronous: bool) -> None:  # noqa: F811
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy=FIXED)
    running: list[set[str]] = []

    def between(step: int, _: Any) -> None:
        if step == 20:
            scheduler.add_request(make_request("free", 12, 30))
        running.append(set(scheduler.requests))

    requests = [make_request(f"takes{n}", 12, 120, limit=n) for n in (0, 2)]
    engine = run(scheduler, *requests, asynchronous=asynchronous, between=between, accuracy=0.5)
    assert all(engine.emitted[request.request_id] == true_text(request, 120) for request in requests)
    free = ["free" in names for names in running]
    first, last = free.index(True), len(free) - free[::-1].index(True)
    assert set(engine.asked[1:first]) == {2}, "whoever takes none of it is not asked"
    assert set(engine.asked[first + 1 : last - 2]) == {5}
    assert set(engine.asked[last + 2 : last + 8]) == {2}


@KINDS
def test_a_reading_request_without_a_limit_does_not_have_others_drafted_for(
    folder: str,  # noqa: F811
    asynchronous: bool,
) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy=FIXED, prefill=32)
    scheduler.add_request(make_request("none", 8, 60, limit=0))
    engine = Engine(scheduler, asynchronous)
    for _ in range(6):  # rounds of one request are known
        engine.step()
    scheduler.lengths.rounds._observed.update(range(9))  # so that steps with a prefill draft
    scheduler.add_request(make_request("long", 400, 4))
    for _ in range(10):
        engine.step()
    assert scheduler.requests["long"].num_computed_tokens < 400
    assert set(engine.asked) == {0}
    engine.run()
    assert max(engine.asked) == 5


@KINDS
def test_drafts_that_were_cut_are_no_rounds_and_those_of_others_are(folder: str, asynchronous: bool) -> None:  # noqa: F811
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy="round-robin")
    rounds = observed(scheduler)
    limited, free = make_request("limited", 12, 40, limit=1), make_request("free", 12, 300)
    run(scheduler, limited, free, asynchronous=asynchronous, accuracy=1.0)
    assert {one.arm.length for one in rounds if one.batch == 2} == {0, 1}, "longer ones were cut for one of the two"
    assert {one.arm.length for one in rounds if one.batch == 1} == set(range(6))
    assert all(one.accepted == one.drafted for one in rounds if one.batch == 2), "every draft was right"
    del rounds[:]
    limited = make_request("again", 12, 60, limit=5)
    run(scheduler, limited, make_request("too", 12, 60), asynchronous=asynchronous, accuracy=1.0)
    assert {one.arm.length for one in rounds if one.batch == 2} == set(range(6)), "nothing was cut"


def test_without_an_arm_that_is_short_enough_nothing_is_drafted(folder: str) -> None:  # noqa: F811
    scheduler = make_scheduler(folder, policy="round-robin", uniform="always")
    engine = run(scheduler, make_request("two", 12, 40, limit=2))
    assert set(engine.asked) == {0}
    assert max(run(scheduler, make_request("free", 12, 40)).asked) == 5


def test_a_choice_is_not_held_where_requests_take_more_or_less_than_before() -> None:
    meter = Meter("scheduler", "fixed", ARMS, drafters=("ngram",), log_seconds=0.0, export=False)
    lengths = Lengths(build("fixed:drafter=ngram,length=4", ARMS), ARMS, meter)
    told: list[tuple[int, bool]] = []
    for longest in (None, None, 2, 2, 0, 0, None, 3):
        step, began = lengths.plan(32, 32, 0, False, longest=longest)
        lengths.finish(step, began, 0, 32, (0,) * step.arm.length, busy=True)
        told.append((step.length, step.held))
        lengths._hold = 9
    held = [(4, True), (2, True), (0, True)]
    assert told[::2][:3] == [(4, False), (2, False), (0, False)]
    assert told[1:6:2] == held
    assert told[6:] == [(4, False), (2, False)]


def test_a_probe_is_not_made_again_in_every_step_whose_drafts_are_cut() -> None:
    class Curious:
        exploring, tries_cheaper, carries = False, False, True

        def choose(self, context: Any) -> Arm:
            return ARMS[2] if self.exploring else ARMS[1]

    policy: Any = Curious()
    rounds = StepRounds(policy, ARMS)
    rounds.plan(4, 4, 0, False)
    policy.exploring = True
    assert [rounds.plan(4, 4, 8, False, cut=True).length for _ in range(4)] == [4, 2, 2, 2]
    assert rounds.plan(4, 4, 8, False).length == 4
