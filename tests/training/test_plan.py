"""Plans and the files they name, as people write them: a mistake is told in a sentence, before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from training_setup import plan_text

from wager.training import answers, config, prompts
from wager.training.config import Answers, Source

DOMAIN = '[[domain.code]]\nfile = "code.jsonl"\nkind = "instructions"\n'


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ("domain = 3", "domain is a table"),
        ('[[domain]]\nfile = "x"', "domain is a table"),
        ('[domain.code]\nfile = "x"\nkind = "fix"', "is written in double brackets"),
        ('domain.code = ["x"]', "domain code is a table"),
        (f"target = 5\n{DOMAIN}", "target is the name of a model or a folder, not 5"),
        (f"answers = 3\n{DOMAIN}", "answers is a table"),
        (f"drafter = 3\n{DOMAIN}", "drafter is written in double brackets"),
        (f'drafter = ["x"]\n{DOMAIN}', "drafter is a table"),
        (f'[answers]\ntemperatures = ["x"]\nshare = [1.0]\n{DOMAIN}', "each of temperatures is a float, not 'x'"),
        (f'[answers]\ntemperatures = [1.0]\nshare = ["x"]\n{DOMAIN}', "each of share is a float, not 'x'"),
        (f"[answers]\ntemperatures = [0.0, nan]\nshare = [1.0, 1.0]\n{DOMAIN}", "temperatures are 0 or more"),
        (f"[answers]\ntemperatures = [0.0, 0.0]\nshare = [1.0, 1.0]\n{DOMAIN}", "a temperature stands twice"),
        (f"[answers]\nbatch = 0\n{DOMAIN}", "batch are at least 1, not 0"),
        (f"[answers]\nmax_tokens = -1\n{DOMAIN}", "batch are at least 1, not -1"),
        (f"{DOMAIN}take = -1", "take is at least 1, not -1"),
        (f'[[drafter]]\nname = "draft-a"\nkind = "draft"\nheads = 0\n{DOMAIN}', "heads of an even size divide hidden"),
        (f'[[drafter]]\nname = "draft-a"\nkind = "draft"\nhidden = 0\n{DOMAIN}', "heads of an even size divide hidden"),
        (f'[[drafter]]\nname = "draft-../a"\nkind = "draft"\n{DOMAIN}', "as a folder can be, such as draft-code"),
        (f'[[drafter]]\nname = "eagle-a"\nkind = "eagle"\nfrequent = -1\n{DOMAIN}', "frequent is 0 or more, not -1"),
        (f'[[drafter]]\nname = "eagle-a"\nkind = "eagle"\ndomains = [1]\n{DOMAIN}', "each of domains is a str, not 1"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_a_sentence(tmp_path: Path, plan: str, complaint: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan)
    with pytest.raises(ValueError, match=complaint.replace("[", r"\[")):
        config.read(path)


def test_whole_numbers_are_temperatures_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text().replace("temperatures = [0.0, 1.0]", "temperatures = [0, 1]"))
    assert config.read(path).answers.temperatures == (0, 1)


def made(folder: Path, kind: str, *records: Any) -> list[prompts.Prompt]:
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    (folder / "file.jsonl").write_text("\n".join(lines), encoding="utf-8")
    plan = config.Plan("target", Answers(), {"a": (Source("file.jsonl", kind),)})
    return prompts.read(plan, folder)


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("fix", {"instruction": "x", "response": None}),
        ("fix", {"instruction": "x", "response": 5}),
        ("complete", {"response": ["a", "b"]}),
        ("summarize", "a text"),
        ("instructions", {"instruction": 5}),
        ("questions", {"question": None}),
        ("questions", {"question": 5}),
        ("dialogue", {"turns": [["USER", 5]]}),
    ],
)
def test_a_record_of_another_shape_is_refused_in_a_sentence(tmp_path: Path, kind: str, record: Any) -> None:
    with pytest.raises(ValueError, match="should hold one JSON record a line with"):
        made(tmp_path, kind, record)


def test_a_text_may_hold_any_character_that_ends_a_line_elsewhere(tmp_path: Path) -> None:
    (one,) = made(tmp_path, "questions", {"question": "What\u2028is\u0085this?"})
    assert one.messages[0]["content"] == "What\u2028is\u0085this?"


def test_files_without_a_prompt_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hold no record that a prompt is made of"):
        made(tmp_path, "questions")


def test_prompts_that_are_all_too_long_are_told() -> None:
    class Letters:
        def apply_chat_template(self, chats: list[Any], **_: Any) -> list[list[int]]:
            return [[1] * 20 for _ in chats]

    some = [prompts.Prompt("a", ({"role": "user", "content": "x"},))]
    with pytest.raises(ValueError, match="all prompts are longer than 16 tokens"):
        answers.parts(some, Letters(), Answers(longest_prompt=16))
