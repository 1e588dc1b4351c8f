"""Answers are of the target, the prompts and the length that were asked for, or they are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_setup import tiny

from wager.cli.app import app
from wager.training import answers
from wager.training.config import Answers
from wager.training.evaluate import greedy_answers
from wager.training.prompts import Prompt


class Letters:
    def apply_chat_template(self, chats: list[Any], **_: Any) -> list[list[int]]:
        return [[ord(letter) % 50 for letter in chat[0]["content"]] for chat in chats]


class Shifted:
    def apply_chat_template(self, chats: list[Any], **_: Any) -> list[list[int]]:
        return [[1 + token for token in ids] for ids in Letters().apply_chat_template(chats)]


def work(words: str, tokenizer: Any = None) -> list[answers.Part]:
    asked = [Prompt("a", ({"role": "user", "content": word},)) for word in words.split()]
    return answers.parts(asked, tokenizer or Letters(), Answers((0.0,), (1.0,), batch=2))


def engine(part: answers.Part, most: int) -> list[list[int]]:
    return [[*ids, *range(most)] for _, ids in part.prompts]


def test_parts_that_are_there_are_not_answered_again(tmp_path: Path) -> None:
    def never(part: answers.Part, most: int) -> list[list[int]]:
        raise AssertionError

    answers.answer(engine, work("one two three"), tmp_path, 4, target="mine")
    answers.answer(never, work("one two three"), tmp_path, 4, target="mine")
    assert {text.target for text in answers.texts(tmp_path, "mine")} == {"mine"}
    for path in tmp_path.iterdir():  # of an earlier version, which noted less
        with np.load(path) as part:
            held = {name: part[name] for name in part.files if name not in ("target", "max_tokens")}
        np.savez(path, **held)
    answers.answer(never, work("one two three"), tmp_path, 4, target="mine")
    assert {text.target for text in answers.texts(tmp_path, "mine")} == {""}


@pytest.mark.parametrize(
    ("again", "most", "target", "complaint"),
    [
        (work("one two four"), 4, "mine", "answers to other prompts"),
        (work("one two three", Shifted()), 4, "mine", "answers to other prompts"),
        (work("one two three"), 4, "another", "answers of mine, not of another"),
        (work("one two three"), 8, "mine", "answers of up to 4 tokens, not 8"),
    ],
)
def test_answers_of_other_work_are_not_taken_for_those_asked_for(
    tmp_path: Path, again: list[answers.Part], most: int, target: str, complaint: str
) -> None:
    answers.answer(engine, work("one two three"), tmp_path, 4, target="mine")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=complaint):
        answers.answer(engine, again, tmp_path, most, target=target)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_texts_of_another_target_are_refused(tmp_path: Path) -> None:
    answers.answer(engine, work("one two three"), tmp_path, 4, target="mine")
    with pytest.raises(ValueError, match="holds answers of mine, not of another"):
        list(answers.texts(tmp_path, "another"))


def test_a_damaged_part_is_told(tmp_path: Path) -> None:
    answers.answer(engine, work("one two three"), tmp_path, 4)
    path = min(tmp_path.iterdir())
    for content in (b"", path.read_bytes()[:100]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="delete it and answer again"):
            list(answers.texts(tmp_path))


def test_a_task_without_a_prompt_short_enough_is_told_before_any_is_answered() -> None:
    asked = [Prompt(name, ({"role": "user", "content": "x" * n},)) for name, n in (("qa", 5), ("rag", 40))]
    with pytest.raises(ValueError, match="every prompt of rag is longer than 16 tokens"):
        greedy_answers(tiny(), Letters(), asked, 4, 16, None, lambda number: None)


def test_two_folders_of_one_name_are_not_judged_as_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two folders are called 'eagle-code'"):
        app(["train", "evaluate", str(tmp_path / "eagle-code"), str(tmp_path / "other" / "eagle-code")])


SETTINGS = {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2, "suppress_tokens": [5, 6, 7, 8], "min_p": 0.5}


@pytest.mark.parametrize(("name", "temperature"), [(name, float(name == "min_p")) for name in SETTINGS])
def test_answers_are_by_the_targets_distribution_whatever_its_own_settings_are(name: str, temperature: float) -> None:
    """As vLLM answers, and as drafters are judged: by what the target's features alone say."""
    model, asked = tiny(), [(Prompt("a", ()), tuple(range(3, 3 + n))) for n in (4, 5, 6)]
    part = answers.Part("t-0", temperature, tuple(asked))
    model.generation_config.eos_token_id = None
    plain = answers.transformers_engine(model)(part, 24)
    setattr(model.generation_config, name, SETTINGS[name])
    assert answers.transformers_engine(model)(part, 24) == plain
    assert getattr(model.generation_config, name) == SETTINGS[name]  # it keeps them
