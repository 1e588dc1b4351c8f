"""MetaSD's and on-the-fly's theorems beside simulations of what they assume; a planted mistake exceeds the bounds."""

import math

import numpy as np
import pytest

from reproduction import theory_lemmas, theory_onthefly
from reproduction import theory_metasd as bounds
from reproduction.theory import metasd, onthefly
from reproduction.theory_charts import DRAW
from reproduction.theory_runs import EASY, Case, N, changing, committed, random_length, stream, ucb_curve
from wager.simulation import Drafter, Stream, play

HORIZONS = (100, 1000, 8000)
SECOND = Case("", "", f"meta-ucb:beta={1 / math.sqrt(N)}", lambda tokens: bounds.theorem_2(EASY, N, tokens))


def test_ucb_stays_under_theorem_2_and_grows_like_the_logarithm() -> None:
    early, middle, late = ucb_curve(SECOND, HORIZONS, 3).json()["horizons"]
    assert all(row["holds"] for row in (early, middle, late))
    # ten times the tokens add about as much each time; linear growth would add ten times as much
    assert late["regret"] - middle["regret"] < 4 * max(1.0, middle["regret"] - early["regret"])
    # close enough to be a test: a policy with ten times the regret would exceed it
    assert late["bound"] < 30 * late["regret"]


@pytest.mark.parametrize("mistake", ["fixed:drafter=d2,length=5", "random", "meta-ucb:beta=1,reward=acceptance"])
def test_a_policy_that_does_not_learn_exceeds_the_bound(mistake: str) -> None:
    # the last one learns, from a reward that the theorem allows: it stays within
    case = Case("planted", "", mistake, SECOND.bound)
    last = ucb_curve(case, HORIZONS, 2).json()["horizons"][-1]
    assert (last["holds"], last["exceeded"]) == ((True, False) if mistake.startswith("meta") else (False, True))


def test_the_regret_of_ucb_is_at_most_the_rounds_of_suboptimal_drafters() -> None:
    """Lemma 13, on which the bounds rest."""
    scenario = stream(EASY, N, 3000)
    for seed in range(3):
        run = play(scenario, SECOND.policy, seed)
        others = sum(count for arm, count in run.pulls.items() if arm.drafter != "d1")
        assert run.rounds - play(scenario, "fixed:drafter=d1,length=5", seed).rounds <= others


def test_lemma_12_as_printed_is_exceeded_and_walds_bound_is_not() -> None:
    rows = {(row["alpha"], row["tokens"]): row for row in theory_lemmas.stopping_time(400)}
    assert not any(rows[0.8, tokens]["printed_holds"] for tokens in (1, 10))
    for row in rows.values():
        assert row["lower"] <= row["interval"][1]
        assert row["interval"][0] <= row["wald_upper"]


def test_lemma_8_lacks_the_tokens_of_a_round() -> None:
    told = theory_lemmas.two_regrets(4)
    assert told["over_mu"] == pytest.approx(told["regret_rounds"], rel=0.1)
    assert told["printed"] > 3 * told["regret_rounds"]


def test_moments_of_both_rewards_are_those_of_the_lemmas() -> None:
    by_sum = [p**k * (1 - p) for p in (0.6,) for k in range(N)] + [0.6**N]
    values = np.arange(N + 1) / N
    mean = float(values @ by_sum)
    stated = bounds.block_efficiency(0.6, N)
    assert stated == pytest.approx((mean, float((values - mean) ** 2 @ by_sum)))
    for row in theory_lemmas.rewards(3, 400):
        assert row["bd_variance"]["seen"] < row["bd_variance_limit"]
        for name in ("be_mean", "be_variance", "bd_mean", "bd_variance"):
            assert row[name]["seen"] == pytest.approx(row[name]["stated"], abs=0.03), (row["alpha"], name)


def test_theorem_3_holds_where_it_is_stated_and_its_range_is_the_printed_one() -> None:
    told = theory_lemmas.signals()
    assert told["assumed_and_wrong"] == 0 < told["pairs_assumed"]
    assert told["be_variance_rises_to"] == pytest.approx(0.815, abs=0.001)
    assert told["condition_from"] == pytest.approx(0.06, abs=0.01)
    assert told["condition_to"] == pytest.approx(0.8, abs=0.02)


def test_texts_of_random_length_and_halving_stay_under_their_bounds() -> None:
    assert all(row["holds"] for row in random_length((100, 1000), 4).json()["horizons"])
    needed, small = (curve.json()["horizons"] for curve in committed((1000, 4000), 2))
    assert all(row["holds"] for row in needed)
    assert small[-1]["bound"] > 4000  # with a smaller c the theorem says nothing: more rounds than tokens


def test_forgetting_stays_under_its_bound_and_regret_without_it_need_not() -> None:
    sliding, *_ = (curve.json() for curve in changing((1000, 4000), 2))
    assert all(row["holds"] for row in sliding["horizons"])
    swapped = tuple(Drafter(f"d{i}", pair) for i, pair in enumerate(((0.9, 0.05), (0.05, 0.9))))
    scenario = Stream(swapped, (2,), 8000, phase_tokens=4000)
    lost = play(scenario, "meta-ucb:beta=0.01", 0).rounds - play(scenario, "clairvoyant", 0).rounds
    assert lost > bounds.theorem_2((0.9, 0.05), 2, 8000)  # assumption 1 is needed


def test_theorem_1_holds_where_windows_are_at_least_the_fixed_one_and_fails_without() -> None:
    rows = theory_onthefly.theorem_1(200)
    verdicts = {
        assumed: {r["verdict"] for r in rows if r["windows_at_least_fixed"] is assumed} for assumed in (True, False)
    }
    assert "does not hold" not in verdicts[True]
    assert {"holds", "does not hold"} <= verdicts[False]
    for row in rows:  # the variance is beta (1 - beta) over the tokens observed, not over their square
        ours = row["adaptive"]
        assert ours["variance"] == pytest.approx(row["beta"] * (1 - row["beta"]) / ours["trials"], rel=0.35)


def test_the_estimate_of_equation_2_is_that_of_the_text() -> None:
    runs = np.array([[3, 0, 7, 5]])
    found = theory_onthefly.estimate_fixed(runs, 5)
    assert found.beta[0] == pytest.approx((3 + 0 + 5 + 5) / (3 + 0 + 5 + 5 + 2))  # two rejections


def test_theorem_2_is_exact_with_the_targets_own_token_and_not_as_stated() -> None:
    for row in theory_onthefly.theorem_2(2, 1000):
        assert abs(row["with_bonus"]["relative_error"]) < 1e-9
        assert row["literal"]["relative_error"] < -0.03


def test_theorem_3_suffices_where_the_acceptance_rate_rises_and_misleads_where_it_falls() -> None:
    told = theory_onthefly.theorem_3(theory_onthefly.pairs())
    rises, falls = told["acceptance_rate_rises"], told["acceptance_rate_falls"]
    assert rises["holds_and_slower"] == 0 < rises["condition_holds"]
    assert falls["holds_and_slower"] > 0
    assert all(part["exact_agrees"] for part in (rises, falls))
    for row in theory_onthefly.theorem_3_simulated(3, 2000):
        assert row["speed_ratio"] == pytest.approx(row["predicted_ratio"], rel=0.1)
        assert (row["speed_ratio"] > 1) == row["exact_condition"], row["case"]


def test_pictures_and_figures_can_be_made(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib")
    for name, found in (("metasd", metasd(2, 1000)), ("onthefly", onthefly(2, 1000))):
        DRAW[name](found, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
