"""What runs work with: the model, the prompts, where results are kept, and whom to tell how far they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wager.bench import workloads
from wager.bench.workloads import KIND, MIXED, Prompt
from wager.core import files
from wager.reproduction.base import Run, key
from wager.reproduction.perturb import rephrased

Tell = Callable[[str, int, int], None]  # what is being done, how many of how many


@dataclass(slots=True)
class Tools:
    """The model is loaded when first asked for; results are kept by their settings, in memory and in a folder."""

    model: str = "smollm2-135m"
    data: Path | None = None  # folder with prompts/; None: WAGER_DATA, and without it the prompts that come with wager
    keep: Path | None = None  # folder for results of runs
    again: bool = False  # run even what is kept
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    tell: Tell = lambda what, done, of: None
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)  # results that an earlier call had kept
    _loaded: tuple[Any, Any] | None = None

    def result(self, run: Run) -> dict[str, Any]:
        """The run's result: kept, or made now."""
        name = self.name(run)
        if name in self.done:
            return self.done[name]
        path = self.keep / f"{name}.json" if self.keep is not None else None
        if path is not None and path.is_file() and not self.again:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self.reused.append(name)
        else:
            found = json.loads(json.dumps(run(self)))
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_text(path, json.dumps(found))
        self.done[name] = found
        return found

    def name(self, run: Run) -> str:
        """What the run's result goes by."""
        return key(run, self.model, "folder" if self.has_data else "own")

    @property
    def has_data(self) -> bool:
        """Whether there is a folder of public prompts."""
        return workloads.has_data(self.data)

    def folder(self, kind: str) -> Path | None:
        """corpora/ or traces/ of the data folder, where there is one."""
        named = self.data or (Path(os.environ["WAGER_DATA"]) if os.environ.get("WAGER_DATA") else None)
        return named / kind if named is not None and (named / kind).is_dir() else None

    def loaded(self) -> tuple[Any, Any]:
        """The target and its tokenizer."""
        if self._loaded is None:
            from wager.models import load

            self.tell(f"loading {self.model}", 0, 1)
            self._loaded = load(self.model)
        return self._loaded

    def prompts(self, tasks: Sequence[str], count: int, *, seed: int = 0, part: str = "all") -> list[Prompt]:
        """So many prompts of each task: from the data folder, else those that come with wager."""
        if self.has_data:
            return workloads.prompts(self.data, tasks=tasks, count=count, seed=seed, part=part)
        chosen = []
        for task in tasks:
            pairs = MIXED.get(task)
            if pairs is None:
                texts = [p.text for p in workloads.own_prompts([KIND[task]])]
                # tasks of one kind share its prompts: each begins at another of them
                first = [t for t in KIND if KIND[t] == KIND[task]].index(task) + (2 if part == "development" else 0)
                chosen += [Prompt(task, texts[(first + i) % len(texts)]) for i in range(min(count, len(texts)))]
            else:
                one, other = (workloads.own_prompts([KIND[half]]) for half in pairs)
                both = list(zip(one, other, strict=False))[:count]
                say = "Do both, one after the other.\n\nFirst: {}\n\nThen: {}"
                chosen += [Prompt(task, say.format(a.text, b.text)) for a, b in both]
        return chosen

    def rephrased(self, chosen: Sequence[Prompt], seed: int) -> list[Prompt]:
        """The same questions in other words."""
        return [Prompt(p.task, rephrased(p.task, p.text, seed + i)) for i, p in enumerate(chosen)]
