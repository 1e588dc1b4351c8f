"""The commands. A module is imported when its command is called: help, completion and the version need none of them."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import wager

WHERE: dict[str, tuple[str, dict[str, Any]]] = {}  # command -> MODULE:NAME, and how it is registered


class _Commands(TyperGroup):
    """Knows the names and summaries of all commands, and makes the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, _loaded(name) if name in WHERE else command, rest


def _loaded(name: str) -> Any:
    """The command, its module imported."""
    where, settings = WHERE[name]
    module, _, what = where.partition(":")
    found = getattr(import_module(module), what)
    alone = typer.Typer(rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, **settings)(found)
    return typer.main.get_group(alone).commands[name]


def _later(name: str, where: str, summary: str, **settings: Any) -> None:
    """Register a command, or a group of them, by the first line of its help; tests compare it with the module's own."""
    WHERE[name] = where, settings
    app.command(name, help=summary)(_empty)


def _empty() -> None:
    pass


app = typer.Typer(
    name="wager",
    cls=_Commands,
    help="Adaptive speculative decoding: faster generation, the same text, nothing to tune.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_later("generate", "wager.cli.generate:command", "Generate a text, faster, and not a token changed.")
_later("chat", "wager.cli.chat:command", "Talk to a model; what one answer taught makes the next faster.")
_later(
    "serve",
    "wager.cli.serve:command",
    "Serve a model with the OpenAI API: stock vLLM, with speculation that adapts.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
_later(
    "top",
    "wager.cli.top:command",
    "Watch a running server: load, draft length, acceptance, and every arm's rounds and goodput.",
)
_later(
    "simulate",
    "wager.cli.simulate:command",
    "Play policies in a simulated environment and compare their regret; no model needed.",
)
_later(
    "record",
    "wager.cli.record:command",
    "Write texts with a model and record what each drafter would have had accepted at every position.",
)
_later(
    "replay",
    "wager.cli.replay:command",
    "Replay recorded texts under policies, every fixed arm and the clairvoyant; no model needed.",
)
_later("bench", "wager.cli.bench:app", "Measure what wager costs and what it brings.")
_later("tune", "wager.cli.tune:command", "Find out in two minutes whether your model should speculate, and with what.")
_later("report", "wager.cli.report:command", "Make one self-contained page of charts from runs, traces and results.")
_later("datastore", "wager.cli.datastore:app", "Make and inspect datastores for the retrieval drafter.")
_later(
    "train",
    "wager.cli.train:app",
    "Make drafters for a target: let it answer prompts, train heads and small models on the answers, judge them.",
)


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
    from wager.policies import POLICIES

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
        from rich.console import Console
        from rich.table import Table

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
    from rich.console import Console
    from rich.table import Table

    from wager.core import trace as traces
    from wager.core.round import Round

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
