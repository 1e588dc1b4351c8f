"""`wager bench versus`: policies against each other, and against vLLM without wager, on real servers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
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
    from wager.bench.versus import Contest, Point, Turn

POLICIES = ("auto", "ucbspec", "dsd", "linucb", "ada-bingreedy", "nightjar")
SHORT = tuple(task for task in TASKS if task != "rag")  # whose prompts fit a small model's context
CHARACTERS = 4  # of a prompt to a token, about


def versus(
    context: typer.Context,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="Policy to compare; repeat it.", show_default=True)
    ] = None,
    drafter: Annotated[
        str, typer.Option(help="Drafter of vLLM's that all of them use: ngram, eagle=MODEL, …")
    ] = "ngram",
    max_length: Annotated[int, typer.Option(min=1, help="Longest draft; every fixed length is compared too.")] = 5,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, one load each.")] = "1,2,4,8,16",
    requests: Annotated[str, typer.Option(help="Requests of each of those loads.")] = "6,8,12,20,32",
    trace: Annotated[
        Path | None, typer.Option(help="Also a recorded load: an Azure trace.", show_default="none")
    ] = None,
    speed: Annotated[float, typer.Option(help="How much faster than recorded it is played.")] = 1.0,
    start: Annotated[float, typer.Option(help="Second of the trace to start at.")] = 0.0,
    duration: Annotated[float, typer.Option(help="Seconds of the trace, before --speed.")] = 60.0,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions that count, after one to warm up.")] = 2,
    trace_repeats: Annotated[int, typer.Option(min=1, help="Repetitions of the trace.")] = 1,
    tasks: Annotated[str, typer.Option(help="Tasks the prompts are from.")] = ",".join(SHORT),
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 48,
    longest_prompt: Annotated[int, typer.Option(min=16, help="Longer prompts, in tokens or so, are left out.")] = 512,
    model: Model = MODEL,
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder for the servers' logs.", show_default="none kept")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare no speculation, every fixed length, vLLM's own table and policies: the same requests, turn by turn.

    Starts three servers of its own and lets one work at a time. The first repetition warms the policies up; vLLM's
    table is then made from what its fixed lengths measured. Further arguments go to every server, after --, as in
    -- --max-num-seqs 16.
    """
    from wager.bench.servers import Server
    from wager.bench.versus import PLAIN, TABLE, Contest, closed, table_from
    from wager.models import resolve
    from wager.vllm.launch import located
    from wager.vllm.settings import SCHEDULER, Settings, parse_drafter

    levels, counts = parse_ints(concurrency, "--concurrency"), parse_ints(requests, "--requests")
    if len(levels) != len(counts):
        raise ValueError(f"--requests names one number for each --concurrency, not {requests!r} for {concurrency!r}")
    if json_file is not None:
        check_writable(json_file)
    settings = Settings((drafter,), max_length)
    if settings.hook != SCHEDULER:
        raise ValueError(
            f"vLLM has no table of lengths for {drafter}; name a drafter that it runs, or see bench drafters"
        )
    name = parse_drafter(drafter)[0]
    fixed = {f"fixed {n}": f"fixed:drafter={name},length={n}" for n in range(1, max_length + 1)}
    played = {"off": "off", **fixed, **{spec: spec for spec in policy or POLICIES}}
    for spec in played.values():
        settings.build_policy(spec)
    asked = _prompts(data, tasks.split(","), max(counts), longest_prompt)
    points = [closed(n, count, asked, max_tokens) for n, count in zip(levels, counts, strict=True)]
    recorded = _recorded(trace, speed, start, duration, asked, max_tokens)
    shared = ["--dtype", "float32", "--no-enable-prefix-caching", *context.args]
    folder = str(resolve(model))
    settings = located(settings, model, folder)
    turns: list[Turn] = []
    warm: list[Turn] = []

    with ExitStack() as stack:
        place = logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place.mkdir(parents=True, exist_ok=True)
        plain_arguments = [folder, *shared]
        control = place / "policy"
        control.write_text("off")
        plain = stack.enter_context(Server.vllm(*plain_arguments, log=place / "plain.log")).wait()
        plain.sleep()
        ours = ["--drafter", drafter, "--max-length", str(max_length), "--control", str(control), "--policy", "off"]
        adaptive = stack.enter_context(Server.wager(folder, *ours, *shared, log=place / "wager.log")).wait()
        adaptive.sleep()
        contest = Contest(
            {PLAIN: plain, **dict.fromkeys(played, adaptive)}, {m: (control, p) for m, p in played.items()}
        )
        _go(contest, list(played), points, [0], warm, "warming up")
        table = table_from(warm, {"off": 0, **{f"fixed {n}": n for n in range(1, max_length + 1)}}, 4096)
        speculative = _table_config(settings, table)
        tabled = stack.enter_context(
            Server.vllm(*plain_arguments, "--speculative-config", speculative, log=place / "table.log")
        ).wait()
        tabled.sleep()
        contest.servers[TABLE] = tabled
        methods = [PLAIN, TABLE, *played]

        def save() -> None:
            if json_file is not None:
                write_json(json_file, _result(turns, warm, table, recorded, context.args))

        for repeat in range(1, repeats + 1):
            _go(contest, methods, points, [repeat], turns, f"repetition {repeat}")
            save()
        if recorded is not None:
            for repeat in range(1, trace_repeats + 1):
                _go(contest, methods, [recorded], [repeat], turns, f"trace {repeat}")
                save()
    show(turns)


