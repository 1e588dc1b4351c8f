"""`wager datastore`: corpora for the retrieval drafter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wager.cli.files import check_writable
from wager.drafters import corpus
from wager.drafters.datastore import Datastore, fingerprint

app = typer.Typer(help="Make and inspect datastores for the retrieval drafter.", no_args_is_help=True)


@app.command("build")
def build(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Text (.txt, .md: one document each) and JSON lines (.jsonl: one document a record).",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The datastore to write.", show_default=False)],
    model: Annotated[str, typer.Option(help="Model whose tokenizer to use; drafts for it and its family.")] = (
        "smollm2-135m"
    ),
    field: Annotated[
        str | None,
        typer.Option(help="Take only this field of each JSON-lines record.", show_default="all strings in it"),
    ] = None,
) -> None:
    """Write a datastore from text: what stands in it, the retrieval drafter can propose."""
    check_writable(out)
    # a wrong file name is told before the tokenizer is loaded
    corpus.check(files)
    from wager.models import load_tokenizer  # imports transformers

    tokenizer = load_tokenizer(model)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        reading, sorting = bar.add_task("reading", total=1.0), bar.add_task("sorting", total=1.0)
        header = corpus.build(
            corpus.documents(files, field, lambda share: bar.update(reading, completed=share)),
            lambda text: _tokens(tokenizer, text),
            out,
            vocabulary=len(tokenizer),
            model=model,
            fingerprint=fingerprint(tokenizer),
            report=lambda share: bar.update(sorting, completed=share),
        )
    print(f"{out}: {header.tokens:,} tokens of {header.documents:,} documents, {header.file_bytes / 1e6:,.1f} MB")


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A datastore.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a datastore holds and which tokenizer it was made with."""
    store = Datastore.open(path)
    about = {**asdict(store.header), "bytes": store.header.file_bytes}
    store.close()
    if as_json:
        print(json.dumps({"path": str(path), **about}, indent=2))
        return
    table = Table(title=str(path), title_justify="left", show_header=False)
    for name, said in _told(about):
        table.add_row(name, said)
    Console().print(table)


def _told(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{about['tokens']:,}"
    yield "documents", f"{about['documents']:,}"
    yield "model", about["model"] or "not said"
    yield "vocabulary", f"{about['vocabulary']:,} (fingerprint {about['fingerprint'] or 'not said'})"
    yield "size", f"{about['bytes'] / 1e6:,.1f} MB"


def _tokens(tokenizer: Any, text: str) -> list[int]:
    # verbose=False: no warning that a document is longer than the model's window
    tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return tokens
