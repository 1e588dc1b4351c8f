"""`wager top`: a running server's speculation, from its /metrics alone."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

TIMEOUT = 10.0  # seconds a server may take to answer
LARGEST = 1 << 26  # bytes of metrics read
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What /metrics said at one moment."""

    at: float  # seconds of a clock that only goes on
    values: Mapping[tuple[str, Labels], float]

    def named(self, name: str) -> dict[Labels, float]:
        """Every series of this name."""
        return {labels: value for (found, labels), value in self.values.items() if found == name}

    def total(self, name: str) -> float:
        """Over all labels, as engines of one server have each their own."""
        return sum(self.named(name).values())

    def by(self, label: str, name: str) -> dict[str, float]:
        """Label's value -> total."""
        totals: dict[str, float] = {}
        for labels, value in self.named(name).items():
            key = dict(labels).get(label, "")
            totals[key] = totals.get(key, 0.0) + value
        return totals

    def since(self, before: Scrape | None) -> Scrape:
        """How far every counter has come; one that went back started anew with its server."""
        earlier = before.values if before else {}
        grown = {}
        for key, value in self.values.items():
            start = earlier.get(key, 0.0)
            grown[key] = value - start if value >= start else value
        return Scrape(self.at - (before.at if before else 0.0), grown)


@dataclass(frozen=True, slots=True)
class Rounds:
    """An arm's rounds over some time."""

    rounds: float
    share: float | None  # of all arms' rounds
    acceptance: float | None  # accepted of drafted tokens
    mat: float | None  # tokens a round


@dataclass(frozen=True, slots=True)
class ArmView:
    arm: str
    rate: float | None  # rounds a second in the last interval
    last: Rounds | None  # the last interval
    whole: Rounds  # since the server started
    goodput: dict[str, float]  # batch bucket -> tokens a second, lately


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown. None: not measured yet, or nothing happened."""

    seconds: float | None  # of the last interval
    policy: str
    hook: str
    drafters: str
    version: str
    running: float
    waiting: float
    kv_cache: float | None  # share in use, of the fullest engine
    tokens_per_second: float | None
    batch: float | None
    length: float | None
    acceptance: float | None  # last interval
    acceptance_whole: float | None
    steps: float  # since start
    mixed_share: float | None  # of steps, since start
    switches: float  # since start
    switches_last: float | None  # in the last interval
    switch_seconds: float | None
    decision_us: float | None  # a step, last interval
    decision_us_whole: float | None
    buckets: list[str] = field(default_factory=list)  # in order
    arms: list[ArmView] = field(default_factory=list)


def metrics_url(text: str) -> str:
    """The address of /metrics, from a server's address however it is written."""
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        known = False
    if not known or any(ch.isspace() for ch in url):
        raise ValueError(f"{text!r} is not a server's address; write it as http://host:8000 or host:8000")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/metrics') else path + '/metrics'}"


