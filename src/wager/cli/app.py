"""The commands, one function each."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import wager
from wager.cli import bench, chat, datastore, generate, record, replay, serve, simulate, top, train
from wager.core import trace as traces
from wager.core.round import Round
from wager.policies import POLICIES

app = typer.Typer(
    name="wager",
    help="Adaptive speculative decoding: faster generation, the same text, nothing to tune.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.command)
app.command("chat")(chat.command)
app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve.command)
app.command("simulate")(simulate.command)
app.command("record")(record.command)
app.command("replay")(replay.command)
app.command("top")(top.command)
app.add_typer(bench.app, name="bench")
app.add_typer(datastore.app, name="datastore")
app.add_typer(train.app, name="train")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"wager {wager.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("policies")
def policies(
    name: Annotated[str | None, typer.Argument(help="Show this one with its parameters.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List every policy with the paper it comes from, or one with its parameters."""
    if name is not None and name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}; choose from {', '.join(POLICIES)}")
    entries = POLICIES if name is None else {name: POLICIES[name]}
    if as_json:
        rows = [
            {
                "policy": key,
                "summary": entry.summary,
                "source": entry.source,
                "parameters": {k: None if v is inspect.Parameter.empty else v for k, v in entry.parameters.items()},
                "rewards": list(entry.rewards),
            }
            for key, entry in entries.items()
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif name is not None:
        entry = entries[name]
        print(f"{name}: {entry.summary}\nfrom {entry.source}")
        for key, default in entry.parameters.items():
            said = (
                "must be given" if default is inspect.Parameter.empty else f"default {default}" if default != "" else ""
            )
            among = f"one of {', '.join(entry.rewards)}" if key == "reward" else ""
            print(f"  {key}: " + ("; ".join(filter(None, (said, among))) or "optional"))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("policy", "from", "what it does"):
            table.add_column(column, no_wrap=column == "policy", style="bold" if column == "policy" else None)
        for key, entry in entries.items():
            table.add_row(key, entry.source, entry.summary)
        Console().print(table)


@app.command("trace")
def trace(
    path: Annotated[Path, typer.Argument(help="A trace: rounds as JSON lines.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a recorded trace holds: requests, rounds, tokens per round, time, and the share of each arm."""
    meta = traces.read_meta(path)
    pulls: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    drafted: Counter[str] = Counter()
    requests = rounds = tokens = 0
    seconds = 0.0
    for entry in traces.read(path):
        if not isinstance(entry, Round):
            requests += 1
            continue
        rounds += 1
        tokens += entry.emitted
        seconds += entry.seconds
        pulls[str(entry.arm)] += 1
        accepted[str(entry.arm)] += entry.accepted
        drafted[str(entry.arm)] += entry.drafted
    if as_json:
        counts = {arm: {"rounds": n, "drafted": drafted[arm], "accepted": accepted[arm]} for arm, n in pulls.items()}
        whole = {"requests": requests, "rounds": rounds, "tokens": tokens, "seconds": seconds}
        print(json.dumps({"meta": meta, **whole, "arms": counts}, indent=2))
        return
    table = Table(
        title=f"{requests} requests, {rounds:,} rounds, {tokens:,} tokens, {seconds:,.1f} s", title_justify="left"
    )
    for column in ("arm", "rounds", "share", "drafted", "accepted"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, n in pulls.most_common():
        table.add_row(arm, f"{n:,}", f"{n / rounds:.1%}", f"{drafted[arm]:,}", f"{accepted[arm]:,}")
    Console().print(table)
