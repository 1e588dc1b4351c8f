"""`wager bench serve`: a load on a server, measured from the client's side."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from wager.bench import workloads
from wager.bench.arrivals import Closed, Conversation, Plan, conversations, poisson, traced
from wager.bench.workloads import TASKS
from wager.cli.engines import JsonFile
from wager.cli.files import check_writable, data_file, write_json

if TYPE_CHECKING:
    from wager.bench.load import Served, Summary

REQUESTS, TOKENS = 100, 128
WARM_PLACES = 8  # requests of a warm-up in flight, where the load itself does not say
LATE = 0.1  # seconds a request may start after its schedule before it is said

_LOAD, _ASKED = "Load: one of --trace, --rate, --concurrency", "Requests"


def serve(
    url: Annotated[str, typer.Option(help="An OpenAI-compatible server, as in http://127.0.0.1:8000.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Arrivals and answer lengths from a CSV with TIMESTAMP, ContextTokens, GeneratedTokens, here or in "
            "traces/ of the data folder.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Poisson arrivals, so many requests a second.", rich_help_panel=_LOAD)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="So many requests in flight at all times.", rich_help_panel=_LOAD)
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests at most.",
            rich_help_panel=_LOAD,
            show_default=f"{REQUESTS} where no --duration is given; all of a trace",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Seconds in which requests are started; with --trace, the trace's own.", rich_help_panel=_LOAD
        ),
    ] = None,
    start: Annotated[
        float | None,
        typer.Option(help="Second of the trace to start at.", rich_help_panel=_LOAD, show_default="0"),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            help="How much faster than recorded the trace is played.", rich_help_panel=_LOAD, show_default="1"
        ),
    ] = None,
    asked: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            help="A .jsonl file of records with prompt, turns or messages, or tasks separated by commas: "
            f"{', '.join(TASKS)}.",
            rich_help_panel=_ASKED,
            show_default="all tasks",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with prompts/ and traces/.", rich_help_panel=_ASKED, show_default="WAGER_DATA"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Name the server knows it by.",
            rich_help_panel=_ASKED,
            show_default="the first it lists",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of an answer.",
            rich_help_panel=_ASKED,
            show_default=f"{TOKENS}; with --trace, what it says",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--heed-eos",
            help="Answers go on to their last token, or end where the model ends them.",
            rich_help_panel=_ASKED,
            show_default="ignored with --trace, else heeded",
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 is greedy; above 0 samples.", rich_help_panel=_ASKED)
    ] = 0.0,
    warmup: Annotated[
        int, typer.Option(help="Requests to send first, outside the measurement.", rich_help_panel=_ASKED)
    ] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a request is given up.", rich_help_panel=_ASKED)
    ] = 600.0,
    seed: Annotated[
        int, typer.Option(help="For arrivals, the order of prompts, and sampling.", rich_help_panel=_ASKED)
    ] = 0,
    json_file: JsonFile = None,
) -> None:
    """Put a load on any OpenAI-compatible server and measure its throughput and latencies.

    Ends with exit code 1 if no request succeeded; Ctrl-C reports what was measured so far.
    """
    options = {"rate": rate, "concurrency": concurrency, "requests": requests, "duration": duration}
    more = {"trace": None if trace is None else str(trace), "start": start, "speed": speed}
    given = {name: value for name, value in {**more, **options}.items() if value is not None}
    if seed < 0 or warmup < 0:
        raise ValueError(f"--seed and --warmup are whole numbers from 0, not {min(seed, warmup)}")
    plan = _plan(given, seed, data)
    if json_file is not None:
        check_writable(json_file)
    prompts = _prompts(asked, data)
    random.Random(seed).shuffle(prompts)
    from wager.bench import load

    settings: dict[str, Any] = {
        "max_tokens": TOKENS if max_tokens is None and trace is None else max_tokens,
        "ignore_eos": trace is not None if ignore_eos is None else ignore_eos,
        "temperature": temperature,
        "timeout": timeout,
    }
    served: list[Served] = []
    interrupted = False
    try:
        model = load.served_model(url, model)
        asking: dict[str, Any] = {**settings, "model": model, "extra": {"seed": seed} if temperature else None}
        if warmup:
            places = min(warmup, plan.concurrency if isinstance(plan, Closed) else WARM_PLACES)
            with _Watch("warming up", warmup, []) as watch:
                # From the end of the order, so that what is measured is not yet in the server's prefix cache.
                load.run(url, Closed(places, warmup), prompts[::-1], **asking, **watch.calls)
        with _Watch("serving", plan.requests, served) as watch:
            load.run(url, plan, prompts, **asking, **watch.calls)
    except KeyboardInterrupt:
        interrupted = True
    summary = load.summarise(served)
    if summary.errors < summary.requests:
        _print(summary, f"{url}, {model}: " + ", ".join(f"{name} {value}" for name, value in given.items()))
        if json_file is not None:
            chosen = {**settings, "prompts": asked or "all tasks", "warmup": warmup, "seed": seed}
            how = {"url": url, "model": model, "load": given, "settings": chosen, "interrupted": interrupted}
            rows = [request.json() for request in sorted(served, key=lambda request: request.number)]
            write_json(json_file, {**how, **summary.json(), "served": rows})
    elif summary.requests:
        print(f"wager: none of {summary.requests:,} requests succeeded: {summary.first_error}", file=sys.stderr)
    if interrupted:
        print(f"wager: interrupted after {summary.requests:,} requests; those in flight are left out", file=sys.stderr)
    if interrupted or summary.errors == summary.requests:
        raise typer.Exit(130 if interrupted else 1)


def _plan(given: Mapping[str, Any], seed: int, data: Path | None) -> Plan:
    """The load that the options describe."""
    kinds = [name for name in ("trace", "rate", "concurrency") if name in given]
    if len(kinds) != 1:
        named = " and ".join(f"--{name}" for name in kinds) or "none of them"
        raise ValueError(f"a load is exactly one of --trace, --rate and --concurrency, not {named}")
    if "trace" not in given and (alone := [name for name in ("start", "speed") if name in given]):
        raise ValueError(f"--{alone[0]} is a trace's; it goes with --trace, not with --{kinds[0]}")
    requests, seconds = given.get("requests"), given.get("duration")
    if kinds == ["trace"]:
        path = _found(Path(given["trace"]), "traces", data)
        speed, start = given.get("speed", 1.0), given.get("start", 0.0)
        return traced(path, speed=speed, start=start, seconds=seconds, requests=requests)
    requests = REQUESTS if requests is None and seconds is None else requests
    if kinds == ["rate"]:
        return poisson(given["rate"], requests=requests, seconds=seconds, seed=seed)
    return Closed(given["concurrency"], requests, seconds)


def _prompts(asked: str | None, data: Path | None) -> list[Conversation]:
    """All prompts of the file or the tasks."""
    if asked is not None and (asked.endswith(".jsonl") or Path(asked).is_file()):
        return conversations(_found(Path(asked), "prompts", data))
    tasks = TASKS if asked is None else [task.strip() for task in asked.split(",")]
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"--prompts is a .jsonl file or tasks among {', '.join(TASKS)}, not {unknown[0]!r}")
    return [prompt.messages for prompt in workloads.prompts(data, tasks=tasks, count=sys.maxsize)]


def _found(path: Path, kind: str, data: Path | None) -> Path:
    """The file itself, or the one of that name in the data folder."""
    return data / kind / path if data is not None and not path.exists() else data_file(path, kind)


class _Watch:
    """A bar that shows requests done, in flight and failed, where there is a terminal to show it on."""

    def __init__(self, what: str, total: int | None, served: list[Served]) -> None:
        self.served = served  # filled as requests end
        self._flying = self._errors = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        # Seldom: drawing takes time from the client that measures.
        self._bar = Progress(
            *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
        )
        self._what, self._task = what, self._bar.add_task(what, total=total)

    def __enter__(self) -> _Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def calls(self) -> dict[str, Any]:
        """As keywords of a run."""
        return {"on_start": self._started, "on_done": self._done}

    def _started(self) -> None:
        self._flying += 1
        self._show(0)

    def _done(self, request: Served) -> None:
        self.served.append(request)
        self._flying -= 1
        self._errors += request.error is not None
        self._show(1)

    def _show(self, advance: int) -> None:
        errors = f", {self._errors} errors" if self._errors else ""
        self._bar.update(self._task, advance=advance, description=f"{self._what}: {self._flying} in flight{errors}")


def _print(summary: Summary, title: str) -> None:
    table = Table(title=escape(f"{title}; milliseconds"), title_justify="left")
    table.add_column("")
    for column in ("mean", "p50", "p99"):
        table.add_column(column, justify="right")
    rows = {
        "latency": summary.latency_seconds,
        "time to first token": summary.ttft_seconds,
        "time per output token": summary.tpot_seconds,
    }
    for name, spread in rows.items():
        cells = ("-",) * 3 if spread is None else (f"{s * 1e3:,.1f}" for s in (spread.mean, spread.p50, spread.p99))
        table.add_row(name, *cells)
    print(f"{summary.requests:,} requests, {summary.errors:,} errors, {summary.seconds:,.1f} s: "
          f"{summary.output_tokens:,} output tokens, {summary.output_tokens_per_second:,.1f} tokens/s, "
          f"{summary.requests_per_second:,.2f} requests/s")  # fmt: skip
    Console().print(table)
    if summary.first_error is not None:
        print(f"first error: {summary.first_error}")
    if summary.late_seconds > LATE:
        print(f"this client could not keep up: it started a request {summary.late_seconds:.2f} s late")
