"""Figures that follow from answers: speed-ups, intervals, regret, arms."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from summaries import summary_of

from wager.bench import summary as maths
from wager.bench.summary import Answer, by_method, summarize
from wager.core import OFF, Arm, Round


def made_up(seed: int, count: int) -> list[Answer]:
    dice = random.Random(seed)
    return [Answer([1] * dice.randrange(5, 60), dice.uniform(0.1, 3.0), dice.randrange(5, 60)) for _ in range(count)]


def slow_bootstrap(ours: list[Answer], theirs: list[Answer], of: Callable[..., float], seed: int) -> list[float]:
    draws = np.random.default_rng(seed).integers(0, len(ours), (maths.RESAMPLES, len(ours)))
    values = [of([ours[i] for i in row], [theirs[i] for i in row]) for row in draws.tolist()]
    cuts = statistics.quantiles(values, n=40, method="inclusive")
    return [cuts[0], cuts[-1]]


def slow_ratio(ours: list[Answer], theirs: list[Answer]) -> float:
    speed = [sum(len(a.tokens) for a in part) / sum(a.seconds for a in part) for part in (ours, theirs)]
    return speed[0] / speed[1]


def slow_regret(ours: list[Answer], best: list[Answer]) -> float:
    a_token = sum(a.seconds for a in best) / sum(len(a.tokens) for a in best)
    return sum(a.seconds - len(a.tokens) * a_token for a in ours)


@pytest.mark.parametrize("seed", [0, 7])
def test_intervals_and_regret_are_those_of_a_slow_reference(seed: int) -> None:
    ours, theirs = made_up(1 + seed, 9), made_up(2 + seed, 9)
    assert maths.ratio(ours, theirs) == pytest.approx(slow_ratio(ours, theirs))
    assert maths.regret(ours, theirs) == pytest.approx(slow_regret(ours, theirs))
    for quick, slow in ((maths.ratio_interval, slow_ratio), (maths.regret_interval, slow_regret)):
        assert quick(ours, theirs, seed=seed) == pytest.approx(slow_bootstrap(ours, theirs, slow, seed), abs=1e-4)
    assert maths.ratio_interval(ours[:1], theirs[:1]) is None


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    dice = random.Random(4)
    held = 0
    for _ in range(100):
        theirs = [Answer([1] * 20, dice.lognormvariate(0, 0.3), 20) for _ in range(30)]
        ours = [Answer([1] * 20, dice.lognormvariate(0, 0.3) / 1.5, 20) for _ in range(30)]
        low, high = maths.ratio_interval(ours, theirs) or (0.0, 0.0)
        held += low <= 1.5 <= high
    assert 85 <= held <= 100


def test_a_summary_tells_the_best_arm_and_the_regret_against_it() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.1, "suffix:4": 1.6, "auto": 1.5}, noise=0.0)
    every, task = summary["tasks"]
    assert every["best_arm"] == "suffix:4"
    rows = {row["method"]: row for row in every["methods"]}
    assert rows["auto"]["speedup"] == pytest.approx(1.5)
    assert rows["auto"]["regret_seconds"] == pytest.approx(8 / 1.5 - 8 / 1.6, abs=1e-3)
    assert rows["suffix:4"]["regret_seconds"] == 0
    assert rows["transformers"]["regret_seconds"] is None
    assert task["methods"] == every["methods"]


def summary(tasks: Sequence[str], **answers: list[Answer]) -> list[dict[str, Any]]:
    """By method; the first is plain decoding, ``off`` is off."""
    prompts = [{"id": f"p{n}", "task": task} for n, task in enumerate(tasks)]
    known = {(prompts[n]["id"], name): a for name, own in answers.items() for n, a in enumerate(own)}
    methods = [{"name": name, "kind": "off" if name == "off" else "policy"} for name in answers]
    return by_method(summarize(methods, prompts, known))


def test_ratios_and_mat_are_those_of_the_answers() -> None:
    plain = [Answer([1] * 10, 2.0, 10), Answer([1] * 10, 4.0, 10)]
    first, fast = summary(["qa", "rag"], plain=plain, fast=[Answer([1] * 10, 1.0, 4), Answer([2] * 10, 1.0, 4)])
    assert first["speedup"] == first["mat"] == 1.0
    assert fast["speedup"] == 3.0  # 6 seconds against 2
    assert fast["median_speedup"] == 3.0
    assert fast["quartiles"] == [2.5, 3.5]
    assert fast["mat"] == 3.0  # 9 tokens after the first in 3 rounds
    assert fast["different_texts"] == 1
    assert [fast["tasks"][task]["speedup"] for task in ("qa", "rag")] == [2.0, 4.0]


def rounds(drafted: int, accepted: int, stall: float) -> list[Answer]:
    arm = Arm("suffix", drafted) if drafted else OFF
    seconds = 0.010 + 0.001 * drafted
    played = [
        Round(arm, drafted, accepted, accepted + 1, verify_seconds=stall if n == 3 else seconds) for n in range(9)
    ]
    return [Answer([1] * (1 + 9 * (accepted + 1)), 1.0, 10, played, 0.0)]


def test_a_stall_does_not_change_the_steady_speedup() -> None:
    for stall in (5.0, 0.014):
        off, drafts = summary(["qa"], off=rounds(0, 0, 0.010), drafts=rounds(4, 1, stall))
        assert off["steady"] == off["tasks"]["qa"]["steady"] == 1.0
        assert drafts["steady"] == drafts["tasks"]["qa"]["steady"] == pytest.approx(2 * 10 / 14, abs=1e-4)


def test_arms_are_told_by_their_share_of_the_rounds() -> None:
    answer = rounds(4, 1, 0.014)[0]
    mixed = Answer(answer.tokens, 1.0, 20, [*rounds(0, 0, 0.01)[0].rounds, *answer.rounds, *answer.rounds])
    (row,) = summary(["qa"], auto=[mixed])
    assert row["arms"] == {"suffix:4": 0.6667, "off": 0.3333}
    assert len(row["arms_over_rounds"]) == 10
    assert row["arms_over_rounds"][0] == {"off": 1.0}
    assert row["arms_over_rounds"][-1] == {"suffix:4": 1.0}
    assert row["steady"] is None, "there is no off to compare with"


def test_one_stall_decides_neither_the_median_over_prompts_nor_the_steady_speedup() -> None:
    """A policy twice as fast as off on nine of ten prompts, and stopped for a minute in one."""
    off = [answer for _ in range(10) for answer in rounds(0, 0, 0.010)]
    fast = [answer for _ in range(10) for answer in rounds(3, 3, 0.013)]
    stalled = [*fast[:-1], replace(fast[-1], seconds=fast[-1].seconds + 60)]
    clean, hit = (summary(["a"] * 10, plain=off, off=off, auto=answers)[-1] for answers in (fast, stalled))
    for ours, theirs in ((hit, clean), (hit["tasks"]["a"], clean["tasks"]["a"])):
        assert ours["speedup"] < 0.7 * theirs["speedup"]  # seconds summed up: one prompt decides
        assert ours["median_over_off"] == theirs["median_over_off"] > 1.5
        assert ours["steady"] == theirs["steady"] > 1.5
        for value, interval in (("median_over_off", "median_interval"), ("steady", "steady_interval")):
            low, high = ours[interval]
            assert low <= ours[value] <= high
        assert len(ours["by_prompt"]["mat"]) == len(ours["by_prompt"]["tokens_per_second"]) == 10
