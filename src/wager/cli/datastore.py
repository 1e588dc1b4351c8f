"""`wager datastore`: corpora for the retrieval drafter."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.cli.files import check_new
from wager.cli.options import MODEL
from wager.cli.parameters import argument, option
from wager.cli.screen import bar, table
from wager.drafters import corpus
from wager.drafters.datastore import Datastore, fingerprint
from wager.report.scales import plural

app = typer.Typer(help="Make and inspect datastores for the retrieval drafter.", no_args_is_help=True)


@app.command("build")
def build(
    files: Annotated[list[Path], argument("Text (.txt, .md: a document each), JSON lines (.jsonl).", "FILES")],
    out: Annotated[Path, option("The datastore to write.", "--out", show_default=False)],
    model: Annotated[str, option("Model whose tokenizer to use; drafts for it and its family.")] = MODEL,
    field: Annotated[str | None, option("Field of JSON-lines records to take.", shown="all strings in it")] = None,
) -> None:
    """Build a datastore from text files; the retrieval drafter proposes continuations found in it."""
    check_new(out, "datastore")
    corpus.check(files)  # before the tokenizer is loaded
    from wager.models import load_tokenizer  # imports transformers

    tokenizer = load_tokenizer(model)
    how = {"add_special_tokens": False, "verbose": False}  # nor a warning of long documents
    with bar("reading", 100) as update:
        documents = corpus.documents(files, field, lambda share: update(completed=int(100 * share)))
        whose: dict[str, Any] = {"vocabulary": len(tokenizer), "model": model, "fingerprint": fingerprint(tokenizer)}
        sorting = lambda share: update(description="sorting", completed=int(100 * share))  # noqa: E731
        header = corpus.build(documents, lambda text: tokenizer(text, **how)["input_ids"], out, report=sorting, **whose)
    held = f"{plural(header.tokens, 'token')} of {plural(header.documents, 'document')}"
    print(f"{out}: {held}, {header.file_bytes / 1e6:,.1f} MB")


@app.command("show")
def show(
    path: Annotated[Path, argument("A datastore.")],
    as_json: Annotated[bool, option("Print JSON instead of a table.", "--json")] = False,
) -> None:
    """Show what a datastore contains and which tokenizer it was built with."""
    store = Datastore.open(path)
    about = {**asdict(store.header), "bytes": store.header.file_bytes}
    store.close()
    if as_json:
        print(json.dumps({"path": str(path), **about}, indent=2))
        return
    rows = {
        "tokens": f"{about['tokens']:,}",
        "documents": f"{about['documents']:,}",
        "model": about["model"] or "not said",
        "vocabulary": f"{about['vocabulary']:,} (fingerprint {about['fingerprint'] or 'not said'})",
        "size": f"{about['bytes'] / 1e6:,.1f} MB",
    }
    Console().print(table(str(path), ("", ""), rows.items(), left=2, show_header=False))
