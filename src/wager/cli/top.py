"""`wager top`: a running server's speculation, from its /metrics alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wager.vllm.watch import ArmView, Rounds, View, metrics_url, scrape, scrape_after, view


def draw(shown: View, url: str, trouble: str = "") -> RenderableType:
    """The view as it stands on the terminal; trouble is said above it."""
    server = url.removesuffix("/metrics")
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    lines.add_row("server", Text(f"{server}, wager {shown.version}, {shown.hook} hook"))
    lines.add_row("policy", Text(f"{shown.policy}, drafters {shown.drafters}"))
    lines.add_row(
        "load",
        f"{shown.running:.0f} running, {shown.waiting:.0f} waiting, "
        f"{_number(shown.tokens_per_second)} tokens/s, KV cache {_percent(shown.kv_cache)}",
    )
    lines.add_row(
        "drafts",
        f"length {_number(shown.length)} at batch {_number(shown.batch)}, "
        f"acceptance {_percent(shown.acceptance)} ({_percent(shown.acceptance_whole)} since start)",
    )
    new = "" if shown.switches_last is None else f" (+{shown.switches_last:.0f})"
    cost = "" if shown.switch_seconds is None else f", switching on costs {shown.switch_seconds * 1e3:.1f} ms"
    lines.add_row("switches", f"{shown.switches:,.0f}{new}{cost}")
    lines.add_row(
        "decisions",
        f"{_number(shown.decision_us, 0)} µs a step ({_number(shown.decision_us_whole, 0)} since start), "
        f"{shown.steps:,.0f} steps, {_percent(shown.mixed_share)} of them mixed",
    )
    played = [arm for arm in shown.arms if arm.whole.rounds]
    parts: list[RenderableType] = [Text(trouble, "bold red")] if trouble else []
    parts += [lines, Text()]
    if played:
        parts.append(Columns([_arms(shown, played), _goodputs(shown, played)], padding=(0, 3)))
    if rest := len(shown.arms) - len(played):
        parts.append(Text(f"{rest} arm{'s' * (rest != 1)} not played yet", "dim"))
    return Group(*parts)


def _arms(shown: View, played: list[ArmView]) -> Table:
    """Rounds of every arm, in the last interval and since the start."""
    last = "last interval" if shown.seconds is None else f"last {shown.seconds:.1f} s"
    table = Table(title=f"{last} (since start)", title_justify="left", title_style="bold")
    table.add_column("arm", style="bold", no_wrap=True)
    for column in ("share", "rounds/s", "rounds", "acceptance", "MAT"):
        table.add_column(column, justify="right", no_wrap=True)
    for arm in played:
        now, whole = arm.last or Rounds(0, None, None, None), arm.whole
        table.add_row(
            arm.arm,
            f"{_percent(now.share)} ({_percent(whole.share)})",
            _number(arm.rate),
            f"({whole.rounds:,.0f})",
            f"{_percent(now.acceptance)} ({_percent(whole.acceptance)})",
            f"{_number(now.mat, 2)} ({_number(whole.mat, 2)})",
        )
    return table


def _goodputs(shown: View, played: list[ArmView]) -> Table:
    """Tokens a second of every arm at every batch; the best of a batch stands out."""
    best = {bucket: max(arm.goodput.get(bucket, 0.0) for arm in played) for bucket in shown.buckets}
    table = Table(title="tokens/s at batch", title_justify="left", title_style="bold")
    table.add_column("arm", style="bold", no_wrap=True)
    for bucket in shown.buckets:
        table.add_column(bucket, justify="right", no_wrap=True)
    for arm in played:
        cells = [
            Text(_number(value), "green" if value == best[bucket] else "")
            for bucket, value in ((bucket, arm.goodput.get(bucket)) for bucket in shown.buckets)
        ]
        table.add_row(arm.arm, *cells)
    return table


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def watch(url: str, interval: float, console: Console, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a server until interrupted; one that goes away is waited for."""
    last = scrape(url)
    shown = view(None, last)
    with Live(draw(shown, url), console=console, auto_refresh=False) as live:
        while True:
            sleep(interval)
            try:
                now = scrape_after(url, last)
            except ValueError as error:
                age = time.monotonic() - last.at
                trouble = f"{error}; last seen {age:.0f} s ago, trying again every {interval:g} s"
                live.update(draw(shown, url, trouble), refresh=True)
                continue
            shown, last = view(last, now), now
            live.update(draw(shown, url), refresh=True)


def command(
    url: Annotated[str, typer.Argument(help="A server's address, such as host:8000.", show_default=False)],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one interval's figures and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON instead of tables.")] = False,
) -> None:
    """Watch a running server: load, draft length, acceptance, and every arm's rounds and goodput."""
    address, console = metrics_url(url), Console()
    if as_json and not once:
        raise ValueError("--json prints one snapshot; give --once too")
    if not once and not console.is_terminal:
        raise ValueError("wager top draws on a terminal; give --once for one snapshot")
    try:
        if not once:
            watch(address, interval, console)
        before = scrape(address)
        time.sleep(interval)
        shown = view(before, scrape_after(address, before))
    except KeyboardInterrupt:
        return
    if as_json:
        print(json.dumps(asdict(shown), indent=2, ensure_ascii=False))
    else:
        console.print(draw(shown, address))
