"""The acceptance models learn what tells tokens apart."""

import copy
import math
from collections.abc import Callable
from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from auto_lab import CONFIG, Other, any_hint, drawn_tokens, proposal_of, run_of

from wager.core import OFF, Arm, Hint, Round
from wager.policies.auto.acceptance import AcceptanceModel
from wager.policies.auto.features import AGREEMENT, EMA, POSITION, Proposal
from wager.policies.auto.positional import PositionalAcceptance

Drawn = tuple[Hint, list[Other], list[float]]  # a proposal, and the true chance of each of its tokens


BEHIND = AGREEMENT + 4  # where drafter 1's weights begin


def by_match(rng: np.random.Generator) -> Drawn:
    match, chance = ((1, 0.2), (3, 0.6), (12, 0.9))[rng.integers(3)]
    return Hint(match, size=6), [], [chance] * 6


def by_confidence(rng: np.random.Generator) -> Drawn:
    sure = tuple(rng.choice([0.05, 0.4, 0.8, 0.95], 6).tolist())
    return Hint(2, sure), [], list(sure)


def by_company(rng: np.random.Generator) -> Drawn:
    common = int(rng.integers(0, 7))
    return Hint(2, size=6), [(BEHIND, common, 7)], [0.9 if j < common else 0.3 for j in range(6)]


def by_position(rng: np.random.Generator) -> Drawn:
    return Hint(2, size=6), [], [0.95, 0.8, 0.5, 0.2, 0.2, 0.2]


@pytest.mark.parametrize("draw", [by_match, by_confidence, by_company, by_position])
def test_survival_learns_what_tells_tokens_apart(draw: Callable[[np.random.Generator], Drawn]) -> None:
    rng, model = np.random.default_rng(0), AcceptanceModel(2, CONFIG)
    seen: list[tuple[float, float, bool]] = []  # expected, true, accepted: of scored tokens of fresh proposals
    for number in range(3000):
        hint, others, true = draw(rng)
        proposal, run = proposal_of(hint, 6, others), run_of(rng, true)
        chances = model.evaluate(proposal)
        assert all(0 < p < 1 for p in chances)
        scored = min(run + 1, 6)
        if number >= 2000:
            seen += list(zip(chances[:scored], true, [j < run for j in range(scored)], strict=False))
        model.learn(proposal, scored, run)
    rate = np.mean([hit for *_, hit in seen])
    loss = -np.mean([math.log(p if hit else 1 - p) for p, _, hit in seen])
    constant = -np.mean([math.log(rate if hit else 1 - rate) for *_, hit in seen])
    best = -np.mean([math.log(t if hit else 1 - t) for _, t, hit in seen])
    assert best < loss < best + 0.25 * (constant - best)
    assert np.mean([abs(p - t) for p, t, _ in seen]) < 0.08


@pytest.mark.parametrize(("accepted", "low", "high"), [(6, 0.98, 1.0), (0, 0.0, 0.02)])
def test_no_token_is_certain_however_often_it_was_right_or_wrong(accepted: int, low: float, high: float) -> None:
    model = AcceptanceModel(1, CONFIG)
    for _ in range(3000):
        proposal = proposal_of(Hint(3, size=6), 6, ())
        model.evaluate(proposal)
        model.learn(proposal, min(accepted + 1, 6), accepted)
    assert low < model.evaluate(proposal_of(Hint(3, size=6), 6, ()))[0] < high


def learned(model: AcceptanceModel) -> list[object]:
    return [model.weights, model.squares, model.mean_ema, model.text_ema, model.scored]


def test_proposals_looked_at_as_far_as_needed_teach_as_much_as_in_full() -> None:
    rng, lazy, full = np.random.default_rng(0), AcceptanceModel(2, CONFIG), AcceptanceModel(2, CONFIG)
    later = 0
    for _ in range(400):
        hint, others, _ = by_company(rng)
        run = run_of(rng, [0.2, 0.3, 0.9, 0.9, 0.9, 0.9])
        proposals = [proposal_of(hint, 6, others) for _ in range(2)]
        later += len(lazy.evaluate(proposals[0], 0.3)) < min(run + 1, 6)
        full.evaluate(proposals[1], 0.0)
        for model, proposal in zip((lazy, full), proposals, strict=True):
            model.learn(proposal, min(run + 1, 6), run)
    assert later > 20
    assert learned(lazy) == learned(full)


