"""Every hand-set number of `auto` stands in its config, and experiments can change it or leave out an idea."""

import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from auto_lab import FLAT, Engine, Server, auto, cheap, decide

from wager.core import OFF, Arm, Context
from wager.policies import build
from wager.policies.auto import HAND_SET, Auto, AutoConfig
from wager.policies.registry import POLICIES
from wager.simulation import ABLATIONS


def test_the_config_is_frozen_and_positive() -> None:
    config = AutoConfig()
    assert all(getattr(config, field.name) > 0 for field in fields(config))
    assert (config.short_memory, config.count_memory) == (10.0, 1000.0)
    assert (config.probe_interval, config.trial_share) == (200, 0.005)
    with pytest.raises(FrozenInstanceError):
        config.repeats = 4  # type: ignore[misc]


def test_the_documentation_lists_every_field_with_its_value() -> None:
    page = (Path(__file__).parents[3] / "docs" / "auto.md").read_text(encoding="utf-8")
    section = page.split("## Every hand-set number")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", section, re.M))
    assert listed == {name: str(value) for name, value in HAND_SET.items()}


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_decides_learns_and_is_saved(name: str) -> None:
    policy = auto(name)
    engine = Engine(policy, {"x": 0.2, "y": 0.5, "z": 0.9}, cheap, x=1e-5, y=1e-5, z=1e-5)
    chosen = engine.play(300)
    if name not in ("auto-no-sharing", "auto-no-others"):  # those take longer
        assert sum(arm.drafter == "z" for arm in chosen[150:]) > 100
    assert policy.choose(Context(policy.arms, batch=3)) in policy.arms
    server = Server(FLAT)
    for count in (1, 4, 9):
        rows = server.rows(count)
        policy.observe_batch(server.play(rows, *decide(policy, rows)))
    twin = auto(name, seed=5)
    twin.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    assert twin.state_dict() == policy.state_dict()


def test_an_ablation_is_no_policy_a_user_is_offered() -> None:
    assert not set(ABLATIONS) & set(POLICIES)
    with pytest.raises(ValueError, match=r"policy 'auto' has no parameter 'without'; it takes budget$"):
        auto("auto:without=hints")
    with pytest.raises(ValueError, match="budget is at least 0 tokens a step"):
        auto("auto:budget=-1")


@pytest.mark.parametrize("field", HAND_SET)
def test_every_field_can_be_scaled_in_an_experiment(field: str) -> None:
    arms = (OFF, Arm("x", 3))
    plain = getattr(AutoConfig(), field)
    for times in (0.5, 2.0):
        policy = build(f"auto-scaled:field={field},times={times}", arms)
        assert isinstance(policy, Auto)
        assert (getattr(policy.config, field) - plain) * (times - 1) > 0
    with pytest.raises(ValueError, match="auto has no field 'luck'; it has learning_rate, "):
        build("auto-scaled:field=luck,times=2", arms)


def test_after_forgetting_the_draws_are_others() -> None:
    """The bug: its parts kept a generator of their own, so that every text that was begun anew had the same draws."""
    policy = build("auto", (OFF, Arm("x", 3)), seed=1)
    assert isinstance(policy, Auto)
    first = policy.positional.draws_for(4)[:4]
    policy.forget()
    assert policy.positional.rng is policy.exploration.trials.rng is policy.rng
    assert policy.positional.draws_for(4)[:4] != first
    policy.reset()
    assert policy.positional.draws_for(4)[:4] == first
