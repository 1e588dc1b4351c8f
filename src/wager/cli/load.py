"""`wager bench serve`: a load on a server, measured from the client's side."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wager.bench import workloads
from wager.bench.arrivals import Closed, Conversation, Plan, Poisson, conversations, traced
from wager.bench.workloads import TASKS
from wager.cli.engines import JsonFile
from wager.cli.files import check_writable, data_file, write_json

if TYPE_CHECKING:
    from wager.bench.load import Load, Summary

REQUESTS, TOKENS = 100, 128
CONCURRENCY = 8  # where the load does not say, and while warming up
LATE = 0.1  # seconds a request may start after its schedule before it is reported

_LOAD, _ASKED = "Load: one of --trace, --rate, --concurrency", "Requests"


def _load(help: str, default: Any = False) -> Any:
    return typer.Option(help=help, rich_help_panel=_LOAD, show_default=default)


def _asked(help: str, *names: str, default: Any = True) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_ASKED, show_default=default)


Url = Annotated[str, typer.Option(help="An OpenAI-compatible server, as in http://127.0.0.1:8000.")]
TraceFile = Annotated[
    Path | None,
    _load(
        "Arrivals and answer lengths from a CSV with TIMESTAMP, ContextTokens, GeneratedTokens, here or in traces/ of "
        "the data folder."
    ),
]
Rate = Annotated[float | None, _load("Poisson arrivals, so many requests a second.")]
Concurrency = Annotated[
    int | None, _load("So many requests in flight at all times.", f"{CONCURRENCY}, if no load is named")
]
Requests = Annotated[int | None, _load("Requests at most.", f"{REQUESTS} where no --duration is given; all of a trace")]
Duration = Annotated[float | None, _load("Seconds in which requests are started; with --trace, the trace's own.")]
Start = Annotated[float | None, _load("Second of the trace to start at.", "0")]
Speed = Annotated[float | None, _load("How much faster than recorded the trace is played.", "1")]
Prompts = Annotated[
    str | None,
    _asked(
        f"A .jsonl file of records with prompt, turns or messages, or tasks separated by commas: {', '.join(TASKS)}.",
        default="all tasks of the data folder; without one, the prompts that come with wager",
    ),
]
Data = Annotated[Path | None, _asked("Folder with prompts/ and traces/.", default="WAGER_DATA")]
ServedModel = Annotated[
    str | None, _asked("Name the server knows it by.", "--model", "-m", default="the first it lists")
]
MaxTokens = Annotated[int | None, _asked("Most tokens of an answer.", default=f"{TOKENS}; with --trace, what it says")]
IgnoreEos = Annotated[
    bool | None,
    _asked(
        "Answers go on to their last token, or end where the model ends them.",
        "--ignore-eos/--heed-eos",
        default="ignored with --trace, else heeded",
    ),
]
Temperature = Annotated[float, _asked("0 is greedy; above 0 samples.", "--temperature", "-t")]
Warmup = Annotated[int, _asked("Requests to send first, outside the measurement.")]
Timeout = Annotated[float, _asked("Seconds after which a request is given up.")]
Seed = Annotated[int, _asked("For arrivals, the order of prompts, and sampling.")]


def serve(
    url: Url,
    trace: TraceFile = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    requests: Requests = None,
    duration: Duration = None,
    start: Start = None,
    speed: Speed = None,
    prompts: Prompts = None,
    data: Data = None,
    model: ServedModel = None,
    max_tokens: MaxTokens = None,
    ignore_eos: IgnoreEos = None,
    temperature: Temperature = 0.0,
    warmup: Warmup = 0,
    timeout: Timeout = 600.0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Put a load on any OpenAI-compatible server and measure its throughput and latencies, with vLLM's benchmark.

    Ends with exit code 1 if no request succeeded; Ctrl-C reports what was measured so far.
    """
    kinds = {"trace": trace and str(trace), "start": start, "speed": speed, "rate": rate, "concurrency": concurrency}
    extents = {"requests": requests, "duration": duration}
    given = {name: value for name, value in {**kinds, **extents}.items() if value is not None}
    settings: dict[str, Any] = {
        "max_tokens": TOKENS if max_tokens is None and trace is None else max_tokens,
        "ignore_eos": trace is not None if ignore_eos is None else ignore_eos,
        "temperature": temperature,
        "timeout": timeout,
        "seed": seed,
    }
    if seed < 0 or warmup < 0:
        raise ValueError(f"--seed and --warmup are whole numbers from 0, not {min(seed, warmup)}")
    plan = _plan(given, data)
    if json_file is not None:
        check_writable(json_file)
    asked = _prompts(prompts, data)
    random.Random(seed).shuffle(asked)
    from wager.bench.load import Load, served_model

    extra = {"seed": seed} if temperature else {}
    load = Load(url, plan, asked, extra=extra, progress=sys.stderr.isatty(), **settings)
    load.model = served_model(url, model)
    interrupted = _run(load, warmup)
    chosen = {**settings, "prompts": prompts or "all", "warmup": warmup}
    how = {"url": url, "model": load.model, "load": given, "settings": chosen, "interrupted": interrupted}
    _report(load, how, json_file)


