"""`auto` in an engine whose host is slower than its device, as with small models on a GPU."""

from typing import Any

import pytest
from step_engine import HostEngine, Script

from wager.core import OFF, Arm, Context
from wager.policies.steps import StepRounds


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_auto_does_not_draft_what_a_slow_host_has_no_use_for(batch: int) -> None:
    """Chats on an H200 with SmolLM2: drafts take a quarter of a step, and one request in twelve has one accepted."""
    shares = []
    for seed in range(3):
        engine = HostEngine(seed)
        engine.run(100, batch, (0.08, 0.3, 0.3, 0.3, 0.3))
        shares.append(engine.run(600, batch, (0.08, 0.3, 0.3, 0.3, 0.3)))
    assert min(shares) >= 0.97


@pytest.mark.parametrize("batch", [1, 8, 32, 128])
def test_auto_drafts_where_a_slow_host_copies(batch: int) -> None:
    engine = HostEngine()
    engine.run(100, batch, (0.6, 0.9, 0.92, 0.92, 0.9))
    assert engine.run(600, batch, (0.6, 0.9, 0.92, 0.92, 0.9)) >= 0.97


def test_after_chats_a_text_to_copy_is_noticed_when_it_begins() -> None:
    """The bug: matches are looked for in steps that draft alone, and after chats there were none for 200 steps."""
    shares, chats = [], []
    for seed in range(5):
        engine = HostEngine(seed)
        engine.run(200, 1, (0.08, 0.3, 0.3, 0.3, 0.3), text=100)
        chats.append(engine.run(600, 1, (0.08, 0.3, 0.3, 0.3, 0.3), text=100))
        shares.append(engine.run(300, 1, (0.9, 0.92, 0.92, 0.92, 0.9), text=100))
    assert min(chats) >= 0.97
    assert min(shares) >= 0.8


@pytest.mark.parametrize("text", [8, 16, 32])
def test_trying_short_texts_costs_little_where_drafts_do_not_pay(text: int) -> None:
    for seed in range(3):
        engine = HostEngine(seed)
        engine.run(200, 1, (0.02, 0.1, 0.1, 0.1, 0.1), text=text)
        before = len(engine.lengths)
        engine.run(600, 1, (0.02, 0.1, 0.1, 0.1, 0.1), text=text)
        assert sum(map(bool, engine.lengths[before:])) <= 0.05 * 600


@pytest.mark.parametrize("batch", [8, 32, 128])
def test_what_a_first_token_takes_is_not_expected_of_each(batch: int) -> None:
    """Where the host is slow, verifying a draft takes a quarter of a step, and further tokens next to nothing. The bug:
    drafts of one token were all that was tried, and seemed to cost as much for each."""
    for seed in range(3):
        engine = HostEngine(seed)
        engine.run(100, batch, (0.45, 0.6, 0.6, 0.6, 0.6))
        assert engine.run(400, batch, (0.45, 0.6, 0.6, 0.6, 0.6)) >= 0.93
        assert sum(length >= 3 for length in engine.lengths[-300:]) > 250


@pytest.mark.parametrize("batch", [32, 128])
def test_auto_drafts_while_requests_leave_and_join(batch: int) -> None:
    """The bug: after a request leaves, batches are those of the next smaller bucket, of which nothing is ever learned,
    since others join in the very next step. Every such step was spent on trying what plain decoding takes there."""
    shares, chances = [], (0.6, 0.9, 0.92, 0.92, 0.9)
    for seed in range(3):
        engine = HostEngine(seed)
        engine.run(100, batch, chances, joins=0.4)
        shares.append(engine.run(300, batch, chances, joins=0.4))
    assert min(shares) >= 0.97


@pytest.mark.parametrize(("batch", "least"), [(8, 0.955), (32, 0.975), (128, 0.98)])
def test_plain_decoding_is_timed_again_while_drafts_seem_to_pay(batch: int, least: float) -> None:
    """The bug: it was timed while the host was slow, and later one step at a time. Between steps with drafts such a
    step has no seconds of its own, so that what it took at first was believed forever."""
    chats = (0.12, 0.3, 0.3, 0.3, 0.3)
    shares = []
    for seed in range(5):
        engine = HostEngine(seed, slow=1.6)
        engine.run(60, batch, (0.6, 0.9, 0.92, 0.92, 0.9))
        engine.slow = 1.0
        engine.run(400, batch, chats)
        shares.append(engine.run(800, batch, chats))
    assert sum(shares) / len(shares) >= least


class Tries(Script):
    """Chooses a draft for what it brings, and once `off` to learn of it."""

    exploring = False

    def choose(self, context: Context) -> Arm:
        chosen = super().choose(context)
        self.exploring = not chosen.length
        return chosen


def burst(*plans: tuple[int, bool], policies: int = 1) -> list[int]:
    """Lengths after `off` was tried once, in the second of these steps: (requests, whether it prefills)."""
    two = Arm("ngram", 2)
    scripts: Any = [Tries(two, OFF, *[two] * 20), Tries(*[two] * 20)]
    rounds, lengths = StepRounds(scripts[0], (OFF, two), overlap=True), []
    rounds._observed.update(range(10))
    for at, (batch, mixed) in enumerate(plans):
        rounds.policy = scripts[min(at // 2, policies - 1)]
        lengths.append(rounds.plan(batch, batch, 2 * batch, mixed).length)
    return lengths


def test_where_steps_overlap_plain_steps_are_timed_in_a_row() -> None:
    assert burst(*[(8, False)] * 8) == [2, 0, 0, 0, 0, 2, 2, 2]
    assert burst(*[(1, False)] * 4) == [2, 0, 2, 2], "a single request is timed as it was"
    assert burst((8, False), (8, True), (8, False), (8, True), *[(8, False)] * 4) == [2, 2, 0, 2, 0, 0, 0, 2]
    assert burst((8, False), (8, False), (64, False), (8, False)) == [2, 0, 2, 2], "another load"
    assert burst(*[(8, False)] * 4, policies=2) == [2, 0, 2, 2], "another policy"
