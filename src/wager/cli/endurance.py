"""`wager bench endurance`: a thousand requests on a server with too little memory, then a crash and a restart."""

from __future__ import annotations

import json
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any

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
    from wager.bench.endurance import endure, references
    from wager.bench.servers import Server
    from wager.models import resolve

    if json_file is not None:
        check_writable(json_file)
    found = workloads.prompts(data, count=200)
    asked = [p.messages for p in found if len(p.text) <= CHARACTERS][: 8 * prompts]
    if not asked:
        raise ValueError(f"no prompt of at most {CHARACTERS} characters in the data folder")
    folder = str(resolve(model))
    shared = ["--dtype", "float32", "--served-model-name", model, "--max-num-seqs", str(concurrency), *context.args]
    console = Console(stderr=True)
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        with Server.vllm(folder, *shared, log=Path(place, "plain.log")) as plain:
            expected = references(plain.wait(), model, asked, max_tokens)
        state = Path(place, "state.json")
        ours = ["--drafter", drafter, "--state", str(state), "--num-gpu-blocks-override", str(blocks)]
        ours += ["--policy", policy] if policy else []

        def start() -> Server:
            made = Server.wager(folder, *ours, *shared, log=Path(place, "wager.log"))
            return stack.enter_context(made).wait()

        server = start()
        with Progress("requests", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console) as progress:
            bar = progress.add_task("", total=requests)
            endured = endure(
                server,
                model,
                asked,
                expected,
                requests=requests,
                concurrency=concurrency,
                tokens=max_tokens,
                on_done=lambda: progress.advance(bar),
            )
        stuck = _stuck(server)
        preemptions = int(_metric(server, "vllm:num_preemptions_total"))
        # Killed in the middle of its work, and started again with what it had saved.
        busy = threading.Thread(
            target=endure,
            args=(server, model, asked, expected),
            kwargs={"requests": 20 * concurrency, "concurrency": concurrency, "tokens": max_tokens, "aborts": 0.0},
        )
        busy.start()
        sleep(12)  # one saving at least
        running = _metric(server, "vllm:num_requests_running")
        server.kill()
        busy.join()
        saved = json.loads(state.read_text())
        server = start()
        again = endure(server, model, asked, expected, requests=concurrency, concurrency=4, tokens=8, aborts=0.0)
        server.stop()
        kept = json.loads(state.read_text())
    memory = list(endured.memory.values())
    grown = memory[-1] / memory[0] if len(memory) > 1 else 1.0
    result: dict[str, Any] = {
        **endured.json(),
        "stuck": stuck,
        "preemptions": preemptions,
        "memory_growth": grown,
        "after_restart": again.json(),
        "running_when_killed": int(running),
        "state_bytes_saved_and_after_restart": [len(json.dumps(saved)), len(json.dumps(kept))],
        "state_kept": _experience(kept) >= _experience(saved) > 0,
    }
    if json_file is not None:
        write_json(json_file, result)
    print(
        f"{endured.finished} finished, {endured.aborted} aborted, {len(endured.errors)} errors, {stuck} stuck, "
        f"{preemptions} preemptions, {len(endured.differing)} texts differ, memory {grown:.2f} times, "
        f"{endured.seconds:.0f} s; after the kill {again.finished} of {concurrency} answered"
    )
    if endured.errors or endured.differing or stuck or grown > 1.1 or again.errors or not result["state_kept"]:
        raise typer.Exit(1)


def _experience(state: Any) -> float:
    """How much a saved policy has seen: the largest count in it."""
    if isinstance(state, dict):
        return max((_experience(value) for key, value in state.items() if key not in ("rng", "parameters")), default=0)
    if isinstance(state, list):
        return max(map(_experience, state), default=0)
    return float(state) if isinstance(state, int | float) and not isinstance(state, bool) else 0.0


def _metric(server: Any, name: str) -> float:
    lines = [line for line in server.metrics().splitlines() if line.startswith(name + "{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _stuck(server: Any) -> int:
    """Requests that still run or wait half a minute after the last client went."""
    ends = monotonic() + 30
    while True:
        left = int(_metric(server, "vllm:num_requests_running") + _metric(server, "vllm:num_requests_waiting"))
        if not left or monotonic() > ends:
            return left
        sleep(0.5)
