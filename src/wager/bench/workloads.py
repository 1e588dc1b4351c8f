"""The prompts benchmarks run on: ten tasks and two made of two of them, in a folder of public data or wager's own."""

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from wager.core.require import nearest, require

SPEC_BENCH = ("translation", "summarization", "qa", "math_reasoning", "rag")  # its other categories are MT-Bench's


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a task, as a chat message, or a conversation that ends with one."""

    task: str
    text: str  # the last message
    before: tuple[tuple[str, str], ...] = ()  # role and content of the messages before it

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": said} for role, said in (*self.before, ("user", self.text))]

    def ids(self, tokenizer: Any, longest: int, device: Any) -> Any:
        """Its tokens, a tensor (1, length), as a chat where the model has a template for it."""
        # A long one keeps its start and end, where question and template stand.
        import torch

        if getattr(tokenizer, "chat_template", None):
            ids = chat_ids(tokenizer, self.messages, f"a prompt of {self.task}")
        else:
            ids = tokenizer("\n\n".join(message["content"] for message in self.messages)).input_ids
        if len(ids) > longest:
            ids = [*ids[: longest // 2], *ids[-(longest - longest // 2) :]]
        return torch.tensor([ids], device=device)


def chat_ids(tokenizer: Any, messages: Sequence[Mapping[str, str]], what: str = "this conversation") -> list[int]:
    """The tokens of a conversation, messages with role and content, up to where the answer begins."""
    from jinja2 import TemplateError

    try:
        return list(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))
    except TemplateError as error:
        raise ValueError(f"the model's chat template refuses {what}: {error}") from None


DEBUG = "{description}\n\nThis solution has a bug:\n\n{buggy_code}\n\nWrite the corrected code."
FUNCTION = "Complete this Python function. Write out the whole function.\n\n{prompt}"
ARTICLE = "Summarize this article in a few sentences.\n\n{article}"
FILES = {  # file -> what a record must hold, where it comes from, and the prompt a record makes
    "spec_bench.jsonl": ("category, turns", "Spec-Bench (Xia et al. 2024)", "{turns[0]}"),
    "humaneval.jsonl": ("prompt", "HumanEval (Chen et al. 2021)", FUNCTION),
    "debug_bench.jsonl": ("description, buggy_code", "DebugBench (Tian et al. 2024)", DEBUG),
    "xsum.jsonl": ("article", "XSum (Narayan et al. 2018)", ARTICLE),
    "alpaca_sample.jsonl": ("instruction, input", "Alpaca (Taori et al. 2023)", "{instruction}\n\n{input}"),
}
TASKS = ("mt_bench", *SPEC_BENCH, "humaneval", "debug_bench")  # what benchmarks run on unless told otherwise
# Two tasks in one prompt, one after the other: the drafter that is best changes in the middle of the text.
MIXED = {"math_then_code": ("math_reasoning", "humaneval"), "translation_then_math": ("translation", "math_reasoning")}
ALL = (*TASKS, "xsum", "alpaca")
KNOWN = (*ALL, *MIXED)
# What a suite of benchmarks runs on; every task is a suite of its own as well.
SUITES = {"spec-bench": ("mt_bench", *SPEC_BENCH), "all": TASKS}
# task -> the kind of prompts that stands for it where there is no data folder
KIND = {"mt_bench": "chat", "alpaca": "chat", "math_reasoning": "math", "xsum": "summarization"} | {
    **dict.fromkeys(("humaneval", "debug_bench"), "code"),
    **{task: task for task in ("translation", "summarization", "qa", "rag")},
}
PARTS = ("all", "development", "test")  # policies are made on one half of every task's prompts and judged on the other


def prompts(
    folder: Path | None = None, *, tasks: Sequence[str] = TASKS, count: int = 3, seed: int = 0, part: str = "all"
) -> list[Prompt]:
    """``count`` prompts of each task, always the same ones for a seed; of one part only, or of all."""
    tasks = tuple(dict.fromkeys(tasks))  # one that is named twice is one task
    for task in tasks:
        if task not in KNOWN:
            raise ValueError(f"unknown task {task!r}{nearest(str(task), KNOWN)}; choose from {', '.join(KNOWN)}")
    require(part in PARTS, f"unknown part {part!r} of the prompts; choose from {', '.join(PARTS)}")
    require(count >= 1, f"at least 1 prompt a task, not {count}")
    by_task: dict[str, list[str]] = {task: [] for task in KNOWN}
    needed = {half for task in tasks for half in MIXED.get(task, (task,))}
    for name in FILES:
        if needed & ({"mt_bench", *SPEC_BENCH} if name == "spec_bench.jsonl" else {_file_task(name)}):
            for task, text in _read(_folder(folder) / name):
                by_task[task].append(text)
    for task, (first, second) in MIXED.items():
        by_task[task] = [both(*pair) for pair in zip(by_task[first], by_task[second], strict=False)]
    chosen = []
    for task in tasks:
        known = by_task[task][{"all": slice(None), "test": slice(0, None, 2), "development": slice(1, None, 2)}[part]]
        pick = random.Random(f"{seed} {task}").sample(known, min(count, len(known)))
        chosen += [Prompt(task, text) for text in pick]
    return chosen


def both(one: str, other: str) -> str:
    """Two tasks in one prompt."""
    return f"Do both, one after the other.\n\nFirst: {one}\n\nThen: {other}"


def _file_task(name: str) -> str:
    return name.removesuffix(".jsonl").removesuffix("_sample")


def _read(path: Path) -> Iterator[tuple[str, str]]:
    """Task and text of every record of a file of public prompts."""
    fields, origin, template = FILES[path.name]
    try:
        # splitlines would cut texts at U+2028 too
        for record in map(json.loads, filter(str.strip, path.read_text(encoding="utf-8").split("\n"))):
            category = record["category"] if path.name == "spec_bench.jsonl" else None
            task = _file_task(path.name) if category is None else category if category in SPEC_BENCH else "mt_bench"
            yield task, (template if record.get("input", True) else "{instruction}").format_map(record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        holds = f"it holds one JSON record a line with {fields}: {origin}"
        raise ValueError(f"cannot read {path} ({type(error).__name__}); {holds}") from None


def _folder(folder: Path | None) -> Path:
    """The folder of prompts: the one given, else prompts/ in the one that WAGER_DATA names."""
    if folder is not None:
        require(folder.is_dir(), f"no folder {folder}; --data names one with prompts/, or with the files of prompts/")
        return folder / "prompts" if (folder / "prompts").is_dir() else folder
    named = os.environ.get("WAGER_DATA")
    if not named:
        held = "; ".join(f"{name} ({fields}; {origin})" for name, (fields, origin, _) in FILES.items())
        raise ValueError(f"no data folder; pass --data DIR or set WAGER_DATA to a folder with prompts/: {held}")
    return Path(named) / "prompts"


def own_prompts(kinds: Sequence[str] | None = None, count: int | None = None) -> list[Prompt]:
    """The prompts that come with wager, written for it: of these kinds or of all, so many of each or all."""
    every: dict[str, list[str]] = json.loads(files("wager.bench").joinpath("prompts.json").read_text(encoding="utf-8"))
    return [Prompt(kind, text) for kind in kinds or every for text in every[kind][:count]]


def has_data(folder: Path | None) -> bool:
    """Whether a data folder was named, by option or by WAGER_DATA."""
    return folder is not None or bool(os.environ.get("WAGER_DATA"))


def suite_prompts(suite: str, folder: Path | None, count: int | None, seed: int) -> list[Prompt]:
    """The prompts of a suite, so many of each task or all: from the data folder, else those that come with wager."""
    tasks = SUITES.get(suite, (suite.replace("-", "_"),))
    known = ", ".join((*SUITES, *KNOWN)).replace("_", "-")
    require(tasks[0] in KNOWN, f"unknown suite {suite!r}; choose from quick, {known}")
    found = of_tasks(tasks, folder, count, seed)
    if has_data(folder) and (empty := [task for task in tasks if not any(prompt.task == task for prompt in found)]):
        raise ValueError(f"{_folder(folder)} holds no prompt of {empty[0]}; choose another --suite or --data")
    return found


def of_tasks(tasks: Sequence[str], folder: Path | None, count: int | None = None, seed: int = 0) -> list[Prompt]:
    """Prompts of the tasks, so many of each or all: from the data folder, else those of their kind in the package."""
    if has_data(folder):
        return prompts(folder, tasks=tasks, count=count or sys.maxsize, seed=seed)
    if missing := [task for task in tasks if task not in KIND]:
        raise ValueError(f"there are no prompts of {missing[0]} without data: pass --data DIR or set WAGER_DATA")
    return own_prompts(list(dict.fromkeys(KIND[task] for task in tasks)), count)


def in_turn(chosen: Sequence[Prompt], seed: int) -> list[Prompt]:
    """One prompt of each task, then the next of each, each time in an order drawn anew."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in chosen:
        by_task.setdefault(prompt.task, []).append(prompt)
    order = random.Random(seed)
    rows = zip_longest(*by_task.values())
    return [prompt for row in rows for prompt in order.sample(row, len(row)) if prompt is not None]


