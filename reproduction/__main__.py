"""`python -m reproduction`: the papers' tables and figures, tested here. From a checkout: it is not installed."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text as Words

from reproduction import page, result_files
from reproduction.experiment import Experiment, shown
from reproduction.inference import UNDECIDED
from reproduction.registry import EXPERIMENTS, PAPERS, chosen
from reproduction.rows import row
from reproduction.workspace import Workspace, make
from wager.cli.files import check_writable, write_json
from wager.cli.options import MODEL, Model
from wager.core import files
from wager.core.provenance import provenance

COLOURS = {"holds": "green", "in part": "yellow", "does not hold": "red"}
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
    with_model: Annotated[
        bool, typer.Option("--with-model", help="Also make runs that load a model; best on a GPU.")
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
    jobs: Annotated[int, typer.Option(min=1, help="Runs to make at once, each in a process.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all outcomes to this file.")] = None,
    doc: Annotated[
        Path | None, typer.Option(help="Instead: write the page of all results to this file.", show_default=False)
    ] = None,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands", help="Instead: print the commands behind every result, and what would decide the rest."
        ),
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of kept results, for the list and --doc.")] = RESULTS,
) -> None:
    """Test the tables and figures of the four papers on the models that can be had here."""
    if (doc is not None or commands) and not results.is_dir():
        raise ValueError(f"no folder {results} to read results from; pass --results, or run in a checkout")
    if doc is not None:
        check_writable(doc)
        _write_page(doc, results)
        return
    if commands:
        _commands(results)
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
        keep = keep or Path("build") / page.FOLDER
    told = []
    with _workspace(keep, model=model, data=data, again=again, with_model=with_model) as workspace:
        make([run for experiment in wanted for run in experiment.runs()], workspace, jobs)
        for experiment in wanted:
            content = {**provenance("python -m reproduction"), "model": model, **row(experiment, workspace)}
            _print(experiment, content)
            told.append(content)
            if out is not None:
                _keep(out / f"{experiment.name}.json", content)
    print(
        f"{sum(content['took'] or 0 for content in told):.0f} seconds of a core, runs shared by rows counted for each"
    )
    if json_file is not None:
        write_json(json_file, {**provenance("python -m reproduction"), "experiments": told})


def _keep(path: Path, content: dict[str, Any]) -> None:
    """Write a row; one whose runs cannot be made here leaves a row that could be made elsewhere as it is."""
    if content["missing"] and path.is_file():
        before = result_files.read(path)
        if before.get("parts") and "verdict" in before:
            print(f"{path.name} stays as it was: {'; '.join(content['missing'])}")
            return
    write_json(path, content)


def _write_page(doc: Path, results: Path) -> None:
    told = page.read_all(results)
    pictures = doc.parent / page.PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    for name, made in page.pictures(told).items():
        files.write_text(pictures / name, made)
    files.write_text(doc, page.page(told, results) + page.older_than_code(results))


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


def _print(experiment: Experiment, told: Mapping[str, Any]) -> None:
    console = _console()
    console.rule(Words(f"{PAPERS[experiment.paper]}, {experiment.place}: {experiment.what}"), align="left")
    console.print(Words(experiment.claim))
    _table(console, told["figures"]["columns"], told["figures"]["rows"])
    for part in told["parts"]:
        console.print(
            Words(f"  {part['verdict']}: {part['says']} {part['effect']}", style=COLOURS.get(part["verdict"], ""))
        )
    for says in (*told["flags"], *told["missing"]):
        console.print(Words(f"  ! {says}", style="yellow"))
    console.print(Words(told["headline"]))
    seconds = f" {told['took']:.0f} s" if told["took"] is not None else ""
    console.print(Words(f"The claim: {told['verdict']}.{seconds}", style=COLOURS.get(told["verdict"], "bold")))


def _table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if not columns:
        return
    table = Table(box=box.SIMPLE_HEAD)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=not i)
    for cells in rows:
        table.add_row(*(Words(shown(cell)) for cell in cells))
    console.print(table)


def _list(results: Path) -> None:
    """Every experiment with its claim and what is known of it."""
    console = _console()
    known = page.read_all(results) if results.is_dir() else dict.fromkeys(EXPERIMENTS)
    for paper, title in PAPERS.items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("experiment", "verdict", "claim"):
            table.add_column(column, no_wrap=column != "claim")
        for name, experiment in EXPERIMENTS.items():
            if experiment.paper == paper:
                told = known[name]
                verdict = told["verdict"] if told is not None else "not run"
                table.add_row(name, Words(verdict, style=COLOURS.get(verdict, "dim")), Words(experiment.claim))
        console.print(table)
    print("Run one with: python -m reproduction NAME")


def _commands(results: Path) -> None:
    """What made every result, so that it can be made again, and what would decide rows that are undecided."""
    for path in sorted([*results.glob("*.json"), *(results / page.FOLDER).glob("*.json")]):
        content = result_files.read(path)
        print(f"{path.relative_to(results)}: {content.get('command', 'unknown')}  # {content.get('machine', '')}")
    for name, told in page.read_all(results).items():
        if (told is None or told["verdict"] == UNDECIDED) and EXPERIMENTS[name].decides:
            print(f"{name} is undecided; to decide it: {EXPERIMENTS[name].decides}.")


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
