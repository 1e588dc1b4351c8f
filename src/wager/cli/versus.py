"""`wager lab versus` and `drafters`: methods compared on real servers, vLLM without wager among them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from wager.bench import workloads
from wager.bench.arrivals import traced
from wager.bench.workloads import TASKS
from wager.cli.engines import JsonFile
from wager.cli.files import check_writable, data_file, write_json
from wager.cli.options import MODEL, Model
from wager.cli.parameters import parse_ints

if TYPE_CHECKING:
    from wager.bench.servers import Server
    from wager.bench.versus import Comparison, Measurement, Point
    from wager.vllm.settings import Settings

POLICIES = ("auto", "ucbspec", "dsd", "linucb", "ada-bingreedy", "nightjar")
SHORT = ",".join(task for task in TASKS if task != "rag")  # whose prompts fit a small model's context
CHARACTERS = 4  # of a prompt to a token, about

MaxLength = Annotated[int, typer.Option(min=1, help="Longest draft.")]
Concurrency = Annotated[str, typer.Option(help="Requests in flight, one load each.")]
Requests = Annotated[str, typer.Option(help="Requests of each of those loads.")]
Repeats = Annotated[int, typer.Option(min=1, help="Repetitions that count, after one to warm up.")]
Tasks = Annotated[str, typer.Option(help="Tasks the prompts are from.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")]
LongestPrompt = Annotated[int, typer.Option(min=16, help="Longer prompts, in tokens or so, are left out.")]
Data = Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")]
Logs = Annotated[Path | None, typer.Option(help="Folder for the servers' logs.", show_default="none kept")]


def versus(
    context: typer.Context,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="Policy to compare; repeat it.", show_default=True)
    ] = None,
    drafter: Annotated[
        str, typer.Option(help="Drafter of vLLM's that all of them use: ngram, eagle=MODEL, …")
    ] = "ngram",
    max_length: MaxLength = 5,
    concurrency: Concurrency = "1,2,4,8,16",
    requests: Requests = "6,8,12,20,32",
    trace: Annotated[
        Path | None, typer.Option(help="Also a recorded load: an Azure trace.", show_default="none")
    ] = None,
    speed: Annotated[float, typer.Option(help="How much faster than recorded it is played.")] = 1.0,
    start: Annotated[float, typer.Option(help="Second of the trace to start at.")] = 0.0,
    duration: Annotated[float, typer.Option(help="Seconds of the trace, before --speed.")] = 60.0,
    repeats: Repeats = 2,
    trace_repeats: Annotated[int, typer.Option(min=1, help="Repetitions of the trace.")] = 1,
    tasks: Tasks = SHORT,
    max_tokens: MaxTokens = 48,
    longest_prompt: LongestPrompt = 512,
    model: Model = MODEL,
    data: Data = None,
    logs: Logs = None,
    json_file: JsonFile = None,
) -> None:
    """Compare no speculation, every fixed length, vLLM's own table and policies: the same requests, turn by turn.

    Starts three servers of its own and lets one work at a time. The first repetition warms the policies up; vLLM's
    table is then made from what its fixed lengths measured. Further arguments go to every server, after --, as in
    -- --max-num-seqs 16.
    """
    from wager.bench.versus import Point, closed

    levels = _levels(concurrency, requests, json_file)
    settings, played = _methods(drafter, max_length, policy or POLICIES)
    asked = _prompts(data, tasks.split(","), max(count for _, count in levels), longest_prompt)
    rounds = [("repetition", [closed(n, count, asked, max_tokens) for n, count in levels], repeats)]
    if trace is not None:
        plan = traced(data_file(trace, "traces"), speed=speed, start=start, seconds=duration)
        rounds.append(("trace", [Point("trace", plan, asked, max_tokens)], trace_repeats))
    with _folder(logs) as folder:
        _versus(folder, model, settings, played, rounds, context.args, json_file)


def _versus(
    folder: Path,
    model: str,
    settings: Settings,
    played: dict[str, str],
    rounds: list[tuple[str, list[Point], int]],
    arguments: list[str],
    json_file: Path | None,
) -> None:
    from wager.bench.servers import Server
    from wager.bench.versus import PLAIN, TABLE, Comparison, table_from
    from wager.models import resolve
    from wager.vllm.launch import located, speculative_config

    where = str(resolve(model))
    shared = [where, "--dtype", "float32", "--no-enable-prefix-caching", *arguments]
    control = folder / "policy"
    control.write_text("off")
    with ExitStack() as stack:
        plain = _started(stack, Server.vllm(*shared, log=folder / "plain.log"))
        ours = ["--drafter", settings.drafters[0], "--max-length", str(settings.max_length)]
        ours += ["--control", str(control), "--policy", "off"]
        adaptive = _started(stack, Server.wager(*shared, *ours, log=folder / "wager.log"))
        servers = {PLAIN: plain, **dict.fromkeys(played, adaptive)}
        comparison = Comparison(servers, {method: (control, spec) for method, spec in played.items()})
        warm, measured = _measure(comparison, list(played), rounds[0][1], 0, "warming up"), list[Any]()
        lengths = {f"fixed {n}": n for n in range(1, settings.max_length + 1)}
        table = table_from(warm, {"off": 0, **lengths}, 4096)
        config = {**speculative_config(located(settings, model, where)), "num_speculative_tokens_per_batch_size": table}
        tabled = Server.vllm(*shared, "--speculative-config", json.dumps(config), log=folder / "table.log")
        comparison.servers[TABLE] = _started(stack, tabled)
        for what, points, repeats in rounds:
            for repeat in range(1, repeats + 1):
                measured += _measure(comparison, [PLAIN, TABLE, *played], points, repeat, f"{what} {repeat}")
                requests = rounds[1][1][0].plan.requests if len(rounds) > 1 else None
                _write(json_file, measured, warm, arguments, vllm_table=table, trace_requests=requests)
    show(measured)


def drafters(
    context: typer.Context,
    drafter: Annotated[str, typer.Option(help="Drafters to compare alone and together.")] = "suffix,prompt-lookup",
    policy: Annotated[str, typer.Option("--policy", "-p", help="Who decides in each engine.")] = "auto",
    max_length: MaxLength = 5,
    concurrency: Concurrency = "1,4",
    requests: Requests = "12,24",
    repeats: Repeats = 3,
    tasks: Tasks = "debug_bench,mt_bench,summarization",
    max_tokens: MaxTokens = 64,
    longest_prompt: LongestPrompt = 700,
    model: Model = MODEL,
    data: Data = None,
    logs: Logs = None,
    json_file: JsonFile = None,
) -> None:
    """Compare each drafter alone with all of them in one engine, on a mixed workload: the same requests, turn by turn.

    Every repetition has requests of its own.

    Further arguments go to every server, after --.
    """
    from wager.bench.servers import Server
    from wager.bench.versus import PLAIN, Comparison, closed
    from wager.models import resolve

    levels = _levels(concurrency, requests, json_file)
    # Other prompts in every repetition: drafters remember what was written, and nobody sends everything twice.
    total = (repeats + 1) * sum(count for _, count in levels)
    fresh = iter(_prompts(data, tasks.split(","), total, longest_prompt))
    points = [[closed(n, k, list(islice(fresh, k)), max_tokens) for n, k in levels] for _ in range(repeats + 1)]
    shared = [str(resolve(model)), "--dtype", "float32", "--no-enable-prefix-caching", *context.args]
    ours = ["--max-length", str(max_length), "--policy", policy, "--drafter"]
    comparison, measured = Comparison({}, {}), list[Any]()
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(logs))
        servers = {PLAIN: Server.vllm(*shared, log=folder / "0.log")}
        for number, name in enumerate([*drafter.split(","), "together"], 1):
            chosen = drafter if name == "together" else name
            servers[name.partition("=")[0]] = Server.wager(*shared, *ours, chosen, log=folder / f"{number}.log")
        for name, server in servers.items():
            comparison.servers[name] = _started(stack, server)
        warm = _measure(comparison, list(servers), points[0], 0, "warming up")
        for repeat in range(1, repeats + 1):
            measured += _measure(comparison, list(servers), points[repeat], repeat, f"repetition {repeat}")
            _write(json_file, measured, warm, context.args, vllm_table=[], trace_requests=None)
    show(measured)


def _levels(concurrency: str, requests: str, json_file: Path | None) -> list[tuple[int, int]]:
    """The loads: requests in flight, and in all."""
    levels, counts = parse_ints(concurrency, "--concurrency"), parse_ints(requests, "--requests")
    if len(levels) != len(counts):
        raise ValueError(f"--requests names one number for each --concurrency, not {requests!r} for {concurrency!r}")
    if json_file is not None:
        check_writable(json_file)
    return list(zip(levels, counts, strict=True))


def _methods(drafter: str, max_length: int, policies: Sequence[str]) -> tuple[Settings, dict[str, str]]:
    """The settings of the server that plays all of them, and every method's policy."""
    from wager.vllm.settings import SCHEDULER, Settings, parse_drafter

    settings = Settings((drafter,), max_length)
    if settings.hook != SCHEDULER:
        raise ValueError(
            f"vLLM has no table of lengths for {drafter}; name a drafter that it runs, or see wager lab drafters"
        )
    name = parse_drafter(drafter)[0]
    fixed = {f"fixed {n}": f"fixed:drafter={name},length={n}" for n in range(1, max_length + 1)}
    played = {"off": "off", **fixed, **{spec: spec for spec in policies}}
    for spec in played.values():
        settings.build_policy(spec)
    return settings, played


