"""The scheduler hook, on vLLM's own schedulers with a model that knows every text."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from wager.core import Round

serving = pytest.importorskip("serving", reason="vLLM is not installed; see the README on serving")

from serving import Engine, abort, make_request, make_scheduler, true_text  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402

from wager.bench.steps import scheduler_hook  # noqa: E402
from wager.vllm.compat import drafts_break_sampling, set_draft_length  # noqa: E402
from wager.vllm.drafts import MatchOnly  # noqa: E402

KINDS = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture(scope="module")
def folder(smollm2_folder: str) -> str:
    return smollm2_folder


def noted(owner: Any, name: str, note: Callable[[Any, Any], Any]) -> list[Any]:
    """What ``note`` makes of the argument and the result of every call of a method from now on."""
    notes: list[Any] = []
    method = getattr(owner, name)

    def call(*given: Any) -> Any:
        result = method(*given)
        notes.append(note(given[0] if given else None, result))
        return result

    setattr(owner, name, call)
    return notes


def observed(scheduler: Any) -> list[Round]:
    """Everything the policy is told from now on."""
    return noted(scheduler.lengths.rounds.policy, "observe", lambda told, _: told)


def drafts(scheduler: Any) -> list[dict[str, int]]:
    """How many tokens of each request's draft every step from now on verifies."""

    def lengths(_: Any, output: Any) -> dict[str, int]:
        return {name: len(output.scheduled_spec_decode_tokens.get(name, ())) for name in output.num_scheduled_tokens}

    return noted(scheduler, "schedule", lengths)


def run(scheduler: Any, *requests: Any, asynchronous: bool = False, between: Any = None, **how: Any) -> Engine:
    """An engine that has written these requests to their end."""
    for request in requests:
        scheduler.add_request(request)
    engine = Engine(scheduler, asynchronous, **how)
    engine.run(between=between)
    return engine


# Every step verifies what the one before it asked for; the last ones may be cut by the end of the text.
def asked_for(engine: Engine) -> list[int]:
    return [n for n in engine.asked[: len(engine.lengths)] if n][:-3]


def verified(engine: Engine) -> list[int]:
    return engine.lengths[: len(asked_for(engine))]


@KINDS
def test_every_text_is_what_it_would_be_and_every_length_is_played(folder: str, asynchronous: bool) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous)
    requests = [make_request(f"r{i}", 10 + 17 * i, 40 + i) for i in range(12)]
    engine = run(scheduler, *requests, asynchronous=asynchronous)
    for i, request in enumerate(requests):
        assert engine.emitted[request.request_id] == true_text(request, 40 + i)
    assert set(engine.asked) == set(range(6))
    assert max(engine.lengths) == 5


@KINDS
def test_drafts_are_as_long_as_the_policy_said_in_the_step_before(folder: str, asynchronous: bool) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy="round-robin")
    engine = run(scheduler, make_request("one", 20, 60), asynchronous=asynchronous, accuracy=0.0)
    assert verified(engine) == asked_for(engine)


@KINDS
def test_only_decoding_requests_are_counted_and_learned_from(folder: str, asynchronous: bool) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous, prefill=32)
    rounds = observed(scheduler)
    batches = noted(scheduler.lengths.rounds.policy, "choose", lambda context, _: context.batch)

    def between(step: int, _: Any) -> None:
        if step == 10:  # a prompt of eight steps arrives while the first request decodes
            scheduler.add_request(make_request("late", 200, 10))

    run(scheduler, make_request("early", 8, 60), asynchronous=asynchronous, between=between)
    assert set(batches[10:16]) == {1}, "a prompt being read is not a decoding request"
    assert all(one.batch in (1, 2) for one in rounds)
    assert 2 in {one.batch for one in rounds}
    assert all(one.accepted <= one.drafted for one in rounds)


@KINDS
def test_a_step_during_which_a_prefill_was_launched_is_not_timed(folder: str, asynchronous: bool) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous)
    rounds = observed(scheduler)
    timed: list[int] = []

    def between(step: int, _: Any) -> None:
        timed.append(len(rounds))
        if step in (10, 20, 30):
            scheduler.add_request(make_request(f"late{step}", 8, 2))

    run(scheduler, make_request("early", 8, 60), asynchronous=asynchronous, between=between, accuracy=0.0)
    quiet = len(timed) - 1 - (timed[-1] - timed[0])  # steps of which nothing was observed
    prefills = 4  # the first request's, and three more
    # A prefill is scheduled one step before its predecessor ends where scheduling is asynchronous.
    assert quiet >= prefills * (2 if asynchronous else 1)


@KINDS
def test_a_request_can_limit_its_own_drafts(folder: str, asynchronous: bool) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy="fixed:drafter=ngram,length=5")
    limits = {"none": 0, "two": 2, "free": None, "wrong": "many", "endless": float("inf")}
    requests = [make_request(name, 12, 40, limit=limit) for name, limit in limits.items()]
    steps = drafts(scheduler)
    run(scheduler, *requests, asynchronous=asynchronous, accuracy=0.5)
    longest = [max(step.get(name, 0) for step in steps) for name in limits]
    assert longest == [0, 2, 5, 5, 5]


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_when_requests_come_go_and_are_preempted(folder: str, asynchronous: bool, seed: int) -> None:
    # A cache of 24 blocks of 32 tokens for eight requests of up to 250: they push each other out.
    scheduler = make_scheduler(folder, asynchronous=asynchronous, blocks=24, rows=8, policy="nightjar")
    rng = random.Random(seed)
    waiting = [make_request(f"q{i}", rng.randint(1, 90), rng.randint(1, 160)) for i in range(60)]
    requests = {request.request_id: request for request in waiting}
    aborted: set[str] = set()
    preempted: set[str] = set()
    engine = Engine(scheduler, asynchronous, seed=seed)

    def between(step: int, _: Any) -> None:
        while waiting and rng.random() < 0.3:
            scheduler.add_request(waiting.pop())
        preempted.update(r.request_id for r in scheduler.requests.values() if r.num_preemptions)
        if scheduler.requests and rng.random() < 0.03:
            name = rng.choice(sorted(scheduler.requests))
            aborted.add(name)
            abort(scheduler, name)

    while waiting or scheduler.has_requests() or engine.flights:
        engine.run(between=between)
    assert preempted, "the cache was meant to be too small"
    for name, request in requests.items():
        text = true_text(request, request.max_tokens)
        got = engine.emitted.get(name, [])
        assert got == text if name not in aborted else got == text[: len(got)]
    assert not scheduler._flights
    assert not scheduler.requests


