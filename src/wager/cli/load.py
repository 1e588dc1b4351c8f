"""`wager bench serve`: a load on a server, measured from the client's side."""

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.console import Console

from wager.bench import workloads
from wager.bench.arrivals import Conversation, Plan, closed, poisson, traced
from wager.bench.load import Load, load_client, served_model, summarise
from wager.bench.workloads import TASKS
from wager.cli.files import Output, data_file
from wager.cli.parameters import opt, option, options
from wager.cli.screen import bar, table
from wager.vllm.compat import check_version

REQUESTS, TOKENS = 100, 128
CONCURRENCY = 8  # where the load does not say, and while warming up
PROMPTS = f"""A .jsonl file of records with prompt, turns or messages, or tasks separated by commas:
{", ".join(TASKS)}."""
LATE = 0.1  # seconds a request may start after its schedule before it is reported


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests are started."""

    PANEL: ClassVar = "Load: one of --trace, --rate, --concurrency"

    trace: Path | None = opt(None, "A CSV with TIMESTAMP, ContextTokens, GeneratedTokens, here or in the data folder.")
    rate: float | None = opt(None, "Poisson arrivals, so many requests a second.")
    concurrency: int | None = opt(None, "Requests in flight.", shown=f"{CONCURRENCY}, if no load is named")
    requests: int | None = opt(None, "Requests at most.", shown=f"{REQUESTS} without --duration; all of a trace")
    duration: float | None = opt(None, "Seconds in which requests are started; with --trace, the trace's own.")
    start: float | None = opt(None, "Second of the trace to start at.", shown="0")
    speed: float | None = opt(None, "How much faster than recorded the trace is played.", shown="1")

    @property
    def given(self) -> dict[str, Any]:
        names = ("trace", "start", "speed", "rate", "concurrency", "requests", "duration")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return found | ({"trace": str(self.trace)} if self.trace else {})

    def plan(self, data: Path | None) -> Plan:
        kinds = [name for name in ("trace", "rate", "concurrency") if name in self.given]
        if len(kinds) > 1:
            named = " and ".join(f"--{name}" for name in kinds)
            raise ValueError(f"a load is one of --trace, --rate and --concurrency, not {named}")
        if self.trace is None and (alone := [name for name in ("start", "speed") if name in self.given]):
            raise ValueError(f"--{alone[0]} is a trace's; it goes with --trace")
        seconds, requests = self.duration, self.requests
        if self.trace is not None:
            speed, start = 1.0 if self.speed is None else self.speed, self.start or 0.0
            path = data_file(self.trace, "traces", data)
            return traced(path, speed=speed, start=start, seconds=seconds, requests=requests)
        requests = REQUESTS if requests is None and seconds is None else requests
        if self.rate is not None:
            return poisson(self.rate, requests=requests, seconds=seconds)
        return closed(CONCURRENCY if self.concurrency is None else self.concurrency, requests, seconds)


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked of the server."""

    PANEL: ClassVar = "Requests"

    prompts: str | None = opt(None, PROMPTS, shown="all of the data folder, else those that come with wager")
    data: Path | None = opt(None, "Folder with prompts/ and traces/.", shown="WAGER_DATA")
    model: str | None = opt(None, "Name the server knows it by.", "--model", "-m", shown="the first it lists")
    max_tokens: int | None = opt(None, "Most tokens per answer.", shown=f"{TOKENS}; with --trace, what it says")
    ignore_eos: bool | None = opt(None, "Go on to --max-tokens.", "--ignore-eos/--heed-eos", shown="with --trace only")
    temperature: float = opt(0.0, "0 is greedy; above 0 samples.", "--temperature", "-t")
    warmup: int = opt(0, "Requests to send first, outside the measurement.")
    timeout: float = opt(600.0, "Seconds after which a request is given up.")
    seed: int = opt(0, "For arrivals, the order of prompts, and sampling.")

    def __post_init__(self) -> None:
        if self.seed < 0 or self.warmup < 0:
            raise ValueError(f"--seed and --warmup are whole numbers from 0, not {min(self.seed, self.warmup)}")

    def settings(self, *, is_trace: bool) -> dict[str, Any]:
        """How requests are answered."""
        return {
            "max_tokens": TOKENS if self.max_tokens is None and not is_trace else self.max_tokens,
            "ignore_eos": is_trace if self.ignore_eos is None else self.ignore_eos,
            **{"temperature": self.temperature, "timeout": self.timeout, "seed": self.seed},
        }

    def read(self) -> list[Conversation]:
        """Prompts of the file or the tasks in the seed's order; without a data folder, those that come with wager."""
        asked = self.prompts
        tasks = TASKS if asked is None else [task.strip() for task in asked.split(",")]
        if asked is not None and (asked.endswith(".jsonl") or Path(asked).is_file()):
            found = workloads.read_file(data_file(Path(asked), "prompts", self.data))
        elif unknown := [task for task in tasks if task not in TASKS]:
            raise ValueError(f"--prompts is a .jsonl file or tasks among {', '.join(TASKS)}, not {unknown[0]!r}")
        else:
            found = workloads.of_tasks(tasks, self.data)
        random.Random(self.seed).shuffle(found)
        return [prompt.messages for prompt in found]


