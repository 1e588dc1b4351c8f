"""A run that is repeated: every repetition starts from nothing, and the figures are those of all."""

from dataclasses import replace
from typing import Any

import pytest
from letters import Letters

from wager.bench.methods import Target, TextGenerator, arms_of, parse_methods
from wager.bench.repeats import Repeats
from wager.bench.runs import Run, tokenize
from wager.bench.summary import joined, mat
from wager.bench.workloads import Prompt

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = "off,suffix:4,ucbspec,random"
PROMPTS = [Prompt("qa", f"{n}: say it again, say it again") for n in range(3)]


def play(model: Any, temperature: float = 0.0) -> list[Run]:
    named, tokenizer = parse_methods(METHODS)[1:], Letters()
    arms = arms_of(named, model)
    asked = tokenize(PROMPTS, tokenizer, 64, "cpu")
    runs = [Run(named, asked, arms, seed=at, max_tokens=16) for at in range(2)]
    settings = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    target = Target(model, tokenizer, tokens=100, reset="never", settings=settings)
    for _ in Repeats(runs).play([method.make(target, arms) for method in named]):
        pass
    return runs


def played(run: Run, method: str) -> list[list[tuple[str, int, int]]]:
    return [
        [(str(r.arm), r.drafted, r.accepted) for r in run.answers[prompt.id, method].rounds] for prompt in run.prompts
    ]


def test_every_repetition_starts_from_nothing_and_draws_anew(model: Any) -> None:
    first, second = play(model)
    assert played(first, "suffix:4") == played(second, "suffix:4")
    assert played(first, "ucbspec") == played(second, "ucbspec")
    assert played(first, "random") != played(second, "random")


def test_a_policy_that_remembers_the_answers_would_be_noticed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextGenerator, "restart", lambda self: None)
    first, second = play(model)
    assert played(first, "ucbspec") != played(second, "ucbspec")


def test_sampled_texts_of_a_repetition_are_those_of_off_with_the_same_seed_and_others_than_before(model: Any) -> None:
    runs = play(model, temperature=1.0)
    assert Repeats(runs).differences("off", ["suffix:4", "ucbspec", "random"]) == {"answers": 18, "texts": 0}
    texts = [[run.answers[prompt.id, "off"].tokens for prompt in run.prompts] for run in runs]
    assert texts[0] != texts[1]


def test_figures_are_of_all_repetitions(model: Any) -> None:
    runs = play(model)
    found = Repeats(runs).summary(model)
    assert found["differences"]["answers"] == 2 * 3 * 3
    assert found["differences"]["unexplained"] == 0
    for row in found["tasks"][0]["methods"]:
        answers = [run.answers[prompt.id, row["method"]] for prompt in runs[0].prompts for run in runs]
        assert row["prompts"] == 3
        assert row["tokens"] == sum(len(answer.tokens) for answer in answers)
        assert row["seconds"] == pytest.approx(sum(answer.seconds for answer in answers), abs=1e-4)
        assert row["mat"] == pytest.approx(mat(answers), abs=1e-4)
        assert row["by_prompt"]["mat"] == pytest.approx([mat(answers[at : at + 2]) for at in (0, 2, 4)], abs=1e-4)
    one = runs[0].answers["qa-0", "off"]
    assert joined([one]) == one
    both = joined([one, replace(one, own=0.5, forwards=7, prefill_seconds=0.25)])
    assert (both.own, both.forwards) == (one.own + 0.5, one.forwards + 7)
    assert both.prefill_seconds == one.prefill_seconds + 0.25
