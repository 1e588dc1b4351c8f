"""`wager lab trace`: what a trace holds."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

from rich.console import Console

from wager.cli.parameters import argument, option
from wager.cli.screen import table
from wager.core import trace as traces
from wager.core.round import Round


def command(
    path: Annotated[Path, argument("A trace: rounds as JSON lines.")],
    as_json: Annotated[bool, option("Print JSON instead of a table.", "--json")] = False,
) -> None:
    """Summarise a recorded trace: requests, rounds, tokens per round, time, and the share of each arm."""
    meta, entries = traces.read_meta(path), list(traces.read(path))
    rounds = [entry for entry in entries if isinstance(entry, Round)]
    pulls, accepted, drafted = Counter(r.arm.label for r in rounds), Counter[str](), Counter[str]()
    for r in rounds:
        accepted[r.arm.label] += r.accepted
        drafted[r.arm.label] += r.drafted
    requests, tokens = len(entries) - len(rounds), sum(r.emitted for r in rounds)
    seconds = sum(r.seconds for r in rounds)
    if as_json:
        arms = {arm: {"rounds": n, "drafted": drafted[arm], "accepted": accepted[arm]} for arm, n in pulls.items()}
        told = {"meta": meta, "requests": requests, "rounds": len(rounds), "tokens": tokens, "seconds": seconds}
        print(json.dumps({**told, "arms": arms}, indent=2))
        return
    title = f"{requests} requests, {len(rounds):,} rounds, {tokens:,} tokens, {seconds:,.1f} s"
    rows = [
        (arm, f"{n:,}", f"{n / len(rounds):.1%}", f"{drafted[arm]:,}", f"{accepted[arm]:,}")
        for arm, n in pulls.most_common()
    ]
    Console().print(table(title, ("arm", "rounds", "share", "drafted", "accepted"), rows))