def _say(what: str) -> None:
    """A line on standard error."""
    print(f"{what} …", file=sys.stderr, flush=True)


def _run(load: Load) -> None:
    """Run it with a bar: vLLM's on a terminal, elsewhere a line every few seconds."""
    if load.progress:
        load.run()
        return
    with bar("requests answered", load.plan.requests) as update:
        load.on_answer = lambda: update(advance=1)
        load.run()


@options
def serve(
    url: Annotated[str, option("An OpenAI-compatible server, as in http://127.0.0.1:8000.")],
    arrivals: Arrivals,
    requests: Requests,
    output: Output,
) -> None:
    """Put a load on any OpenAI-compatible server and measure its throughput and latencies, with vLLM's benchmark.

    Ends with exit code 1 if no request succeeded; Ctrl-C reports what was measured so far.
    """
    plan, settings = arrivals.plan(requests.data), requests.settings(is_trace=arrivals.trace is not None)
    asked = requests.read()
    extra = {"seed": requests.seed} if requests.temperature else {}
    load = Load(url, plan, asked, extra=extra, progress=sys.stderr.isatty(), **settings)
    load.model = served_model(url, requests.model)
    check_version()  # before anything is said to be under way
    interrupted, warmup = False, requests.warmup
    try:
        _say("loading vLLM's benchmark client")
        load_client()
        if warmup:
            _say(f"warming up with {warmup} requests")
            places = min(warmup, plan.concurrency or CONCURRENCY)
            # From the end of the order, so that what is measured is not yet in the server's prefix cache.
            replace(load, plan=closed(places, warmup), prompts=asked[::-1], _answers=[]).run()
        _say(f"measuring {url}" + (f" with {plan.requests:,} requests" if plan.requests else ""))
        _run(load)
    except KeyboardInterrupt:
        interrupted = True
    chosen = {**settings, "prompts": requests.prompts or "all", "warmup": warmup}
    how = {"url": url, "model": load.model, "load": arrivals.given, "settings": chosen, "interrupted": interrupted}
    _report(load, how, output)


def _report(load: Load, how: dict[str, Any], output: Output) -> None:
    """Print and write what was measured."""
    served, interrupted = load.served, how["interrupted"]
    summary = summarise(served, load.speculation)
    sent, none = summary["requests"], summary["errors"] == summary["requests"]
    if not none:
        given = ", ".join(f"{key} {value}" for key, value in how["load"].items()) or f"concurrency {CONCURRENCY}"
        _print(summary, f"{how['url']}, {how['model']}: {given}")
        output.write({**how, **summary, "served": [request.json() for request in served]})
    elif sent:
        print(f"wager: none of {sent:,} requests succeeded: {summary['first_error']}", file=sys.stderr)
    if interrupted:
        print(f"wager: interrupted after {sent:,} requests; those in flight are left out", file=sys.stderr)
    if interrupted or none:
        raise typer.Exit(130 if interrupted else 1)


def _print(summary: Mapping[str, Any], title: str) -> None:
    shown = table(f"{title}; milliseconds", ("", "mean", "p50", "p99"))
    names = {"latency": "latency", "ttft": "time to first token", "tpot": "time per output token"}
    for key, name in names.items():
        spread = summary[f"{key}_seconds"]
        shown.add_row(name, *(("-",) * 3 if spread is None else (f"{s * 1e3:,.1f}" for s in spread.values())))
    rates = "{output_tokens_per_second:,.1f} tokens/s, {requests_per_second:,.2f} requests/s"
    counts = "{requests:,} requests, {errors:,} errors, {seconds:,.1f} s: {output_tokens:,} output tokens"
    print(f"{counts}, {rates}".format_map(summary))
    Console().print(shown)
    if drafts := summary["speculation"]:
        positions = ", ".join(f"{rate:.0%}" for rate in drafts["per_position_acceptance_rates"])
        print(f"drafts: {drafts['acceptance_rate']:.0f} % of {drafts['draft_tokens']:,} tokens accepted, "
              f"{drafts['acceptance_length']:.2f} tokens a round; by position {positions}")  # fmt: skip
    if summary["first_error"] is not None:
        print(f"first error: {summary['first_error']}")
    if summary["late_seconds"] > LATE:
        print(f"this client could not keep up: it started a request {summary['late_seconds']:.2f} s late")
