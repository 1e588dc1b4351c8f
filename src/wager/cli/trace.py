"""`wager lab trace`: what a trace holds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from wager.core import trace as traces
from wager.core.round import Round


def command(
    path: Annotated[Path, typer.Argument(help="A trace: rounds as JSON lines.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a recorded trace holds: requests, rounds, tokens per round, time, and the share of each arm."""
    meta = traces.read_meta(path)
    pulls, accepted, drafted, whole = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    seconds = 0.0
    for entry in traces.read(path):
        if not isinstance(entry, Round):
            whole["requests"] += 1
            continue
        whole.update(rounds=1, tokens=entry.emitted)
        seconds += entry.seconds
        pulls[str(entry.arm)] += 1
        accepted[str(entry.arm)] += entry.accepted
        drafted[str(entry.arm)] += entry.drafted
    requests, rounds, tokens = (whole[key] for key in ("requests", "rounds", "tokens"))
    if as_json:
        arms = {arm: {"rounds": n, "drafted": drafted[arm], "accepted": accepted[arm]} for arm, n in pulls.items()}
        told = {"meta": meta, "requests": requests, "rounds": rounds, "tokens": tokens, "seconds": seconds}
        print(json.dumps({**told, "arms": arms}, indent=2))
        return
    title = f"{requests} requests, {rounds:,} rounds, {tokens:,} tokens, {seconds:,.1f} s"
    table = Table(title=title, title_justify="left")
    for column in ("arm", "rounds", "share", "drafted", "accepted"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, n in pulls.most_common():
        table.add_row(arm, f"{n:,}", f"{n / rounds:.1%}", f"{drafted[arm]:,}", f"{accepted[arm]:,}")
    Console().print(table)