def read_file(path: Path) -> list[Prompt]:
    """The prompts of a file: text with one a line, or JSON lines with "prompt", "turns" (the first is asked) or
    "messages", and perhaps "task"; where a line names no task, the file's name is the label.
    """
    label = path.name.partition(".")[0]
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; give one prompt a line, or JSON lines") from None
    records = path.suffix in (".jsonl", ".json") or content.lstrip().startswith('{"')
    found = []
    for number, line in enumerate(map(str.strip, content.split("\n")), 1):  # splitlines would cut texts at U+2028 too
        try:
            found += [_record(json.loads(line), label) if records else Prompt(label, line)] if line else []
        except (ValueError, LookupError, TypeError, AttributeError):
            needs = 'a "prompt", with "turns", or with "messages" of which the last is the user\'s'
            raise ValueError(f"{path}, line {number}: not a JSON object with {needs}") from None
    require(bool(found), f"{path} holds no prompt; give one a line, or JSON lines")
    return found


def _record(record: Any, label: str) -> Prompt:
    task = record.get("task", label)
    asked = record["turns"][0] if "turns" in record else record.get("prompt")
    talk = [(message["role"], message["content"]) for message in record.get("messages") or ()] or [("user", asked)]
    texts = [task, *(word for pair in talk for word in pair)]
    if talk[-1][0] != "user" or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError
    return Prompt(task, talk[-1][1], tuple(talk[:-1]))
