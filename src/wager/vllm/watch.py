"""A running server's speculation, from its /metrics alone: two readings and what happened between them."""

from __future__ import annotations

import math
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlsplit

TIMEOUT = 10.0  # seconds a server may take to answer
LARGEST = 1 << 26  # bytes of metrics read
UPDATE_SECONDS = 3.0  # counters are written once a second or more often
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What /metrics said at one moment."""

    at: float  # seconds of a clock that only goes on
    values: Mapping[tuple[str, Labels], float]

    def named(self, name: str) -> dict[Labels, float]:
        """Every series of this name."""
        return {labels: value for (found, labels), value in self.values.items() if found == name}

    @property
    def updated(self) -> float:
        """When the server last updated wager's counters, by its own clock; 0: it does not say."""
        return max(self.named("wager_updated_timestamp_seconds").values(), default=0.0)

    def total(self, name: str) -> float:
        """Over all labels, as engines of one server have each their own."""
        return sum(self.named(name).values())

    def by(self, label: str, name: str) -> defaultdict[str, float]:
        """Label's value -> total."""
        totals: defaultdict[str, float] = defaultdict(float)
        for labels, value in self.named(name).items():
            totals[dict(labels).get(label, "")] += value
        return totals

    def since(self, before: Scrape) -> Scrape:
        """How far every counter has come; one that went back started anew with its server."""
        starts = {key: before.values.get(key, 0.0) for key in self.values}
        grown = {key: value - starts[key] if value >= starts[key] else value for key, value in self.values.items()}
        seconds = self.updated - before.updated if before.updated and self.updated else 0.0
        return Scrape(seconds if seconds > 0 else self.at - before.at, grown)


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

    seconds: float | None  # of the last interval, between two updates of wager's counters
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
    """Read a server once; ValueError in one sentence where it cannot be read."""
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


def scrape_after(url: str, before: Scrape, sleep: Callable[[float], None] = time.sleep) -> Scrape:
    """A reading whose counters are newer than those of ``before``, or the same because nothing has happened.

    The server's process that decides writes its counters once a second or more often. In between, vLLM's own counters
    have moved on and wager's have not.
    """
    now = scrape(url)
    deadline = now.at + UPDATE_SECONDS
    while now.updated and now.updated == before.updated and _generated(now) != _generated(before) and now.at < deadline:
        sleep(0.1)
        now = scrape(url)
    return now


def _generated(counted: Scrape) -> float:
    return counted.total("vllm:generation_tokens_total")


def view(before: Scrape | None, now: Scrape) -> View:
    """What two scrapes say; from one alone, only what holds since the start."""
    grown = now.since(before) if before else None
    labels = [dict(labels) for labels, value in now.named("wager_info").items() if value]
    names = ("policy", "hook", "drafters", "version")
    said = {key: ", ".join(sorted({each.get(key, "") for each in labels})) or "unknown" for key in names}
    goodput: defaultdict[str, dict[str, float]] = defaultdict(dict)
    series = [(dict(labels), value) for labels, value in now.named("wager_goodput").items()]
    for cell, value in sorted(series, key=lambda one: _low(one[0]["batch"])):
        goodput[cell["arm"]][cell["batch"]] = value
    whole, last = _rounds(now), _rounds(grown) if grown else {}
    rates = {arm: rounds.rounds / grown.at for arm, rounds in last.items()} if grown and grown.at > 0 else {}
    kinds = now.by("kind", "wager_steps_total")
    return View(
        seconds=grown.at if grown else None,
        **said,
        running=now.total("vllm:num_requests_running"),
        waiting=now.total("vllm:num_requests_waiting"),
        kv_cache=max(now.named("vllm:kv_cache_usage_perc").values(), default=None),
        tokens_per_second=_ratio(grown.total("wager_tokens_total"), grown.at) if grown else None,
        batch=_only(now, "wager_batch"),
        length=_only(now, "wager_length"),
        acceptance=_acceptance(grown) if grown else None,
        acceptance_whole=_acceptance(now),
        steps=sum(kinds.values()),
        mixed_share=_ratio(kinds["mixed"], sum(kinds.values())),
        switches=now.total("wager_switches_total"),
        switches_last=grown.total("wager_switches_total") if grown else None,
        switch_seconds=_only(now, "wager_switch_seconds"),
        decision_us=_decision_us(grown) if grown else None,
        decision_us_whole=_decision_us(now),
        buckets=sorted({cell["batch"] for cell, _ in series}, key=_low),
        arms=[
            ArmView(arm, rates.get(arm), last.get(arm), whole[arm], goodput[arm]) for arm in sorted(whole, key=_order)
        ],
    )


def _rounds(counted: Scrape) -> dict[str, Rounds]:
    """Arm -> its rounds."""
    names = ("pulls", "drafted_tokens", "accepted_tokens", "emitted_tokens")
    pulls, drafted, accepted, emitted = (counted.by("arm", f"wager_{name}_total") for name in names)
    every = sum(pulls.values())
    return {
        arm: Rounds(count, _ratio(count, every), _ratio(accepted[arm], drafted[arm]), _ratio(emitted[arm], count))
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