def test_a_text_that_goes_badly_is_trusted_less_and_the_next_starts_as_all_texts_do() -> None:
    model = AcceptanceModel(1, CONFIG)

    def chance() -> float:
        return model.evaluate(proposal_of(Hint(3, size=1), 1, ()))[0]

    rng = np.random.default_rng(0)
    for number in range(2000):
        if number % 20 == 0:  # a text that goes well, or badly
            model.begin()
            rate = rng.choice([0.3, 0.95])
        proposal = proposal_of(Hint(3, size=1), 1, ())
        model.learn(proposal, 1, int(rng.random() < rate))
    lasting = model.mean_ema[0]
    model.begin()
    before = chance()
    for _ in range(12):
        model.learn(proposal_of(Hint(3, size=1), 1, ()), 1, 0)
    assert model.text_ema[0] < model.mean_ema[0] - 0.5 < lasting - 0.5
    bad = chance()
    model.begin()
    assert model.text_ema == model.mean_ema
    assert bad < chance() < before
    assert chance() - bad > 0.03


def shaken(rng: np.random.Generator) -> AcceptanceModel:
    model = AcceptanceModel(3, CONFIG)
    model.weights = [(np.array(w) + rng.normal(0, 0.7, len(w))).tolist() for w in model.weights]
    model.text_ema = rng.uniform(-2, 2, 3).tolist()
    return model


def beside(rng: np.random.Generator, own: Hint) -> list[Other]:
    """What drafters 1 and 2 say to a proposal of drafter 0; one of size 0 may propose any number of tokens."""
    sizes = rng.integers(0, 8, 2).tolist()
    return [(AGREEMENT + 4 * j, int(rng.integers(0, 1 + own.size)), size) for j, size in enumerate(sizes, 1)]


def test_the_part_worth_most_is_that_of_all_parts_one_by_one() -> None:
    rng, lengths, stopped = np.random.default_rng(0), set(), 0
    for _ in range(500):
        model, own = shaken(rng), any_hint(rng, 8)
        if not own.size:
            continue
        seconds = [0.0, *np.sort(rng.uniform(0.01, 0.05, 9)).tolist()]
        rate = float(rng.choice([0.0, 20.0, 100.0]))
        proposal = proposal_of(own, own.size, beside(rng, own))
        ((value, n, tokens),) = model.cut([proposal], seconds, rate)
        chances = proposal.chances[: proposal.evaluated]
        expected = list(accumulate(accumulate(chances, mul), initial=1.0))
        values = [t - rate * s for t, s in zip(expected[1:], seconds[2:], strict=False)]
        assert (value, n, tokens) == (max(values), 1 + values.index(max(values)), expected[n])
        lengths.add(n)
        stopped += proposal.evaluated < own.size
    assert lengths == set(range(1, 9))
    assert stopped > 50


def test_tokens_are_looked_at_by_the_weights_they_teach() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        model, own = shaken(rng), any_hint(rng, 8)
        proposal = proposal_of(own, own.size, beside(rng, own))
        w, luck = model.weights[0], model.weights[0][EMA] * model.text_ema[0]
        for j, chance in enumerate(model.evaluate(proposal, 0.0)):
            z = luck + sum(w[place] for place in proposal.features(j))
            assert chance == pytest.approx(1 / (1 + math.exp(-z)), abs=1e-3)


def test_a_proposal_filled_in_again_is_looked_at_and_learned_from_as_a_new_one() -> None:
    rng = np.random.default_rng(0)
    again, fresh = shaken(rng), AcceptanceModel(3, CONFIG)
    fresh.load_state_dict(copy.deepcopy(again.state_dict()))
    used = Proposal(0, "x", 8)
    for _ in range(400):
        own = any_hint(rng, 8)
        others, run = beside(rng, own), int(rng.integers(0, own.size + 1))
        new = proposal_of(own, own.size, others)
        used.others = new.others
        used.fill(own, own.size, new.hints, new.agreement)
        assert again.evaluate(used) == fresh.evaluate(new)
        assert used.chances[: used.evaluated] == new.chances[: new.evaluated]
        for model, proposal in ((again, used), (fresh, new)):
            model.learn(proposal, min(run + 1, own.size), run)
        assert learned(again) == learned(fresh)


