"""`wager bench` itself: methods side by side on a suite of prompts, with a verdict in plain words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wager.bench import methods as made
from wager.bench import verdict, workloads
from wager.bench.runs import Run, tokenize
from wager.cli.options import MODEL, Device, Dtype, Model
from wager.core.provenance import provenance

if TYPE_CHECKING:
    from wager.bench.methods import Method, TextGenerator

QUICK = "quick"
QUICK_PROMPTS, QUICK_TOKENS, TOKENS = 3, 48, 128  # of each kind; an answer's, in the quick suite and in the others
SAVED = 30.0  # seconds between two savings of run.json, and two lines of progress where there is no terminal
Suite = Annotated[
    str,
    typer.Option(
        "--suite",
        help=f"{QUICK}, spec-bench, humaneval, all, or any task; all but quick read --data where there is one.",
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        help="Separated by commas: transformers, transformers-lookup, transformers-assisted, off, arms such as "
        "suffix:4, policies such as auto, which choose among those arms.",
        show_default="a choice of each kind",
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Prompts a task.", show_default=f"{QUICK_PROMPTS} in quick, else all")
]
MaxTokens = Annotated[
    int | None, typer.Option(min=2, help="Tokens an answer.", show_default=f"{QUICK_TOKENS} in quick, else {TOKENS}")
]
LongestPrompt = Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts lose their middle.")]
Out = Annotated[Path, typer.Option(help="Folder for the results; a run that was stopped is resumed there.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA, else prompts that come with wager"),
]


def suite(
    context: typer.Context,
    name: Suite = QUICK,
    model: Model = MODEL,
    device: Device = "auto",
    dtype: Dtype = "auto",
    methods: Methods = "",
    limit: Limit = None,
    max_tokens: MaxTokens = None,
    longest: LongestPrompt = 1024,
    out: Out = Path("wager-bench"),
    data: Data = None,
    seed: Annotated[int, typer.Option(min=0, help="For the choice and order of prompts and methods.")] = 0,
    afresh: Annotated[bool, typer.Option("--afresh", help="Overwrite a run that is there.")] = False,
) -> None:
    """Run transformers' own ways, fixed arms and policies on the same prompts, in turn, and say what is fastest.

    Stop it whenever you like: the same command resumes it. See docs/bench.md.
    """
    if context.invoked_subcommand is not None:
        _refuse_misplaced(context)
        return
    chosen = _prompts(name, data, limit, seed)
    named = made.parse_methods(methods) if methods else made.default_methods(_defaults(name), model)
    tokens = max_tokens or (QUICK_TOKENS if name == QUICK else TOKENS)
    settings = {"suite": name, "seed": seed, "max_tokens": tokens, "longest_prompt": longest}
    settings["data"] = "folder" if name != QUICK and workloads.has_data(data) else "wager's own prompts"

    from wager.cli.session import quietly

    with quietly():
        summary, said, path = _measure(
            model, {"device": device, "dtype": dtype}, named, chosen, settings, out, optional=not methods, afresh=afresh
        )
    show(summary)
    print("\n".join(said))
    print(f"\nEverything is in {path}; for a page with pictures:\n  wager report {path} -o report.html")


def _refuse_misplaced(context: typer.Context) -> None:
    """Options before a subcommand would do nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--suite" if name == "name" else "--longest-prompt" if name == "longest" else f"--{name}"
            raise ValueError(
                f"{option.replace('_', '-')} before {context.invoked_subcommand} does nothing; "
                f"give options after it, as in wager bench {context.invoked_subcommand} --help"
            )


def _prompts(name: str, data: Path | None, limit: int | None, seed: int) -> list[workloads.Prompt]:
    if name == QUICK and data is not None:
        raise ValueError("the quick suite has prompts of its own; leave out --data, or choose another --suite")
    if name == QUICK:
        return workloads.in_turn(workloads.own_prompts(count=limit or QUICK_PROMPTS), seed)
    return workloads.in_turn(workloads.suite_prompts(name, data, limit, seed), seed)


def _defaults(name: str) -> Sequence[str]:
    return made.QUICK if name == QUICK else made.FULL


