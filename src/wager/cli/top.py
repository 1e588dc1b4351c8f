"""`wager top`: a running server's speculation, from its /metrics alone."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wager.cli.parameters import argument, option
from wager.cli.screen import table
from wager.policies.base import require
from wager.vllm.watch import ArmView, Rounds, Scrape, View, metrics_url, scrape, scrape_after, view

LONGEST = 86_400.0  # seconds between two looks


def draw(shown: View, url: str, trouble: str = "") -> RenderableType:
    """The view as it stands on the terminal; trouble is said above it."""
    new = "" if shown.switches_last is None else f" (+{shown.switches_last:.0f})"
    cost = "" if shown.switch_seconds is None else f", switching on costs {shown.switch_seconds * 1e3:.1f} ms"
    lines = {
        "server": f"{url.removesuffix('/metrics')}, wager {shown.version}, {shown.hook} hook",
        "policy": f"{shown.policy}, drafters {shown.drafters}",
        "load": f"{shown.running:.0f} running, {shown.waiting:.0f} waiting, "
        f"{_number(shown.tokens_per_second)} tokens/s, KV cache {_percent(shown.kv_cache)}",
        "drafts": f"length {_number(shown.length)} at batch {_number(shown.batch)}, "
        f"acceptance {_percent(shown.acceptance)} ({_percent(shown.acceptance_whole)} since start)",
        "switches": f"{shown.switches:,.0f}{new}{cost}",
        "decisions": f"{_number(shown.decision_us, 0)} µs a step ({_number(shown.decision_us_whole, 0)} since start), "
        f"{shown.steps:,.0f} steps, {_percent(shown.mixed_share)} of them with prefill",
    }
    head = Table.grid(padding=(0, 2))
    for name, said in lines.items():
        head.add_row(Text(name, "bold"), Text(said))
    played = [arm for arm in shown.arms if arm.whole.rounds]
    parts: list[RenderableType] = [*([Text(trouble, "bold red")] if trouble else []), head, Text()]
    if played:
        parts.append(Columns([_arms(shown, played), _goodputs(shown, played)], padding=(0, 3)))
    if rest := len(shown.arms) - len(played):
        parts.append(Text(f"{rest} arm{'s' * (rest != 1)} not played yet", "dim"))
    return Group(*parts)


def _arms(shown: View, played: list[ArmView]) -> Table:
    """Rounds of every arm, in the last interval and since the start."""
    last = "last interval" if shown.seconds is None else f"last {shown.seconds:.1f} s"
    rows = []
    for arm in played:
        now, whole = arm.last or Rounds(0, None, None, None), arm.whole
        pairs = (now.share, whole.share), (now.acceptance, whole.acceptance)
        share, acceptance = (f"{_percent(last)} ({_percent(ever)})" for last, ever in pairs)
        mat = f"{_number(now.mat, 2)} ({_number(whole.mat, 2)})"
        rows.append((Text(arm.arm, "bold"), share, _number(arm.rate), f"({whole.rounds:,.0f})", acceptance, mat))
    columns = ("arm", "share", "rounds/s", "rounds", "acceptance", "MAT")
    return table(f"{last} (since start)", columns, rows, title_style="bold")


def _goodputs(shown: View, played: list[ArmView]) -> Table:
    """Tokens a second of every arm at every batch; the best of a batch stands out."""
    best = {bucket: max(arm.goodput.get(bucket, 0.0) for arm in played) for bucket in shown.buckets}
    rows = []
    for arm in played:
        values = {bucket: arm.goodput.get(bucket) for bucket in shown.buckets}
        cells = (Text(_number(value), "green" if value == best[bucket] else "") for bucket, value in values.items())
        rows.append((Text(arm.arm, "bold"), *cells))
    return table("tokens/s at batch", ("arm", *shown.buckets), rows, title_style="bold")


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def look(url: str, before: Scrape | None, now: Scrape) -> View:
    """What two scrapes of a server say; ValueError in one sentence where one of its series is of another shape."""
    try:
        return view(before, now)
    except KeyError as missing:
        what = f"a series of wager's metrics without the label {missing}"
        raise ValueError(f"{url} has {what}; is that server's wager of another version?") from None


def watch(url: str, interval: float, console: Console, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a server until interrupted; one that goes away is waited for."""
    last = scrape(url)
    shown, trouble = look(url, None, last), ""
    with Live(draw(shown, url), console=console, auto_refresh=False) as live:
        while True:
            sleep(interval)
            try:
                now = scrape_after(url, last)
                shown, last, trouble = look(url, last, now), now, ""
            except ValueError as error:
                age = time.monotonic() - last.at
                trouble = f"{error}; last seen {age:.0f} s ago, trying again every {interval:g} s"
            live.update(draw(shown, url, trouble), refresh=True)


def command(
    url: Annotated[str, argument("A server's address, such as host:8000.")],
    interval: Annotated[float, option("Seconds between two looks.", min=0.1)] = 2.0,
    once: Annotated[bool, option("Print one interval's figures and stop.", "--once")] = False,
    as_json: Annotated[bool, option("With --once: print JSON instead of tables.", "--json")] = False,
) -> None:
    """Watch a running server: load, draft length, acceptance, and every arm's rounds and goodput."""
    address, console = metrics_url(url), Console()
    require(interval <= LONGEST, f"--interval is at most {LONGEST:g} seconds, not {interval:g}")
    require(once or not as_json, "--json prints one snapshot; give --once too")
    require(once or console.is_terminal, "wager top draws on a terminal; give --once for one snapshot")
    try:
        if not once:
            watch(address, interval, console)
        before = scrape(address)
        time.sleep(interval)
        shown = look(address, before, scrape_after(address, before))
    except KeyboardInterrupt:
        return
    if as_json:
        print(json.dumps(asdict(shown), indent=2, ensure_ascii=False))
    else:
        console.print(draw(shown, address))