def test_proposals_may_be_as_long_as_they_like() -> None:
    model, proposal = AcceptanceModel(1, CONFIG), proposal_of(Hint(9, (0.9,) * 300), 300)
    model.weights[0][POSITION:EMA] = [0.1, 0.2, 0.3, 0.4]
    chances = model.evaluate(proposal, 0.0)
    assert len(chances) == 300
    assert len(set(chances[:4])) == 4  # first, second, third, and all that follow
    assert set(chances[4:]) == {chances[3]}
    model.learn(proposal, 300, 300)
    assert model.evaluate(proposal, 0.0)[299] > chances[299]


def test_draws_close_in_on_what_a_curve_has_shown() -> None:
    rng, curves = np.random.default_rng(0), PositionalAcceptance(np.random.default_rng(1), CONFIG)
    spread, runs = [], []
    for rounds in (0, 20, 180):
        for _ in range(rounds):
            runs.append(run_of(rng, [0.9, 0.5, 0.5]))
            curves.learn("x", runs[-1], 3)
        drawn = [drawn_tokens(curves, "x", 3) for _ in range(300)]
        assert all(1.0 == tokens[0] < tokens[1] < tokens[2] < tokens[3] < 4.0 for tokens in drawn)
        spread.append(np.std([tokens[3] for tokens in drawn]))
    assert spread[0] > 2 * spread[1] > 4 * spread[2]
    true = [1 + np.mean(np.minimum(runs, n)) for n in range(4)]
    assert np.mean(drawn, axis=0) == pytest.approx(true, abs=0.06)


def test_a_change_of_one_drafter_is_noticed_and_the_others_are_doubted() -> None:
    rng, curves = np.random.default_rng(0), PositionalAcceptance(np.random.default_rng(1), CONFIG)
    for _ in range(300):
        curves.learn("x", run_of(rng, [0.9] * 4), 4)
        curves.learn("y", run_of(rng, [0.2] * 4), 4)
    known = sum(curves.counts["y"].tried)
    assert known > 300  # nothing was noticed where nothing changed
    late = 0
    while sum(curves.counts["y"].tried) == known:
        curves.learn("x", run_of(rng, [0.2] * 4), 4)
        late += 1
    assert late < 30
    assert sum(curves.counts["y"].tried) <= 10
    for _ in range(40):
        curves.learn("x", run_of(rng, [0.2] * 4), 4)
    assert np.mean([drawn_tokens(curves, "x", 4)[4] for _ in range(100)]) < 1.6


@pytest.mark.parametrize("positions", [False, True], ids=["totals", "positions"])
def test_a_batch_teaches_a_curve_its_rate_or_that_of_every_position(positions: bool) -> None:
    rng, curves = np.random.default_rng(0), PositionalAcceptance(np.random.default_rng(1), CONFIG)
    true = [0.3, 0.9, 0.9, 0.9, 0.9] if positions else [0.7] * 5
    kept = np.zeros(5)
    for _ in range(40):
        runs = [run_of(rng, true) for _ in range(8)]
        survivors = tuple(sum(run >= n for run in runs) for n in range(1, 6))
        kept += survivors
        accepted, rejected = sum(runs), sum(run < 5 for run in runs)
        given = {"survivors": survivors} if positions else {}
        curves.learn_batch("x", Round(Arm("x", 5), 40, accepted, 8 + accepted, 8, rejected, **given), 5)
    rate = kept.sum() / (kept.sum() + 320 - kept[-1])
    curves.learn_batch("x", Round(OFF, 0, 0, 8, 8), 5)
    drawn = np.mean([drawn_tokens(curves, "x", 5) for _ in range(100)], axis=0)
    expected = [1 + kept[:n].sum() / 320 if positions else sum(rate**j for j in range(n + 1)) for n in range(6)]
    assert drawn == pytest.approx(expected, rel=0.1 if positions else 0.05)