def _measure(
    model: str,
    how: Mapping[str, str],
    methods: Sequence[Method],
    chosen: Sequence[workloads.Prompt],
    settings: dict[str, Any],
    out: Path,
    *,
    optional: bool,
    afresh: bool,
) -> tuple[dict[str, Any], list[str], Path]:
    """Run what is not in the folder yet; the summary, the verdict and the run's file."""
    from wager.bench.engine import described
    from wager.models import load
    from wager.models.fingerprint import fingerprint
    from wager.models.runner import context_limit

    told = Console(stderr=True, highlight=False)
    tokens, seed = settings["max_tokens"], settings["seed"]
    with told.status(f"loading {model} …", spinner="dots"):
        target, tokenizer = load(model, **how, progress=told.print)
    if optional:
        methods = made.without_impossible(methods, target)
    held = context_limit(target)
    if held < 16 + tokens:
        raise ValueError(f"{model} holds {held:,} tokens: too few for answers of {tokens:,} and a prompt")
    prompts = tokenize(chosen, tokenizer, min(settings["longest_prompt"], held - tokens), target.device)
    about, ran = provenance(), described(target)
    about["versions"] |= {key: ran.pop(key) for key in ("torch", "transformers")}
    marks = {"model": model_name(model), "weights": fingerprint(target)}
    arms = made.arms_of(methods, target)
    with Run(methods, prompts, arms, out, afresh=afresh, **settings, **about, **ran, **marks) as run:
        total = len(prompts) * len(methods)
        if run.complete and len(run.answers) == total:
            told.print(f"{out} holds this run already, complete; --afresh measures it anew")
        elif run.answers:
            told.print(f"resuming: {len(run.answers)} of {total} answers are there")
        if len(run.answers) < total:
            with told.status("preparing the methods …", spinner="dots"):
                shared = made.Target(target, tokenizer, tokens=len(prompts) * tokens, seed=seed)
                generators = [method.make(shared, arms) for method in methods]
            _play(run, generators, tokenizer, told)
        summary = run.summary(target)
        said = verdict.words(summary)
        return summary, said, run.save(summary, said, complete=True)


def _play(run: Run, generators: list[TextGenerator], tokenizer: Any, told: Console) -> None:
    """Run what is left; where Ctrl-C stops it, what is there is saved and said."""
    total = len(generators) * len(run.prompts)
    try:
        with progress(told, total, len(run.answers)) as (tell, warming):
            saved = monotonic()
            for prompt, name in run.play(generators, tokenizer=tokenizer, warming=warming):
                tell(f"{prompt.id}: {name}")
                if monotonic() - saved > SAVED:
                    run.save(run.summary())
                    saved = monotonic()
    except KeyboardInterrupt:
        run.save(run.summary())
        told.print(f"\nstopped; {len(run.answers)} of {total} answers are kept, and the same command resumes the run")
        raise typer.Exit(130) from None


@contextmanager
def progress(told: Console, total: int, done: int = 0) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A bar with the time left; lines of text where there is no terminal.

    Yields what is to be called after each answer, and what with each method that is warmed up before the first.
    """
    if told.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("left"), console=told, transient=True) as bars:
            bar = bars.add_task("warming up", total=total, completed=done)
            yield (
                lambda what: bars.update(bar, advance=1, description=what),
                lambda name: bars.update(bar, description=f"warming up {name}"),
            )
        return
    began = last = monotonic()
    count, warmed = done, 0

    def warming(name: str) -> None:
        nonlocal began, warmed
        began, warmed = monotonic(), warmed + 1
        told.print(f"warming up {warmed}: {name}")

    def tell(what: str) -> None:
        nonlocal count, last
        count += 1
        if monotonic() - last > SAVED:
            last = monotonic()
            left = (last - began) / (count - done) * (total - count)
            told.print(f"{count} of {total} answers, about {minutes(left)} left")

    yield tell, warming


def minutes(seconds: float) -> str:
    """Seconds as a reader wants them."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def model_name(model: str) -> str:
    """The model's name; of a folder its last part, since the rest says nothing elsewhere."""
    return Path(model).resolve().name if os.path.isdir(os.path.expanduser(model)) else model


def show(summary: Mapping[str, Any]) -> None:
    """For all prompts and for each task, every method."""
    table = Table(title=f"speed-up over {summary['base']} (95 % interval over prompts)", title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    for column in ("speed-up", "tokens/s", "MAT", "regret, s"):
        table.add_column(column, justify="right", no_wrap=True)
    for task in summary["tasks"][: 1 if len(summary["tasks"]) == 2 else None]:  # a single task is all of them
        table.add_row()
        table.add_row(f"{task['task']}, {task['prompts']} prompt{'s' * (task['prompts'] != 1)}", style="bold")
        for row in task["methods"]:
            table.add_row(*_cells(row, task["best_arm"]))
    console = Console(highlight=False)
    console.print(table)
    if any(task["best_arm"] for task in summary["tasks"]):
        console.print("* the fastest fixed arm there; regret is seconds beyond it", style="dim")
    print()


def _cells(row: Mapping[str, Any], best: str | None) -> Iterable[str]:
    interval, regret = row["interval"], row["regret_seconds"]
    yield f"  {row['method']}{' *' if row['method'] == best else ''}"
    yield f"{row['speedup']:.2f}x" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
    yield f"{row['tokens_per_second']:.1f}"
    yield f"{row['mat']:.2f}"
    yield f"{regret:+.2f}" if regret is not None and row["method"] != best else ""