@KINDS
def test_steps_of_matching_alone_are_told_by_the_kind_of_their_length(folder: str, asynchronous: bool) -> None:
    scheduler = make_scheduler(folder, asynchronous=asynchronous, policy="round-robin")
    scheduler._matching = "ngram"  # as if a model stood beside it
    kinds = noted(scheduler, "schedule", lambda _, output: output.num_spec_tokens_to_schedule)
    request = make_request("one", 20, 60)
    engine = run(scheduler, request, asynchronous=asynchronous)
    assert engine.emitted["one"] == true_text(request, 60)
    assert {length: isinstance(length, MatchOnly) for length in kinds} == {n: n > 0 for n in range(6)}
    assert max(engine.lengths) == 5


def test_a_length_told_too_late_is_seen(folder: str) -> None:
    # The bug: asynchronous scheduling makes its placeholders before it is told, and verifies another length or none.
    scheduler = make_scheduler(folder, asynchronous=True, policy="round-robin")

    def late(output: Any) -> None:
        AsyncScheduler._update_after_schedule(scheduler, output)
        step, began = scheduler.lengths.plan(1, 1, 0, False)
        set_draft_length(output, step.length)
        scheduler._flights.append((output, step, began))

    scheduler._update_after_schedule = late
    engine = run(scheduler, make_request("one", 20, 60), asynchronous=True, accuracy=0.0)
    assert not engine.lengths or verified(engine) != asked_for(engine)


def test_asynchronous_and_synchronous_and_a_proposer_are_told_apart(folder: str) -> None:
    names = [type(make_scheduler(folder, asynchronous=kind)).__name__ for kind in (False, True)]
    assert names == ["Adaptive", "AdaptiveAsync"]
    limited = make_scheduler(folder, drafters="suffix", policy="auto")  # a proposer leaves lengths alone
    assert type(limited).__name__ == "Limited"
    assert not hasattr(limited, "lengths")


@KINDS
def test_vllms_own_speculation_adapts_under_wagers_scheduler(folder: str, asynchronous: bool) -> None:
    own = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    scheduler = make_scheduler(folder, asynchronous=asynchronous, plain={"speculative_config": own})
    assert [str(arm) for arm in scheduler.lengths.rounds.arms] == ["off", *(f"vllm:ngram:{n}" for n in (1, 2, 3))]
    request = make_request("one", 20, 60)
    engine = run(scheduler, request, asynchronous=asynchronous)
    assert engine.emitted["one"] == true_text(request, 60)
    assert len(set(engine.asked)) > 1


def test_following_arms_request_by_request_as_a_pipeline_needs_tells_the_same(folder: str) -> None:
    told = []
    for followed in (False, True):
        scheduler = make_scheduler(folder, policy="round-robin")
        if followed:
            scheduler._arms = {}
        rounds = observed(scheduler)
        run(scheduler, *(make_request(f"p{i}", 10, 40) for i in range(3)))
        told.append([(one.arm, one.drafted, one.accepted, one.emitted) for one in rounds])
    assert told[0] == told[1]
    assert len(told[0]) > 5


def test_nothing_is_tried_out_while_prompts_keep_coming(folder: str) -> None:
    # Lengths cannot be learned from such steps, and drafting is dear in them.
    scheduler = make_scheduler(folder, prefill=32, policy="nightjar")
    scheduler.add_request(make_request("decoding", 8, 30))
    scheduler.add_request(make_request("reading", 480, 4))
    engine = Engine(scheduler)
    for _ in range(12):
        engine.step()
    assert set(engine.asked[1:12]) == {0}


@pytest.mark.parametrize("drafters", ["ngram", "suffix"])
def test_nothing_is_drafted_beside_a_sampled_request_where_vllm_samples_wrongly(folder: str, drafters: str) -> None:
    if not drafts_break_sampling():
        pytest.skip("this build of vLLM samples correctly where there are drafts")
    scheduler = make_scheduler(folder, drafters=drafters)
    steps = drafts(scheduler)

    def between(step: int, _: Any) -> None:
        if step == 8:
            scheduler.add_request(make_request("sampled", 10, 12, temperature=0.7))

    run(scheduler, make_request("greedy", 10, 80), between=between)
    beside, without = (sum(sum(step.values()) for step in steps if ("sampled" in step) == it) for it in (True, False))
    assert beside == 0
    assert without > 0 or drafters == "suffix", "and drafting is taken up again"


@pytest.mark.parametrize("policy", ["auto", "nightjar"])
def test_the_hook_is_timed_around_a_scheduler_that_does_nothing(policy: str) -> None:
    cost = scheduler_hook(policy, 4, 60, 0.5)
    assert 0 < cost["median_seconds"] <= cost["p90_seconds"]
