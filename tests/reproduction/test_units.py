"""Methods are compared prompt by prompt, and claims made of several comparisons need all of them, or one."""

from typing import Any

import numpy as np
import pytest

from reproduction.experiment import Figures, shown
from reproduction.inference import FAILS, HOLDS, UNDECIDED
from reproduction.units import Table, best_of, share


def table(prompts: int = 40, seeds: int = 5, **speeds: float) -> Table:
    """Methods of known mean speed on prompts that differ much more from each other than methods do."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(1.0, 5.0, prompts)
    units: dict[str, Any] = {}
    for name, speed in {"off": 1.0, **speeds}.items():
        seconds = hard / speed * np.exp(rng.normal(0, 0.02, prompts))
        units[name] = {"tokens": hard * 20, "rounds": hard * 20 / speed, "seconds": seconds}
    return Table.of({"labels": ["qa", "code"] * (prompts // 2), "units": units, "seeds": seeds})


def test_pairs_of_prompts_tell_methods_apart_that_differ_less_than_prompts_do() -> None:
    both = table(ours=1.5, other=1.4)
    assert both.beats("ours", "other").verdict == HOLDS
    assert both.beats("other", "ours").verdict == FAILS
    assert "ours is faster than other" in both.beats("ours", "other").says
    assert both.beats("other", "ours", margin=0.2).verdict == HOLDS
    assert both.beats("ours", "other", column="rounds").verdict == HOLDS
    assert both.alike("ours", "other", None, 0.02).verdict == FAILS
    assert both.alike("ours", "other", None, 0.2).verdict == HOLDS


def test_a_task_with_few_prompts_is_undecided_where_all_together_are_not() -> None:
    both = table(prompts=30, ours=1.5, other=1.2)
    assert both.beats("ours", "other").verdict == HOLDS
    assert both.beats("ours", "other", ("qa",)).verdict == UNDECIDED
    assert both.beats("ours", "other", ("qa",)).sample.prompts == 15
    assert table(seeds=4, ours=1.5, other=1.2).beats("ours", "other").verdict == UNDECIDED


def test_beating_all_needs_every_comparison_and_one_of_several_needs_one() -> None:
    three = table(ours=1.5, worse=1.3, best=1.6)
    assert three.beats_all("ours", ("ours", "worse")).verdict == HOLDS
    part = three.beats_all("ours", ("worse", "best"))
    assert part.verdict == FAILS
    assert "best" in part.says
    assert best_of([three.beats("ours", "best"), three.beats("ours", "worse")], "{}").verdict == HOLDS
    assert best_of([three.beats("ours", "best"), three.beats("worse", "best")], "{}").verdict == FAILS


def test_shares_and_figures() -> None:
    three = table(ours=1.5)
    assert share("", [1.0] * 40, three.sample()).verdict == HOLDS
    assert share("", [0.0, 1.0] * 20, three.sample()).verdict == UNDECIDED
    assert three.speed("ours") == pytest.approx(1.5, rel=0.02)
    figures = three.figures({"all": ("qa", "code")})
    assert figures.columns == ("speed, tokens a round", "all (40)")
    with pytest.raises(ValueError, match="no text of math"):
        three.speed("ours", ("math",))
    with pytest.raises(ValueError, match="1 cells"):
        Figures(("a",), (("x", "y"),))
    assert [shown(x) for x in (None, "a", 1.234, 123.45, 12345.6)] == ["", "a", "1.23", "123.5", "12,346"]


def test_where_nothing_is_drawn_no_number_of_shuffles_is_claimed() -> None:
    without = Table.of({"labels": ["qa"] * 30, "units": {"off": {"seconds": [1.0] * 30}}, "seeds": None})
    assert without.sample().seeds is None
    assert without.sample().enough
