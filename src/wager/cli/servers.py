"""Real servers compared and put under load: `wager lab versus`, `wager lab drafters` and `wager lab endurance`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.bench import workloads
from wager.bench.arrivals import closed, traced
from wager.bench.endurance import Requests, failed, survive
from wager.bench.versus import PLAIN, TABLE, Measurement, Point, Servers, compared, table_from
from wager.bench.workloads import TASKS
from wager.cli.files import Output, data_file
from wager.cli.options import MODEL, Data, Model
from wager.cli.parameters import opt, option, options, parse_ints
from wager.cli.screen import bar, table, tracked
from wager.models import resolve
from wager.policies.base import require
from wager.vllm.launch import located, speculative_config
from wager.vllm.settings import SCHEDULER, Settings, parse_drafter

POLICIES = ("auto", "ucbspec", "dsd", "linucb", "ada-bingreedy", "nightjar")
CHARACTERS = 4  # of a prompt to a token, about
Rounds = Sequence[tuple[str, Sequence[Point], int]]  # what each is called, its loads, its number
SHORT = 600  # characters of a prompt of the endurance test at most


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads that servers are compared under, and the model they serve; the defaults are those of `drafters`."""

    max_length: int = opt(5, "Longest draft.", min=1)
    concurrency: str = opt("1,4", "Requests in flight, one load each.")
    requests: str = opt("12,24", "Requests of each of those loads.")
    repeats: int = opt(3, "Repetitions that count, after one to warm up.", min=1)
    tasks: str = opt("debug_bench,mt_bench,summarization", "Tasks the prompts are from.")
    max_tokens: int = opt(64, "Most tokens per answer.", min=2)
    longest_prompt: int = opt(700, "Longer prompts, in tokens or so, are left out.", min=16)
    model: Model = MODEL
    data: Data = None
    logs: Path | None = opt(None, "Folder for the servers' logs.", shown="none kept")

    @property
    def levels(self) -> list[tuple[int, int]]:
        """The loads: requests in flight, and in all."""
        levels, counts = parse_ints(self.concurrency, "--concurrency"), parse_ints(self.requests, "--requests")
        same = len(levels) == len(counts)
        require(same, f"--requests names one number for each --concurrency, not {self.requests!r}")
        return list(zip(levels, counts, strict=True))

    def prompts(self, count: int) -> list[list[dict[str, str]]]:
        """Prompts of all tasks in turn, short enough for the model."""
        tasks, most = self.tasks.split(","), CHARACTERS * self.longest_prompt
        each = -(-count // len(tasks))
        found = workloads.prompts(self.data, tasks=tasks, count=400)
        by_task = {task: [p for p in found if p.task == task and len(p.text) <= most] for task in tasks}
        for task, own in by_task.items():
            require(len(own) >= each, f"only {len(own)} prompts of {task} are that short; raise --longest-prompt")
        return [by_task[task][i].messages for i in range(each) for task in tasks][:count]


_TASKS = ",".join(task for task in TASKS if task != "rag")  # whose prompts do not fit a small model's context
TO_VERSUS = Loads(5, "1,2,4,8,16", "6,8,12,20,32", repeats=2, tasks=_TASKS, max_tokens=48, longest_prompt=512)


@dataclass(frozen=True, slots=True)
class Recorded:
    trace: Path | None = opt(None, "Also a recorded load: an Azure trace.", shown="none")
    speed: float = opt(1.0, "How much faster than recorded it is played.")
    start: float = opt(0.0, "Second of the trace to start at.")
    duration: float = opt(60.0, "Seconds of the trace, before --speed.")
    trace_repeats: int = opt(1, "Repetitions of the trace.", min=1)


@options
def versus(
    context: typer.Context,
    *,
    policy: Annotated[list[str] | None, option("Policy to compare; repeat it.", "--policy", "-p")] = None,
    drafter: Annotated[str, option("Drafter of vLLM's that all of them use: ngram, eagle=MODEL, …")] = "ngram",
    loads: Loads = TO_VERSUS,
    recorded: Recorded,
    output: Output,
) -> None:
    """Compare no speculation, fixed lengths, vLLM's own table and policies: the same requests, turn by turn.

    Starts three servers of its own and lets one work at a time. The first repetition warms the policies up; vLLM's
    table is then made from what its fixed lengths measured. Further arguments go to every server, after --, as in
    -- --max-num-seqs 16.
    """
    levels = loads.levels
    settings, played = _methods(drafter, loads.max_length, policy or POLICIES)
    asked = loads.prompts(max(count for _, count in levels))
    points = [Point(str(n), closed(n, count), asked, loads.max_tokens) for n, count in levels]
    rounds = [(f"repetition {n}", points, n) for n in range(1, loads.repeats + 1)]
    requests = None
    if recorded.trace is not None:
        path = data_file(recorded.trace, "traces")
        plan = traced(path, speed=recorded.speed, start=recorded.start, seconds=recorded.duration)
        traces, requests = [Point("trace", plan, asked, loads.max_tokens)], plan.requests
        rounds += [(f"trace {n}", traces, n) for n in range(1, recorded.trace_repeats + 1)]
    with Servers(str(resolve(loads.model)), context.args, loads.logs) as servers:
        servers.control.write_text("off")
        servers.start(PLAIN)
        own = ["--drafter", drafter, "--max-length", str(loads.max_length), "--control", str(servers.control)]
        servers.servers |= dict.fromkeys(played, servers.start("wager", *own, "--policy", "off", ours=True))
        servers.policies |= played
        warm = _measure(servers, list(played), points, 0, "warming up")
        lengths = {f"fixed {n}": n for n in range(1, loads.max_length + 1)}
        vllm_table = table_from(warm, {"off": 0, **lengths}, 4096)
        config = speculative_config(located(settings, loads.model, servers.model))
        config["num_speculative_tokens_per_batch_size"] = vllm_table
        servers.start(TABLE, "--speculative-config", json.dumps(config))
        more = {"vllm_table": vllm_table, "trace_requests": requests}
        _repeat(servers, [PLAIN, TABLE, *played], rounds, warm, output, **more)


def _methods(drafter: str, max_length: int, policies: Sequence[str]) -> tuple[Settings, dict[str, str]]:
    """The settings of the server that plays all of them, and every method's policy."""
    settings = Settings((drafter,), max_length)
    require(settings.hook == SCHEDULER, f"vLLM has no table of lengths for {drafter}; see wager lab drafters")
    name = parse_drafter(drafter)[0]
    fixed = {f"fixed {n}": f"fixed:drafter={name},length={n}" for n in range(1, max_length + 1)}
    played = {"off": "off", **fixed, **{spec: spec for spec in policies}}
    for spec in played.values():
        settings.build_policy(spec)
    return settings, played


@options
def drafters(
    context: typer.Context,
    *,
    drafter: Annotated[str, option("Drafters to compare alone and together.")] = "suffix,prompt-lookup",
    policy: Annotated[str, option("The policy of each engine.", "--policy", "-p")] = "auto",
    loads: Loads,
    output: Output,
) -> None:
    """Compare each drafter alone with all of them in one engine, on a mixed workload: the same requests, turn by turn.

    Every repetition has requests of its own.

    Further arguments go to every server, after --.
    """
    levels, turns = loads.levels, range(loads.repeats + 1)
    # Other prompts in every repetition: drafters remember what was written, and nobody sends everything twice.
    fresh = iter(loads.prompts(len(turns) * sum(count for _, count in levels)))
    most = loads.max_tokens
    points = [[Point(str(n), closed(n, k), list(islice(fresh, k)), most) for n, k in levels] for _ in turns]
    with Servers(str(resolve(loads.model)), context.args, loads.logs) as servers:
        servers.start(PLAIN)
        for name in [*drafter.split(","), "together"]:
            own = ["--drafter", drafter if name == "together" else name, "--policy", policy]
            servers.start(name.partition("=")[0], *own, "--max-length", str(loads.max_length), ours=True)
        methods = list(servers.servers)
        warm = _measure(servers, methods, points[0], 0, "warming up")
        rounds = [(f"repetition {n}", points[n], n) for n in turns[1:]]
        _repeat(servers, methods, rounds, warm, output, vllm_table=[], trace_requests=None)


def _measure(
    servers: Servers, methods: Sequence[str], points: Sequence[Point], repeat: int, what: str
) -> list[Measurement]:
    """Every method under every load, with a bar."""
    return list(tracked(what, servers.run(methods, points, repeat), len(methods) * len(points)))


def _repeat(
    servers: Servers, methods: Sequence[str], rounds: Rounds, warm: list[Measurement], output: Output, **more: Any
) -> None:
    """All rounds; the results are written after each, and shown after the last."""
    measured: list[Measurement] = []
    for what, points, number in rounds:
        measured += _measure(servers, methods, points, number, what)
        each = {"turns": [one.json() for one in measured], "warm_up": [one.json() for one in warm]}
        output.write({"compared": compared(measured), **more, "server_arguments": servers.arguments, **each})
    show(compared(measured))


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Throughput relative to no speculation, methods down, loads across."""
    points = list(dict.fromkeys(row["point"] for row in rows))
    named = [f"{point} in flight" if point.isdecimal() else point for point in points]
    title = "throughput relative to no speculation, median of repetitions"
    shown = table(title, ["method", *named, "texts that differ"])
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {row["point"]: row for row in rows if row["method"] == method}
        cells = [f"{own[p]['throughput_ratio']:.2f}" if p in own and own[p]["throughput_ratio"] else "" for p in points]
        differ = sum(row["texts_that_differ"] for row in own.values())
        shown.add_row(method, *cells, f"{differ} of {sum(row['texts'] for row in own.values())}")
    Console().print(shown)


@options
def endurance(
    context: typer.Context,
    *,
    model: Model = MODEL,
    drafter: Annotated[str, option("As for wager serve.")] = "suffix,prompt-lookup",
    policy: Annotated[str, option("As for wager serve.", shown="the hook's own")] = "",
    requests: Annotated[int, option("Requests in all.", min=5)] = 1000,
    concurrency: Annotated[int, option("Requests in flight.", min=1)] = 16,
    prompts: Annotated[int, option("Prompts per task.", min=1)] = 5,
    max_tokens: Annotated[int, option("Most tokens per answer; each asks for 2 or more.", min=2)] = 48,
    blocks: Annotated[int, option("Blocks of 128 tokens in the cache: few make vLLM preempt.", min=2)] = 12,
    data: Data = None,
    output: Output,
) -> None:
    """Put many requests of random lengths, some aborted, on a server whose cache is too small for them.

    Every text is compared with that of a server without speculation. Then the server is killed at work and started
    again with the policy state it had saved. Exit code 1 if a request failed, a text differed, one got stuck, memory
    grew by more than a tenth, or the state was lost. Further arguments go to both servers, after --.
    """
    found = workloads.prompts(data, count=200)
    asked = [p.messages for p in found if len(p.text) <= SHORT][: 8 * prompts]
    require(bool(asked), f"no prompt of at most {SHORT} characters in the data folder")
    shared = [str(resolve(model)), "--dtype", "float32", "--served-model-name", model]
    shared += ["--max-num-seqs", str(concurrency), *context.args]
    ours = ["--drafter", drafter, "--num-gpu-blocks-override", str(blocks), *(["--policy", policy] if policy else [])]
    many = Requests(model, asked, requests, concurrency, max_tokens)
    with bar("requests", requests) as update:
        outcome = survive(many, shared=shared, ours=ours, on_done=lambda: update(advance=1))
    output.write(outcome)
    print("{finished} finished, {aborted} aborted, {errors} errors, {stuck} stuck, {preemptions} preemptions, "
          "{texts_that_differ} texts differ, memory {memory_growth:.2f} times, {seconds:.0f} s; after the kill "
          "{after_restart[finished]} of {concurrency} answered".format(**outcome, concurrency=concurrency))  # fmt: skip
    if failed(outcome):
        raise typer.Exit(1)
