"""The prompts benchmarks run on: ten tasks, and two made of two of them, read from a folder of public data.

Where there is no such folder, a small set of prompts written for wager has the same kinds.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SPEC_BENCH = ("translation", "summarization", "qa", "math_reasoning", "rag")  # its other categories are MT-Bench's


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a task, as a chat message, or a conversation that ends with one."""

    task: str
    text: str  # the last message
    before: tuple[tuple[str, str], ...] = ()  # role and content of the messages before it

    @property
    def messages(self) -> list[dict[str, str]]:
        """As a conversation."""
        return [{"role": role, "content": said} for role, said in (*self.before, ("user", self.text))]

    def ids(self, tokenizer: Any, longest: int, device: Any) -> torch.Tensor:
        """Its tokens, (1, length), as a chat where the model has a template for it.

        A long one keeps its start and end, where question and template stand.
        """
        import torch

        ids: list[int]
        if getattr(tokenizer, "chat_template", None):
            from jinja2 import TemplateError

            try:
                ids = tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, return_dict=False)
            except TemplateError as error:
                raise ValueError(f"the model's chat template refuses a prompt of {self.task}: {error}") from None
        else:
            ids = tokenizer("\n\n".join(message["content"] for message in self.messages)).input_ids
        if len(ids) > longest:
            ids = [*ids[: longest // 2], *ids[-(longest - longest // 2) :]]
        return torch.tensor([ids], device=device)


def _chat(record: Mapping[str, Any]) -> tuple[str, str]:
    category = record["category"]
    return (category if category in SPEC_BENCH else "mt_bench"), record["turns"][0]


def _humaneval(record: Mapping[str, Any]) -> tuple[str, str]:
    return "humaneval", f"Complete this Python function. Write out the whole function.\n\n{record['prompt']}"


def _debug(record: Mapping[str, Any]) -> tuple[str, str]:
    task, code = record["description"], record["buggy_code"]
    return "debug_bench", f"{task}\n\nThis solution has a bug:\n\n{code}\n\nWrite the corrected code."


def _xsum(record: Mapping[str, Any]) -> tuple[str, str]:
    return "xsum", f"Summarize this article in a few sentences.\n\n{record['article']}"


def _alpaca(record: Mapping[str, Any]) -> tuple[str, str]:
    return "alpaca", "\n\n".join(filter(None, (record["instruction"], record["input"])))


# file -> how a record becomes (task, prompt); what a record must hold, and where the file comes from
FILES: dict[str, tuple[Callable[[Mapping[str, Any]], tuple[str, str]], str, str]] = {
    "spec_bench.jsonl": (_chat, "category, turns", "Spec-Bench (Xia et al. 2024)"),
    "humaneval.jsonl": (_humaneval, "prompt", "HumanEval (Chen et al. 2021)"),
    "debug_bench.jsonl": (_debug, "description, buggy_code", "DebugBench (Tian et al. 2024)"),
    "xsum.jsonl": (_xsum, "article", "XSum (Narayan et al. 2018)"),
    "alpaca_sample.jsonl": (_alpaca, "instruction, input", "Alpaca (Taori et al. 2023)"),
}
TASKS = ("mt_bench", *SPEC_BENCH, "humaneval", "debug_bench")  # what benchmarks run on unless told otherwise
# Two tasks in one prompt, one after the other: the drafter that is best changes in the middle of the text.
MIXED = {"math_then_code": ("math_reasoning", "humaneval"), "translation_then_math": ("translation", "math_reasoning")}
ALL = (*TASKS, "xsum", "alpaca")
KNOWN = (*ALL, *MIXED)
WITHIN = {name: {name.removesuffix(".jsonl").removesuffix("_sample")} for name in FILES} | {
    "spec_bench.jsonl": {"mt_bench", *SPEC_BENCH}
}  # file -> its tasks
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
    if unknown := [task for task in tasks if task not in KNOWN]:
        raise ValueError(f"unknown task {unknown[0]!r}; choose from {', '.join(KNOWN)}")
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r} of the prompts; choose from {', '.join(PARTS)}")
    if count < 1:
        raise ValueError(f"at least 1 prompt a task, not {count}")
    by_task: dict[str, list[str]] = {task: [] for task in KNOWN}
    needed = {part for task in tasks for part in MIXED.get(task, (task,))}
    for name, (read, fields, origin) in FILES.items():
        if not WITHIN[name] & needed:
            continue
        path = _folder(folder) / name
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            for task, text in (read(json.loads(line)) for line in lines if line.strip()):
                by_task[task].append(text)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"cannot read {path} ({type(error).__name__}); it holds one JSON record a line with {fields}: {origin}"
            ) from None
    for task, (first, second) in MIXED.items():
        pairs = zip(by_task[first], by_task[second], strict=False)
        by_task[task] = [f"Do both, one after the other.\n\nFirst: {one}\n\nThen: {other}" for one, other in pairs]
    chosen = []
    for task in tasks:
        known = by_task[task][{"all": slice(None), "test": slice(0, None, 2), "development": slice(1, None, 2)}[part]]
        pick = random.Random(f"{seed} {task}").sample(known, min(count, len(known)))
        chosen += [Prompt(task, text) for text in pick]
    return chosen