@contextmanager
def _folder(logs: Path | None) -> Iterator[Path]:
    """Where logs are written: the folder named, else one for as long as this runs."""
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        yield logs
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _started(stack: ExitStack, server: Server) -> Server:
    """Started, ready and suspended."""
    stack.enter_context(server).wait()
    server.suspend()
    return server


def _measure(
    comparison: Comparison, methods: Sequence[str], points: Sequence[Point], repeat: int, what: str
) -> list[Measurement]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        measured = comparison.run(methods, points, repeat)
        return list(progress.track(measured, total=len(methods) * len(points)))


def _prompts(data: Path | None, tasks: Sequence[str], count: int, longest: int) -> list[list[dict[str, str]]]:
    """Prompts of all tasks in turn, short enough for the model."""
    each = -(-count // len(tasks))
    found = workloads.prompts(data, tasks=tasks, count=400)
    by_task = {task: [p for p in found if p.task == task and len(p.text) <= CHARACTERS * longest] for task in tasks}
    few = [task for task, own in by_task.items() if len(own) < each]
    if few:
        raise ValueError(f"only {len(by_task[few[0]])} prompts of {few[0]} are that short; raise --longest-prompt")
    return [by_task[task][i].messages for i in range(each) for task in tasks][:count]


def _write(
    json_file: Path | None,
    measured: Sequence[Measurement],
    warm: Sequence[Measurement],
    arguments: Sequence[str],
    **more: Any,
) -> None:
    from wager.bench.versus import compared

    if json_file is None:
        return
    each = {"turns": [one.json() for one in measured], "warm_up": [one.json() for one in warm]}
    write_json(json_file, {"compared": compared(measured), **more, "server_arguments": list(arguments), **each})


def show(measured: Sequence[Measurement]) -> None:
    """Throughput beside no speculation, methods down, loads across."""
    from wager.bench.versus import compared

    rows = compared(measured)
    points = list(dict.fromkeys(row["point"] for row in rows))
    table = Table(title="throughput beside no speculation, median of repetitions", title_justify="left")
    table.add_column("method")
    for point in points:
        table.add_column(f"{point} in flight" if point.isdecimal() else point, justify="right")
    table.add_column("texts that differ", justify="right")
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {row["point"]: row for row in rows if row["method"] == method}
        cells = [f"{own[p]['throughput_ratio']:.2f}" if p in own and own[p]["throughput_ratio"] else "" for p in points]
        differ = sum(row["texts_that_differ"] for row in own.values())
        table.add_row(method, *cells, f"{differ} of {sum(row['texts'] for row in own.values())}")
    Console().print(table)
