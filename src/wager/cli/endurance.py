"""`wager lab endurance`: a thousand requests on a server with too little memory, then a crash and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from wager.bench import workloads
from wager.cli.engines import JsonFile
from wager.cli.files import check_writable, write_json
from wager.cli.options import MODEL, Model

CHARACTERS = 600  # of a prompt at most


def endurance(
    context: typer.Context,
    model: Model = MODEL,
    drafter: Annotated[str, typer.Option(help="As for wager serve.")] = "suffix,prompt-lookup",
    policy: Annotated[str, typer.Option(help="As for wager serve.", show_default="the hook's own")] = "",
    requests: Annotated[int, typer.Option(min=5, help="Requests in all.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 16,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts a task.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer; each asks for 2 or more.")] = 48,
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of 128 tokens in the cache: few make vLLM preempt.")] = 12,
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    json_file: JsonFile = None,
) -> None:
    """Put many requests of random lengths, some of them aborted, on a server whose cache is too small for them.

    Every text is compared with that of a server without speculation. Then the server is killed at work and started
    again with the policy state it had saved. Exit code 1 if a request failed, a text differed, one got stuck, memory
    grew by more than a tenth, or the state was lost. Further arguments go to both servers, after --.
    """
    from wager.bench.endurance import survive
    from wager.models import resolve

    if json_file is not None:
        check_writable(json_file)
    found = workloads.prompts(data, count=200)
    asked = [p.messages for p in found if len(p.text) <= CHARACTERS][: 8 * prompts]
    if not asked:
        raise ValueError(f"no prompt of at most {CHARACTERS} characters in the data folder")
    shared = [str(resolve(model)), "--dtype", "float32", "--served-model-name", model]
    shared += ["--max-num-seqs", str(concurrency), *context.args]
    ours = ["--drafter", drafter, "--num-gpu-blocks-override", str(blocks), *(["--policy", policy] if policy else [])]
    columns = ("requests", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=requests)
        outcome = survive(
            model,
            asked,
            shared=shared,
            ours=ours,
            requests=requests,
            concurrency=concurrency,
            tokens=max_tokens,
            on_done=lambda: progress.advance(bar),
        )
    if json_file is not None:
        write_json(json_file, outcome.json())
    endured = outcome.endured
    print(
        f"{endured.finished} finished, {endured.aborted} aborted, {len(endured.errors)} errors, {outcome.stuck} stuck, "
        f"{outcome.preemptions} preemptions, {len(endured.differing)} texts differ, memory {outcome.memory_growth:.2f} "
        f"times, {endured.seconds:.0f} s; after the kill {outcome.after_restart.finished} of {concurrency} answered"
    )
    if outcome.failed:
        raise typer.Exit(1)
