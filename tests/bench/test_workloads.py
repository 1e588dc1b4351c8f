"""The prompts that benchmarks run on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from letters import Letters

from wager.bench import workloads
from wager.bench.workloads import Prompt


def test_the_prompts_that_come_with_wager_have_every_kind() -> None:
    every = workloads.own_prompts()
    counts = Counter(prompt.task for prompt in every)
    assert {"chat", "translation", "summarization", "qa", "math", "rag"} <= set(counts)
    assert min(counts.values()) >= 4
    assert len({prompt.text for prompt in every}) == len(every)
    assert set(workloads.KIND.values()) <= set(counts)


def test_without_data_a_suite_has_prompts_of_the_same_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    chosen = workloads.suite_prompts("spec-bench", None, 2, 0)
    assert Counter(p.task for p in chosen) == dict.fromkeys(
        ("chat", "translation", "summarization", "qa", "math", "rag"), 2
    )


def test_with_data_a_suite_reads_it(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text("".join(json.dumps({"prompt": f"def f{i}():"}) + "\n" for i in range(5)))
    assert len(workloads.suite_prompts("humaneval", tmp_path, None, 0)) == 5
    assert len(workloads.suite_prompts("humaneval", tmp_path, 2, 0)) == 2


def test_data_without_a_prompt_and_records_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "humaneval.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match="holds no prompt of humaneval"):
        workloads.suite_prompts("humaneval", tmp_path, None, 0)
    for line in ("[1]", "null", '{"prompt_": ""}', "not JSON"):
        path.write_text(line)
        with pytest.raises(ValueError, match=r"cannot read .*humaneval\.jsonl .* with prompt: HumanEval"):
            workloads.suite_prompts("humaneval", tmp_path, None, 0)


def test_a_conversation_that_the_models_template_refuses_is_said_in_one_sentence() -> None:
    class Strict(Letters):
        def apply_chat_template(self, *_: Any, **__: Any) -> Any:
            raise TemplateError("roles must alternate")

    with pytest.raises(ValueError, match="chat template refuses a prompt of qa: roles must alternate"):
        Prompt("qa", "Why?", (("user", "Hm."),)).ids(Strict(), 64, "cpu")


def test_tasks_take_turns() -> None:
    chosen = [Prompt(task, str(n)) for task, many in {"a": 3, "b": 1, "c": 3}.items() for n in range(many)]
    turned = workloads.in_turn(chosen, 5)
    assert sorted(p.task for p in turned[:3]) == ["a", "b", "c"]
    assert sorted(p.task for p in turned[3:5]) == ["a", "c"]
    assert sorted(map(str, turned)) == sorted(map(str, chosen))


def test_a_seed_picks_the_same_prompts_of_every_task_and_two_tasks_can_be_one_prompt(data: Path) -> None:
    first, again, other = (workloads.prompts(data, count=2, seed=seed) for seed in (0, 0, 5))
    assert first == again != other
    assert [p.task for p in first] == [task for task in workloads.TASKS for _ in range(2)]
    (one, _) = workloads.prompts(data, tasks=["math_then_code"], count=2)
    assert one.task == "math_then_code"
    assert one.text.index("math_reasoning") < one.text.index("def f")


def test_a_text_may_hold_any_character_that_ends_a_line_elsewhere(tmp_path: Path) -> None:
    record = json.dumps({"article": "One\u2028two\u0085three."}, ensure_ascii=False)
    (tmp_path / "xsum.jsonl").write_text(f"{record}\n", encoding="utf-8")
    (one,) = workloads.prompts(tmp_path, tasks=("xsum",))
    assert "One\u2028two\u0085three." in one.text


def test_a_task_that_is_named_twice_is_one_task(data: Path) -> None:
    assert workloads.prompts(data, tasks=("qa", "qa"), count=2) == workloads.prompts(data, tasks=("qa",), count=2)