def _folder(folder: Path | None) -> Path:
    """The folder of prompts: the one given, else prompts/ in the one that WAGER_DATA names."""
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(
                f"no folder {folder}; --data names one with prompts/, or with the files of prompts/ themselves"
            )
        return folder / "prompts" if (folder / "prompts").is_dir() else folder
    named = os.environ.get("WAGER_DATA")
    if not named:
        held = "; ".join(f"{name} ({fields}; {origin})" for name, (_, fields, origin) in FILES.items())
        raise ValueError(f"no data folder; pass --data DIR or set WAGER_DATA to a folder with prompts/: {held}")
    return Path(named) / "prompts"


def own_prompts(kinds: Sequence[str] | None = None, count: int | None = None) -> list[Prompt]:
    """The prompts that come with wager, written for it: of these kinds or of all, so many of each or all."""
    every: dict[str, list[str]] = json.loads(files("wager.bench").joinpath("prompts.json").read_text(encoding="utf-8"))
    return [Prompt(kind, text) for kind in kinds or every for text in every[kind][:count]]


def has_data(folder: Path | None) -> bool:
    """Whether a data folder was named, by option or by WAGER_DATA."""
    return folder is not None or bool(os.environ.get("WAGER_DATA"))


def suite_tasks(suite: str) -> tuple[str, ...]:
    """The tasks of a suite by name, written with - or _."""
    if suite in SUITES:
        return SUITES[suite]
    task = suite.replace("-", "_")
    if task not in KNOWN:
        raise ValueError(
            f"unknown suite {suite!r}; choose from quick, {', '.join((*SUITES, *KNOWN)).replace('_', '-')}"
        )
    return (task,)


def suite_prompts(suite: str, folder: Path | None, count: int | None, seed: int) -> list[Prompt]:
    """The prompts of a suite, so many of each task or all: from the data folder, else those that come with wager."""
    tasks = suite_tasks(suite)
    if has_data(folder):
        found = prompts(folder, tasks=tasks, count=count or sys.maxsize, seed=seed)
        if empty := [task for task in tasks if not any(prompt.task == task for prompt in found)]:
            raise ValueError(f"{_folder(folder)} holds no prompt of {empty[0]}; choose another --suite or --data")
        return found
    if missing := [task for task in tasks if task not in KIND]:
        raise ValueError(f"suite {suite!r} needs data for {missing[0]}: pass --data DIR or set WAGER_DATA")
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
    """The prompts of a file: JSON lines with "prompt" or "messages", and perhaps "task", or text with one a line.

    Where a line names no task, the file's name is the label.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; give one prompt a line, or JSON lines") from None
    label = path.name.partition(".")[0]
    written = path.suffix in (".jsonl", ".json") or next(filter(None, lines), "").startswith('{"')
    found = [
        _record(line, label, f"{path}, line {number}") if written else Prompt(label, line)
        for number, line in enumerate(lines, 1)
        if line
    ]
    if not found:
        raise ValueError(f"{path} holds no prompt; give one a line, or JSON lines")
    return found


def _record(line: str, label: str, where: str) -> Prompt:
    """One line of JSON as a prompt."""
    try:
        record = json.loads(line)
        task = record.get("task", label)
        said = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
        talk = [(message["role"], message["content"]) for message in said]
        if not all(isinstance(word, str) and word.strip() for word in (task, *(w for pair in talk for w in pair))):
            raise ValueError
        if talk[-1][0] != "user":
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f'{where}: not a JSON object with a "prompt", or with "messages" of which the last is the user\'s'
        ) from None
    return Prompt(task, talk[-1][1], tuple(talk[:-1]))
