"""`python -m reproduction`: the papers' tables and figures, re-run here. From a checkout: it is not installed."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text as Words

from reproduction.experiment import NO, PART, UNTRIED, YES, Experiment, Outcome, shown
from reproduction.page import FOLDER, page, read
from reproduction.registry import EXPERIMENTS, PAPERS, chosen
from reproduction.workspace import Workspace
from wager.cli.files import check_writable, write_json
from wager.cli.options import MODEL, Model
from wager.core import files
from wager.core.provenance import provenance

COLOURS = {YES: "green", PART: "yellow", NO: "red", UNTRIED: "dim"}
RESULTS = Path("results")


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES",
            help="Experiments such as banditspec-table1, or a paper: " + ", ".join(PAPERS) + ".",
            show_default="a list of all",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every experiment.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The short form: under five minutes each on two cores.")
    ] = False,
    model: Model = MODEL,
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write one file an experiment to.")] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder to keep results of runs in, so that none is made twice.",
            show_default="build/reproduction with --out, else none",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run even what is kept.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all outcomes to this file.")] = None,
    doc: Annotated[
        Path | None, typer.Option(help="Instead: write the page of all results to this file.", show_default=False)
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of kept results, for the list and --doc.")] = RESULTS,
) -> None:
    """Re-run the tables and figures of the four papers on the models that can be had here."""
    if doc is not None:
        check_writable(doc)
        if not results.is_dir():
            raise ValueError(f"no folder {results} to read results from; pass --results, or run in a checkout")
        files.write_text(doc, page(results))
        return
    if every and names:
        raise ValueError("--all runs every experiment; leave out the names, or --all")
    if not names and not every:
        _list(results)
        return
    wanted = list(EXPERIMENTS.values()) if every else chosen(names or [])
    if data is not None and not data.is_dir():
        raise ValueError(f"no folder {data}; --data names one with prompts/, and perhaps traces/ and corpora/")
    if json_file is not None:
        check_writable(json_file)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        keep = keep or Path("build") / FOLDER
    told = []
    with _workspace(keep, model=model, data=data, again=again) as workspace:
        for experiment in wanted:
            content = _run(experiment, quick, workspace)
            told.append(content)
            if out is not None:
                write_json(out / f"{experiment.name}.json", content)
    if json_file is not None:
        write_json(json_file, {**provenance("python -m reproduction"), "experiments": told})


@contextmanager
def _workspace(keep: Path | None, **settings: Any) -> Iterator[Workspace]:
    """A workspace that shows its progress; without a folder to keep results in they are gone at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory() as scratch,
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("", total=None)
        yield Workspace(
            keep=keep or Path(scratch),
            tell=lambda what, done, of: bar.update(task, description=what, completed=done, total=of),
            **settings,
        )


def _run(experiment: Experiment, quick: bool, workspace: Workspace) -> dict[str, Any]:
    """Make the experiment's runs or take those that were kept, print the outcome, and return it as JSON."""
    began = time.monotonic()
    workspace.reused.clear()
    runs = experiment.runs(quick)
    commands = list(dict.fromkeys(run.command for run in runs))
    outcome = experiment.evaluate([workspace.result(run) for run in runs])
    _print(experiment, outcome, commands)
    if workspace.reused:
        print(f"{len(workspace.reused)} of its runs had been kept; --again makes them anew.")
    return {
        **provenance("python -m reproduction"),
        "experiment": experiment.name,
        "quick": quick,
        "model": workspace.model,
        "commands": commands,
        "seconds": round(time.monotonic() - began, 1),
        "runs_kept_from_before": len(workspace.reused),
        **outcome.json(),
    }


def _print(experiment: Experiment, outcome: Outcome, commands: Sequence[str]) -> None:
    console = _console()
    console.rule(Words(f"{PAPERS[experiment.paper]}, {experiment.place}: {experiment.what}"), align="left")
    console.print(Words(experiment.claim))
    for line in commands[:3]:
        console.print(Words(f"$ {line}", style="dim"))
    if len(commands) > 3:
        console.print(Words(f"  and {len(commands) - 3} more like these", style="dim"))
    table = Table(box=box.SIMPLE_HEAD)
    for i, column in enumerate(outcome.figures.columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=not i)
    for row in outcome.figures.rows:
        table.add_row(*(Words(shown(cell)) for cell in row))
    console.print(table)
    for check in outcome.checks:
        console.print(
            Words(f"  {'holds' if check.holds else 'fails'}: {check.says}", style="" if check.holds else "yellow")
        )
    console.print(Words(outcome.headline))
    console.print(Words(f"Does the claim hold? {outcome.holds}.", style=f"bold {COLOURS[outcome.holds]}"))
    if outcome.why:
        console.print(Words(" ".join(dict.fromkeys(c.because for c in outcome.checks if not c.holds and c.because))))


def _list(results: Path) -> None:
    """Every experiment with its claim and what is known of it."""
    console = _console()
    for paper, title in PAPERS.items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("experiment", "holds", "claim"):
            table.add_column(column, no_wrap=column != "claim")
        for name, experiment in EXPERIMENTS.items():
            if experiment.paper != paper:
                continue
            row: Any = read(results, experiment) if results.is_dir() else None
            holds = row.told["holds"] if row is not None else "not run"
            table.add_row(name, Words(holds, style=COLOURS.get(holds, "dim")), Words(experiment.claim))
        console.print(table)
    print("Run one with: python -m reproduction NAME --quick")


def _console() -> Console:
    console = Console()
    if not console.is_terminal:  # a pipe has no width of its own
        console.width = 140
    return console


def main() -> None:
    """Run the command; bad input ends in one sentence and exit code 2."""
    try:
        typer.run(command)
    except (ValueError, OSError) as error:
        if os.environ.get("WAGER_DEBUG"):
            raise
        print(f"reproduction: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