def drafters(
    context: typer.Context,
    drafter: Annotated[str, typer.Option(help="Drafters to compare alone and together.")] = "suffix,prompt-lookup",
    policy: Annotated[str, typer.Option("--policy", "-p", help="Who decides in each engine.")] = "auto",
    max_length: Annotated[int, typer.Option(min=1, help="Longest draft.")] = 5,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, one load each.")] = "1,4",
    requests: Annotated[str, typer.Option(help="Requests of each of those loads.")] = "12,24",
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions that count, after one to warm up.")] = 3,
    tasks: Annotated[str, typer.Option(help="Tasks the prompts are from.")] = "debug_bench,mt_bench,summarization",
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 64,
    longest_prompt: Annotated[int, typer.Option(min=16, help="Longer prompts, in tokens or so, are left out.")] = 700,
    model: Model = MODEL,
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder for the servers' logs.", show_default="none kept")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare each drafter alone with all of them in one engine, on a mixed workload: the same requests, turn by turn.

    Every repetition has requests of its own.

    Further arguments go to every server, after --.
    """
    from wager.bench.servers import Server
    from wager.bench.versus import PLAIN, Contest, closed
    from wager.models import resolve

    levels, counts = parse_ints(concurrency, "--concurrency"), parse_ints(requests, "--requests")
    if len(levels) != len(counts):
        raise ValueError(f"--requests names one number for each --concurrency, not {requests!r} for {concurrency!r}")
    if json_file is not None:
        check_writable(json_file)
    # Other prompts in every repetition: drafters remember what was written, and nobody asks everything twice.
    asked = _prompts(data, tasks.split(","), (repeats + 1) * sum(counts), longest_prompt)
    fresh = iter(asked)
    points = [
        [closed(n, count, list(islice(fresh, count)), max_tokens) for n, count in zip(levels, counts, strict=True)]
        for _ in range(repeats + 1)
    ]
    shared = ["--dtype", "float32", "--no-enable-prefix-caching", *context.args]
    folder = str(resolve(model))
    turns: list[Turn] = []
    with ExitStack() as stack:
        place = logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place.mkdir(parents=True, exist_ok=True)
        contest = Contest({}, {})
        for number, name in enumerate([PLAIN, *drafter.split(","), "together"]):
            log = place / f"{number}.log"
            if name == PLAIN:
                server = Server.vllm(folder, *shared, log=log)
            else:
                ours = ["--drafter", drafter if name == "together" else name, "--max-length", str(max_length)]
                server = Server.wager(folder, *ours, "--policy", policy, *shared, log=log)
            contest.servers[name.partition("=")[0]] = stack.enter_context(server).wait()
            server.sleep()
        warm: list[Turn] = []
        _go(contest, list(contest.servers), points[0], [0], warm, "warming up")
        for repeat in range(1, repeats + 1):
            _go(contest, list(contest.servers), points[repeat], [repeat], turns, f"repetition {repeat}")
            if json_file is not None:
                write_json(json_file, _result(turns, warm, [], None, context.args))
    show(turns)


def _go(
    contest: Contest,
    methods: Sequence[str],
    points: Sequence[Point],
    repeats: Sequence[int],
    into: list[Turn],
    what: str,
) -> None:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=len(methods) * len(points) * len(repeats))
        for turn in contest.play(methods, points, repeats):
            into.append(turn)
            progress.advance(bar)


def _prompts(data: Path | None, tasks: Sequence[str], count: int, longest: int) -> list[list[dict[str, str]]]:
    """Prompts of all tasks in turn, short enough for the model."""
    each = -(-count // len(tasks))
    found = workloads.prompts(data, tasks=tasks, count=400)
    by_task = {task: [p for p in found if p.task == task and len(p.text) <= CHARACTERS * longest] for task in tasks}
    few = [task for task, own in by_task.items() if len(own) < each]
    if few:
        raise ValueError(f"only {len(by_task[few[0]])} prompts of {few[0]} are that short; raise --longest-prompt")
    return [by_task[task][i].messages for i in range(each) for task in tasks][:count]


def _recorded(
    trace: Path | None, speed: float, start: float, duration: float, prompts: Sequence[Any], max_tokens: int
) -> Point | None:
    from wager.bench.versus import Point

    if trace is None:
        return None
    plan = traced(data_file(trace, "traces"), speed=speed, start=start, seconds=duration)
    return Point("trace", plan, prompts, max_tokens)


def _table_config(settings: Any, table: list[list[int]]) -> str:
    import json

    from wager.vllm.launch import speculative_config

    return json.dumps({**speculative_config(settings), "num_speculative_tokens_per_batch_size": table})


def _result(
    turns: Sequence[Turn],
    warm: Sequence[Turn],
    table: list[list[int]],
    recorded: Point | None,
    arguments: Sequence[str],
) -> dict[str, Any]:
    from wager.bench.versus import compared

    return {
        "compared": compared(turns),
        "vllm_table": table,
        "server_arguments": list(arguments),
        "trace_requests": recorded.plan.requests if recorded is not None else None,
        "turns": [turn.json() for turn in turns],
        "warm_up": [turn.json() for turn in warm],
    }


def show(turns: Sequence[Turn]) -> None:
    """Throughput beside no speculation, methods down, loads across."""
    from wager.bench.versus import compared

    rows = compared(turns)
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
