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

from wager.bench import suite as suites
from wager.bench import verdict, workloads
from wager.bench.summary import summarize
from wager.cli.files import provenance
from wager.cli.options import MODEL, Device, Dtype, Model

if TYPE_CHECKING:
    from wager.bench.answers import Answer
    from wager.bench.peers import Method
    from wager.bench.runs import Run

QUICK = "quick"
QUICK_PROMPTS, QUICK_TOKENS, TOKENS = 3, 48, 128  # of each kind; an answer's, in the quick suite and in the others
SAVED = 30.0  # seconds between two savings of run.json, and two lines of progress where there is no terminal


def suite(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Option(
            "--suite",
            help=f"{QUICK}, spec-bench, humaneval, all, or any task; all but quick read --data where there is one.",
        ),
    ] = QUICK,
    model: Model = MODEL,
    device: Device = "auto",
    dtype: Dtype = "auto",
    methods: Annotated[
        str,
        typer.Option(
            help="Separated by commas: transformers, transformers-lookup, transformers-assisted, off, arms such as "
            "suffix:4, policies such as auto, which choose among those arms.",
            show_default="a choice of each kind",
        ),
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts a task.", show_default=f"{QUICK_PROMPTS} in quick, else all")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens an answer.", show_default=f"{QUICK_TOKENS} in quick, else {TOKENS}"),
    ] = None,
    longest: Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts lose their middle.")] = 1024,
    out: Annotated[Path, typer.Option(help="Folder for the results; a run that was stopped goes on there.")] = Path(
        "wager-bench"
    ),
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA, else prompts that come with wager"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the choice and order of prompts and methods.")] = 0,
    afresh: Annotated[bool, typer.Option("--afresh", help="Overwrite a run that is there.")] = False,
) -> None:
    """Play transformers' own ways, fixed arms and policies on the same prompts, in turn, and say what is fastest.

    Stop it whenever you like: the same command goes on where it was. See docs/bench.md.
    """
    if context.invoked_subcommand is not None:
        _refuse_misplaced(context)
        return
    if name == QUICK and data is not None:
        raise ValueError("the quick suite has prompts of its own; leave out --data, or choose another --suite")
    chosen = workloads.in_turn(_prompts(name, data, limit, seed), seed)
    default = suites.default_methods(suites.QUICK if name == QUICK else suites.FULL, model)
    named = suites.parse_methods(methods) if methods else default
    tokens = max_tokens or (QUICK_TOKENS if name == QUICK else TOKENS)
    told = Console(stderr=True, highlight=False)

    from wager.bench.engine import described
    from wager.bench.runs import Run
    from wager.cli.session import quietly
    from wager.models import load
    from wager.models.runner import context_limit

    with quietly():
        with told.status(f"loading {model} …", spinner="dots"):
            target, tokenizer = load(model, dtype=dtype, device=device, progress=told.print)
        if not methods:
            named = suites.without_impossible(named, target)
        held = context_limit(target)
        if held < 16 + tokens:
            raise ValueError(f"{model} holds {held:,} tokens: too few for answers of {tokens:,} and a prompt")
        asked = suites.questions(chosen, tokenizer, min(longest, held - tokens), target.device)
        ran = described(target)
        about = provenance()
        about["versions"] |= {key: ran.pop(key) for key in ("torch", "transformers")}
        head = suites.head(
            named,
            asked,
            target,
            {**about, **ran},
            suite=name,
            model=model_name(model),
            seed=seed,
            max_tokens=tokens,
            longest_prompt=longest,
            data="folder" if name != QUICK and workloads.has_data(data) else "wager's own prompts",
        )
        with Run(out, head, afresh=afresh) as run:
            total = len(asked) * len(named)
            if run.complete and len(run.answers) == total:
                told.print(f"{out} holds this run already, complete; --afresh measures it anew")
            elif run.answers:
                told.print(f"going on: {len(run.answers)} of {total} answers are there")
            with told.status("preparing the methods …", spinner="dots"):
                made = suites.build(named, target, tokenizer, tokens=len(asked) * tokens, seed=seed)
            if len(run.answers) < total:
                _play(run, made, asked, tokenizer, tokens, seed, told)
            summary = summarize(head["methods"], head["prompts"], run.answers, seed=seed)
            summary |= checked(run.answers, made, target, asked)
            said = verdict.words(summary)
            path = run.save(summary, said, complete=True)
    show(summary)
    for sentence in said:
        print(sentence)
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
    if name == QUICK:
        return workloads.own_prompts(count=limit or QUICK_PROMPTS)
    return workloads.suite_prompts(name, data, limit, seed)


def _play(
    run: Run,
    methods: list[Method],
    asked: list[suites.Question],
    tokenizer: Any,
    tokens: int,
    seed: int,
    told: Console,
) -> None:
    """Play what is left; where Ctrl-C stops it, what is there is saved and said."""
    total = len(methods) * len(asked)
    try:
        with progress(told, total, len(run.answers)) as (tell, warming):
            saved = monotonic()
            for question, method in suites.play(
                run, methods, asked, tokenizer, tokens=tokens, seed=seed, warming=warming
            ):
                tell(f"{question.id}: {method}")
                if monotonic() - saved > SAVED:
                    run.save(summarize(run.head["methods"], run.head["prompts"], run.answers, seed=seed))
                    saved = monotonic()
    except KeyboardInterrupt:
        run.save(summarize(run.head["methods"], run.head["prompts"], run.answers, seed=seed))
        told.print(f"\nstopped; {len(run.answers)} of {total} answers are kept, and the same command goes on with them")
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


def checked(
    answers: Mapping[tuple[str, str], Answer], methods: Sequence[Method], target: Any, asked: Sequence[suites.Question]
) -> dict[str, Any]:
    """Whether texts differ from the first method's, and speeds with stalls taken out."""
    from wager.bench import peers

    whole = [q for q in asked if all((q.id, method.name) in answers for method in methods)]
    for method in methods:
        method.answers = [answers[question.id, method.name] for question in whole]
    ties = peers.ties(target, methods, [question.ids for question in whole])
    return {
        "differences": {**ties, "answers": ties["answers"] - len(whole)},  # the first method's own are no comparison
        "steady": peers.steady(methods, "off") if whole else {},
    }


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
