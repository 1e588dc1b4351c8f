"""The test of sampled texts: it finds no difference where there is none, and finds planted ones."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from reproduction.turn_samples import compared, merged, two_sample
from reproduction.turn_summary import lines, summary

VOCABULARY, TOKENS, SAMPLES = 40, 6, 4000
Drafted = tuple[np.ndarray, np.ndarray]  # next-token probabilities [samples, vocabulary], drafted token [samples]
Rule = Callable[[Drafted, np.random.Generator], np.ndarray]
Texts = list[tuple[tuple[int, ...], int]]


def draw(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A token of every row."""
    bound = rng.random((len(p), 1)) * p.sum(1, keepdims=True)
    return (p.cumsum(1) <= bound).sum(1)


def verify(given: Drafted, rng: np.random.Generator, *, eager: float = 0.0, again: bool = False) -> np.ndarray:
    """Speculative sampling with drafts that are certain: kept with their probability, else one of the others."""
    p, draft = given
    rows = np.arange(len(p))
    kept = rng.random(len(p)) < (1 + 5 * eager) * p[rows, draft] + eager
    rest = p.copy()
    if not again:
        rest[rows, draft] = 0
    return np.where(kept, draft, draw(rest, rng))


def from_all(given: Drafted, rng: np.random.Generator) -> np.ndarray:
    """Planted: after a rejection the rejected token may come again."""
    return verify(given, rng, again=True)


def slightly_eager(given: Drafted, rng: np.random.Generator) -> np.ndarray:
    """Planted: drafts are kept somewhat more often than they should be."""
    return verify(given, rng, eager=0.02)


def without(given: Drafted, rng: np.random.Generator) -> np.ndarray:
    """No drafts."""
    return draw(given[0], rng)


def texts(rule: Rule, seed: int) -> Texts:
    """Samples of a model whose next token follows from the last."""
    rows = np.exp(2.5 * np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY)))
    rows /= rows.sum(1, keepdims=True)
    rng, text = np.random.default_rng(seed), np.zeros((SAMPLES, TOKENS + 1), int)
    for n in range(TOKENS):
        p = rows[text[:, n]]
        text[:, n + 1] = rule((p, p.argmax(1)), rng)
    return list(Counter(map(tuple, text[:, 1:].tolist())).items())


@pytest.fixture(scope="module")
def plain() -> Texts:
    return texts(without, 1)


def test_sound_sampling_passes(plain: Texts) -> None:
    found = compared(plain, texts(verify, 2))
    assert found["samples"] == [SAMPLES, SAMPLES]
    assert not found["differ"]
    assert {"token 1", "token 6", "tokens 1 to 2", "tokens 1 to 6"} <= {test["what"] for test in found["tests"]}


@pytest.mark.parametrize("rule", [from_all, slightly_eager])
def test_planted_bugs_are_found(plain: Texts, rule: Rule) -> None:
    assert compared(plain, texts(rule, 3))["p"] < 1e-6


def test_the_chance_of_a_false_alarm_is_what_it_is_said_to_be() -> None:
    rng, p = np.random.default_rng(4), np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    found = [
        two_sample("", *(Counter(dict(enumerate(rng.multinomial(size, p).tolist()))) for size in (500, 900))).p
        for _ in range(2000)
    ]
    for level in (0.5, 0.1, 0.01):
        assert np.mean(np.array(found) < level) == pytest.approx(level, abs=4 * (level / 2000) ** 0.5)


def test_rare_texts_are_pooled_and_one_cell_tells_nothing() -> None:
    one, other = Counter({"a": 3, "b": 2}), Counter({"a": 1, "c": 4})
    assert two_sample("", one, other) == ("", 0.0, 0, 1.0)
    many = two_sample("", one + Counter({"d": 100}), other + Counter({"d": 100}))
    assert many.freedom == 1


def test_engines_are_tested_against_all_without_speculation_and_the_planted_one_must_differ(
    plain: Texts,
) -> None:
    load = {"plan": "sampled", "prompt": 0, "tokens": 100, "steps": 20, "accepted": 50}
    rows = [
        {**load, "engine": "plain", "policy": "none", "texts": plain},
        {**load, "engine": "plain again", "policy": "none", "texts": texts(without, 5)},
        {**load, "engine": "head", "policy": "4", "texts": texts(verify, 6)},
        {**load, "engine": "plain again", "policy": "planted", "texts": texts(from_all, 7)},
    ]
    again, head, planted = summary("sampled", rows)
    assert [one["differ"] for one in (again, head, planted)] == [False, False, True]
    assert [one["must_differ"] for one in (again, head, planted)] == [False, False, True]
    assert again["samples"] == [SAMPLES, SAMPLES]
    assert head["samples"] == [2 * SAMPLES, SAMPLES]
    assert sum(count for _, count in merged([plain, plain])) == 2 * SAMPLES
    assert "one distribution" in next(lines("sampled", [head]))