def parse(text: str, at: float) -> Scrape:
    """Read Prometheus text; ValueError where it is none."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(("wager_", "vllm:")) and math.isfinite(sample.value):
                values[sample.name, frozenset(sample.labels.items())] = float(sample.value)
    return Scrape(at, values)


def scrape(url: str) -> Scrape:
    """Ask a server once; ValueError in one sentence where it cannot be read."""
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            body = reply.read(LARGEST)
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answers {error.code} {error.reason}; is this a vLLM server?") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise ValueError(f"no server answers at {url}: {said}") from None
    try:
        found = parse(body.decode(), time.monotonic())
    except ValueError:
        raise ValueError(f"{url} answers, but not with Prometheus metrics") from None
    if not any(name.startswith("wager_") for name, _ in found.values):
        raise ValueError(f"{url} has no wager_ metrics; start the server with wager serve") from None
    return found


def view(before: Scrape | None, now: Scrape) -> View:
    """What two scrapes say; from one alone, only what holds since the start."""
    grown = now.since(before) if before else None
    labels = [dict(labels) for labels, value in now.named("wager_info").items() if value]
    said = {
        key: ", ".join(sorted({each.get(key, "") for each in labels})) or "unknown"
        for key in ("policy", "hook", "drafters", "version")
    }
    goodput: dict[str, dict[str, float]] = {}
    for series, value in now.named("wager_goodput").items():
        goodput.setdefault(dict(series)["arm"], {})[dict(series)["batch"]] = value
    whole, last = _rounds(now), _rounds(grown) if grown else {}
    arms = [
        ArmView(
            arm,
            last[arm].rounds / grown.at if grown and grown.at > 0 else None,
            last.get(arm),
            whole[arm],
            {bucket: goodput[arm][bucket] for bucket in sorted(goodput.get(arm, {}), key=_low)},
        )
        for arm in sorted(whole, key=_order)
    ]
    kinds = now.by("kind", "wager_steps_total")
    return View(
        seconds=grown.at if grown else None,
        **said,
        running=now.total("vllm:num_requests_running"),
        waiting=now.total("vllm:num_requests_waiting"),
        kv_cache=max(now.named("vllm:kv_cache_usage_perc").values(), default=None),
        tokens_per_second=_ratio(grown.total("vllm:generation_tokens_total"), grown.at) if grown else None,
        batch=_only(now, "wager_batch"),
        length=_only(now, "wager_length"),
        acceptance=_acceptance(grown) if grown else None,
        acceptance_whole=_acceptance(now),
        steps=sum(kinds.values()),
        mixed_share=_ratio(kinds.get("mixed", 0.0), sum(kinds.values())),
        switches=now.total("wager_switches_total"),
        switches_last=grown.total("wager_switches_total") if grown else None,
        switch_seconds=_only(now, "wager_switch_seconds"),
        decision_us=_decision_us(grown) if grown else None,
        decision_us_whole=_decision_us(now),
        buckets=sorted({bucket for found in goodput.values() for bucket in found}, key=_low),
        arms=arms,
    )


def _rounds(counted: Scrape) -> dict[str, Rounds]:
    """Arm -> its rounds."""
    pulls = counted.by("arm", "wager_pulls_total")
    drafted = counted.by("arm", "wager_drafted_tokens_total")
    accepted = counted.by("arm", "wager_accepted_tokens_total")
    emitted = counted.by("arm", "wager_emitted_tokens_total")
    return {
        arm: Rounds(
            rounds=count,
            share=_ratio(count, sum(pulls.values())),
            acceptance=_ratio(accepted.get(arm, 0.0), drafted.get(arm, 0.0)),
            mat=_ratio(emitted.get(arm, 0.0), count),
        )
        for arm, count in pulls.items()
    }


def _acceptance(counted: Scrape) -> float | None:
    return _ratio(counted.total("wager_accepted_tokens_total"), counted.total("wager_drafted_tokens_total"))


def _decision_us(counted: Scrape) -> float | None:
    seconds = _ratio(counted.total("wager_decision_seconds_total"), counted.total("wager_steps_total"))
    return None if seconds is None else seconds * 1e6


def _only(now: Scrape, name: str) -> float | None:
    """A gauge without labels."""
    return next(iter(now.named(name).values()), None)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _low(bucket: str) -> int:
    """Smallest batch of a bucket, to sort by."""
    low = bucket.partition("-")[0]
    return int(low) if low.isdecimal() else 0


def _order(arm: str) -> tuple[bool, str, int]:
    """off first, then by drafter and length, so that rows stay where they are."""
    drafter, _, length = arm.partition("@")[0].rpartition(":")
    return arm != "off", drafter, int(length) if length.isdecimal() else 0


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
                now = scrape(url)
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
        shown = view(before, scrape(address))
    except KeyboardInterrupt:
        return
    if as_json:
        print(json.dumps(asdict(shown), indent=2, ensure_ascii=False))
    else:
        console.print(draw(shown, address))
