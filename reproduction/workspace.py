"""What runs work with: the model, the prompts, where results are kept, and whom to tell how far they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any, Protocol

import wager
from reproduction.perturb import rephrased
from wager.bench import workloads
from wager.bench.workloads import KIND, MIXED, Prompt
from wager.core import files

Result = Mapping[str, Any]  # what a run gives, as JSON
Tell = Callable[[str, int, int], None]  # what is being done, how many of how many
MAKE = (
    "analyses", "asked", "costs", "engine", "fitted", "measured", "opened", "perturb", "recorded", "recordings",
    "simulated", "turned", "units", "walk",
)  # fmt: skip
USED = ("core", "policies", "simulation")  # packages of wager that every run goes through


def _silent(what: str, done: int, of: int) -> None:
    pass


class Run(Protocol):
    """Something to run, described by its settings alone: two experiments with equal runs share one."""

    @property
    def command(self) -> str:
        """The plain command line that does the same, or the nearest there is."""
        ...

    def __call__(self, workspace: Workspace) -> dict[str, Any]: ...


class NotHereError(ValueError):
    """What a run needs is not here: a recording, a trace, a model. Says what it is."""


def run_needs_model(run: Run) -> bool:
    return bool(getattr(run, "needs_model", False))


def key(run: Run, model: str, data: str, *also: str) -> str:
    """The same for the same settings: the name a kept result goes by."""
    settings = json.dumps([type(run).__name__, asdict(run), model, data, *also], sort_keys=True, default=str)  # type: ignore[call-overload]
    return f"{type(run).__name__.lower()}-{sha256(settings.encode()).hexdigest()[:12]}"


@cache
def made_by() -> str:
    """A digest of the sources that make runs, so that a result kept by others is not taken for one of theirs."""
    here, package = Path(__file__).parent, Path(wager.__file__).parent
    own = [here / f"{name}.py" for name in MAKE]
    used = [path for name in USED for path in sorted((package / name).rglob("*.py"))]
    return sha256(b"".join(path.read_bytes() for path in (*own, *used))).hexdigest()


@dataclass(slots=True)
class Workspace:
    """The model is loaded when first asked for; results are kept by their settings, in memory and in a folder."""

    model: str = "smollm2-135m"
    recordings: Path = Path("results") / "recordings"
    data: Path | None = None  # folder with prompts/; None: WAGER_DATA, and without it the prompts that come with wager
    keep: Path | None = None  # folder for results of runs
    again: bool = False  # run even what is kept
    with_model: bool = False  # also runs that load the model
    tell: Tell = _silent
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
            found = self._made(run)
            if path is not None and "missing" not in found:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_text(path, json.dumps(found))
        self.done[name] = found
        return found

    def _made(self, run: Run) -> dict[str, Any]:
        """The run's result with the seconds of a core it took; where something it needs is not here, what that is."""
        if run_needs_model(run) and not self.with_model:
            return {"missing": "needs a run of the model (--with-model, best on a GPU)"}
        began = process_time()
        try:
            found: dict[str, Any] = json.loads(json.dumps(run(self)))
        except NotHereError as error:
            return {"missing": str(error)}
        return {**found, "took": round(process_time() - began, 1)}

    def name(self, run: Run) -> str:
        """What the run's result goes by."""
        replayed = hasattr(run, "wanted") or hasattr(run, "labels")  # depends on the recordings at hand
        data, also = "folder" if self.has_data else "own", self._recorded() if replayed else []
        named = (run.file,) if hasattr(run, "file") else getattr(run, "files", ())
        for file in named:
            path = self.recordings.parent / file
            also.append(f"{path.stat().st_size if path.is_file() else 0}")
        return key(run, self.model, data, made_by(), *also)

    def _recorded(self) -> list[str]:
        """The recordings at hand, so that a result made with others is not taken for one with these."""
        return [f"{path.name} {path.stat().st_size}" for path in sorted(self.recordings.glob("*.jsonl*"))]

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


def make(runs: Sequence[Run], workspace: Workspace, jobs: int) -> None:
    """Make runs in so many processes; what they give is kept in the workspace's folder, each run once."""
    todo = {name: run for run in runs if (name := workspace.name(run)) not in workspace.done}
    if jobs < 2 or workspace.with_model or workspace.keep is None:
        return  # they are made when they are asked for
    own = Workspace(
        workspace.model,
        recordings=workspace.recordings,
        data=workspace.data,
        keep=workspace.keep,
        again=workspace.again,
    )
    todo = dict(sorted(todo.items(), key=lambda each: -float(getattr(each[1], "tokens", 0))))  # the longest first
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_one, own, run): name for name, run in todo.items()}
        for i, done in enumerate(as_completed(waiting), 1):
            workspace.tell(waiting[done], i, len(waiting))
            workspace.done[waiting[done]] = done.result()


def _one(workspace: Workspace, run: Run) -> dict[str, Any]:
    return workspace.result(run)
