"""Whole rounds without a model: the text is the script, and the policy decides alike in every run."""

import pytest
import torch
from waiting import allowed

from wager.bench import rounds
from wager.bench.rounds import ScriptedTarget, TimedPolicy, own_seconds, script
from wager.core import Round


def test_a_scripted_target_goes_on_with_its_script_whatever_it_is_fed() -> None:
    text = script(50)
    target = ScriptedTarget(text)
    target.prefill(text[:20])
    assert target.forward([text[20], 7, 7], 3).argmax(-1).tolist() == text[21:24]
    target.crop(21)
    assert target.forward([text[21]], 1).argmax(-1).tolist() == [text[22]]


def played(monkeypatch: pytest.MonkeyPatch, swept: int = 0) -> list[Round]:
    """The rounds that the policy was told of."""
    told: list[Round] = []
    observe = TimedPolicy.observe
    monkeypatch.setattr(TimedPolicy, "observe", lambda self, one: (told.append(one), observe(self, one))[1])
    parts = own_seconds("auto", tokens=400, warmup=20, swept=swept)
    assert min(parts.choose, parts.observe, parts.loop) > 0
    assert max(parts.choose, parts.observe, parts.loop) < allowed(2e-3)
    monkeypatch.undo()
    return told


def test_decisions_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = played(monkeypatch), played(monkeypatch, 1 << 20)
    assert [(r.arm, r.accepted) for r in one] == [(r.arm, r.accepted) for r in other]
    assert sum(r.emitted for r in one) == 400 - 2  # the first token is the prompt's, the last one has nothing after it
    assert len({r.arm for r in one}) > 5


def test_time_outside_the_policy_is_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TimedPolicy):
        def observe(self, round: Round) -> None:
            torch.zeros(1 << 22).sum()
            super().observe(round)

    quick = own_seconds("auto", tokens=300, warmup=20)
    monkeypatch.setattr(rounds, "TimedPolicy", Slow)  # it is slow outside of what it times: the loop's, then
    assert own_seconds("auto", tokens=300, warmup=20).loop > quick.loop