def _run(load: Load, warmup: int) -> bool:
    """Whether it was interrupted."""
    try:
        if warmup:
            places = load.plan.concurrency if isinstance(load.plan, Closed) else CONCURRENCY
            # From the end of the order, so that what is measured is not yet in the server's prefix cache.
            replace(load, plan=Closed(min(warmup, places), warmup), prompts=load.prompts[::-1], _answers=[]).run()
        load.run()
    except KeyboardInterrupt:
        return True
    return False


def _report(load: Load, how: dict[str, Any], json_file: Path | None) -> None:
    """Print and write what was measured."""
    from wager.bench.load import summarise

    served, interrupted = load.served, how["interrupted"]
    summary = summarise(served, load.speculation)
    if summary.errors < summary.requests:
        _print(summary, f"{how['url']}, {how['model']}: " + ", ".join(f"{k} {v}" for k, v in how["load"].items()))
        if json_file is not None:
            write_json(json_file, {**how, **summary.json(), "served": [request.json() for request in served]})
    elif summary.requests:
        print(f"wager: none of {summary.requests:,} requests succeeded: {summary.first_error}", file=sys.stderr)
    if interrupted:
        print(f"wager: interrupted after {summary.requests:,} requests; those in flight are left out", file=sys.stderr)
    if interrupted or summary.errors == summary.requests:
        raise typer.Exit(130 if interrupted else 1)


def _plan(given: Mapping[str, Any], data: Path | None) -> Plan:
    """The load that the options describe."""
    kinds = [name for name in ("trace", "rate", "concurrency") if name in given]
    if len(kinds) > 1:
        named = " and ".join(f"--{name}" for name in kinds)
        raise ValueError(f"a load is one of --trace, --rate and --concurrency, not {named}")
    if "trace" not in given and (alone := [name for name in ("start", "speed") if name in given]):
        raise ValueError(f"--{alone[0]} is a trace's; it goes with --trace")
    requests, seconds = given.get("requests"), given.get("duration")
    if kinds == ["trace"]:
        path = _found(Path(given["trace"]), "traces", data)
        speed, start = given.get("speed", 1.0), given.get("start", 0.0)
        return traced(path, speed=speed, start=start, seconds=seconds, requests=requests)
    requests = REQUESTS if requests is None and seconds is None else requests
    if kinds == ["rate"]:
        return Poisson.of(given["rate"], requests=requests, seconds=seconds)
    return Closed(given.get("concurrency", CONCURRENCY), requests, seconds)


def _prompts(asked: str | None, data: Path | None) -> list[Conversation]:
    """All prompts of the file or the tasks, from the data folder or, without one, those that come with wager."""
    if asked is not None and (asked.endswith(".jsonl") or Path(asked).is_file()):
        return conversations(_found(Path(asked), "prompts", data))
    tasks = TASKS if asked is None else [task.strip() for task in asked.split(",")]
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"--prompts is a .jsonl file or tasks among {', '.join(TASKS)}, not {unknown[0]!r}")
    if workloads.has_data(data):
        found = workloads.prompts(data, tasks=tasks, count=sys.maxsize)
    else:
        found = workloads.own_prompts(list(dict.fromkeys(workloads.KIND[task] for task in tasks)))
    return [prompt.messages for prompt in found]


def _found(path: Path, kind: str, data: Path | None) -> Path:
    """The file itself, or the one of that name in the data folder."""
    return data / kind / path if data is not None and not path.exists() else data_file(path, kind)


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
    if drafts := summary.speculation:
        positions = ", ".join(f"{rate:.0%}" for rate in drafts["per_position_acceptance_rates"])
        print(f"drafts: {drafts['acceptance_rate']:.0f} % of {drafts['draft_tokens']:,} tokens accepted, "
              f"{drafts['acceptance_length']:.2f} tokens a round; by position {positions}")  # fmt: skip
    if summary.first_error is not None:
        print(f"first error: {summary.first_error}")
    if summary.late_seconds > LATE:
        print(f"this client could not keep up: it started a request {summary.late_seconds:.2f} s late")
