"""What the meter counts is what Prometheus reads, at a cost a step does not feel."""

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import timeit
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from waiting import allowed

import wager
from wager.core import OFF, Arm
from wager.vllm.metrics import COUNTERS, GAUGES, Meter, bucket

ARMS = (OFF, Arm("suffix", 2), Arm("suffix", 4))
DASHBOARD = Path(__file__).parent.parent.parent / "examples" / "grafana.json"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def meter(clock: Clock | None = None, **options: Any) -> Meter:
    options = {"drafters": ["suffix"], "interval": 1.0, "log_seconds": 10.0, "export": False, **options}
    return Meter("scheduler", "kl-ucb", ARMS, clock=clock or Clock(), **options)


def run(code: str, folder: Path | None) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as prometheus_client decides at its import where values go."""
    env = {k: v for k, v in os.environ.items() if k.lower() != "prometheus_multiproc_dir"}
    if folder is not None:
        env["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=180)


WRITE = """
import logging, time
logging.basicConfig(level=logging.INFO)
from wager.core import OFF, Arm
from wager.vllm.metrics import Meter
arms = (OFF, Arm("suffix", 2), Arm("suffix", 4))
first = Meter("scheduler", "kl-ucb:reward=goodput", arms, drafters=["suffix", "ngram"], interval=1e-9)
for _ in range(10):
    first.played(arms[2], 3, 12, 7, 10, 0.02, 5)
    first.played(arms[0], 2, 0, 0, 2, 0.01, 5)
    first.step(5, 2.4, 0.0005, tokens=13, switched=True)
    first.tick()
first.step(1, 2.4, 0.0, tokens=1, mixed=True)
first.switch_cost(0.25)
first.flush()
second = Meter("scheduler", "kl-ucb:reward=goodput", arms, drafters=["suffix", "ngram"], interval=0.1)
second.played(arms[2], 1, 4, 4, 5, 0.0, 1)
"""


def read(folder: Path) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_another_process_reads_the_exact_values_also_of_two_meters(tmp_path: Path) -> None:
    done = run(WRITE + "while not second._flushed.pulls: time.sleep(0.01)", tmp_path)  # without another step
    assert done.returncode == 0, done.stderr
    assert "stay inside" not in done.stderr
    found = read(tmp_path)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    for name, off, long in (
        ("pulls", 20, 31),
        ("drafted_tokens", 0, 124),
        ("accepted_tokens", 0, 74),
        ("emitted_tokens", 20, 105),
    ):
        assert value(f"wager_{name}_total", arm="off") == off
        assert value(f"wager_{name}_total", arm="suffix:4") == long
        assert value(f"wager_{name}_total", arm="suffix:2") == 0
    assert value("wager_seconds_total", arm="suffix:4") == pytest.approx(0.2)
    assert value("wager_steps_total", kind="clean") == 10
    assert value("wager_steps_total", kind="mixed") == 1
    assert value("wager_switches_total") == 10
    assert value("wager_tokens_total") == 131
    assert value("wager_decision_seconds_total") == pytest.approx(0.005)
    assert value("wager_goodput", arm="suffix:4", batch="4-7") == pytest.approx(500)
    assert value("wager_goodput", arm="off", batch="4-7") == pytest.approx(200)
    assert value("wager_length") == pytest.approx(2.4)
    assert value("wager_batch") == 1  # of the last flush
    assert value("wager_switch_seconds") == 0.25
    info = {"hook": "scheduler", "policy": "kl-ucb:reward=goodput", "drafters": "suffix,ngram"}
    assert value("wager_info", **info, version=wager.__version__) == 1
    assert {name for name, _ in found} == set(COUNTERS) | set(GAUGES)
    assert not any("pid" in dict(labels) for _, labels in found)


def test_metrics_that_cannot_be_read_are_said_once_and_cost_nothing_else(tmp_path: Path) -> None:
    inside, missing = run(WRITE, None), run(WRITE, tmp_path / "missing")
    assert inside.returncode == missing.returncode == 0, inside.stderr + missing.stderr
    said = (inside.stderr.count(words) for words in ("metrics stay inside this process", "`wager serve`"))
    assert (*said, missing.stderr.count("exports no metrics")) == (1, 1, 1), inside.stderr + missing.stderr


def test_without_export_prometheus_is_not_even_imported() -> None:
    code = """
import sys
from wager.core import OFF
from wager.vllm.metrics import Meter
meter = Meter("proposer", "off", [OFF], drafters=[], export=False)
meter.played(OFF, 1, 0, 0, 1, 0.1, 1)
meter.step(1, 0.0, 0.0, tokens=1)
meter.tick()
meter.flush()
sys.exit(any(name.split(".")[0] in ("prometheus_client", "torch", "vllm") for name in sys.modules))
"""
    done = run(code, None)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("PROMETHEUS_MULTIPROC_DIR" in os.environ, reason="values go to files here")
@pytest.mark.parametrize(
    ("writing", "ticks"),
    [  # seconds that writing takes; when steps end, and pulls seen after each
        (1.0, ((0.5, 0), (99.0, 0), (100.0, 3), (150.0, 3), (201.0, 5))),
        (0.02, ((99.0, 0), (100.0, 2), (119.0, 2), (121.0, 4), (140.0, 4), (142.0, 6))),
    ],
)
def test_ticks_flush_after_the_interval_and_sooner_where_writing_is_quick(
    writing: float, ticks: tuple[tuple[float, int], ...]
) -> None:
    def write() -> None:
        clock.now += writing

    def pulls() -> float:
        return REGISTRY.get_sample_value("wager_pulls_total", {"arm": "suffix:2"}) or 0.0

    clock = Clock()
    counted, before = meter(clock, export=True, interval=100.0), pulls()
    counted.pending.append(write)
    for clock.now, seen in ticks:
        counted.played(ARMS[1], 1, 2, 1, 2, 0.1, 1)
        counted.step(1, 2.0, 0.0, tokens=2)
        assert counted.due == (pulls() - before < seen)
        counted.tick()
        assert pulls() - before == seen


def test_goodput_forgets_and_a_mixed_step_says_nothing_about_it() -> None:
    counted = meter()
    for _ in range(500):
        counted.played(ARMS[1], 1, 2, 1, 2, 0.1, 2)
    for _ in range(500):
        counted.played(ARMS[1], 1, 2, 1, 4, 0.1, 3)
        counted.played(ARMS[1], 1, 2, 1, 4, 0.0, 3)
    tokens, seconds, _ = counted._tallies[ARMS[1]].goodput[2]
    assert tokens / seconds == pytest.approx(40, rel=0.01)
    counted.played(Arm("ngram", 3), 2, 6, 3, 5, 0.1, 2)  # an arm that was not announced counts too
    assert counted._now().emitted == 500 * 2 + 1000 * 4 + 5


def test_batch_buckets_are_powers_of_two() -> None:
    named = {bucket(batch.bit_length()): batch for batch in range(1, 40)}
    assert named == {"1": 1, "2-3": 3, "4-7": 7, "8-15": 15, "16-31": 31, "32-63": 39}


def test_the_log_line_says_what_happened_since_the_last_and_nothing_when_idle(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vllm.wager")
    clock = Clock()
    counted, silent = meter(clock), meter(clock, log_seconds=0)
    for _ in range(40):
        silent.step(1, 0.0, 0.0, tokens=1)
        silent.tick()
        clock.now += 0.25
        counted.played(ARMS[2], 2, 8, 4, 6, 0.02, 3)
        counted.played(ARMS[0], 1, 0, 0, 1, 0.005, 3)
        counted.step(3, 8 / 3, 21e-6, tokens=7, switched=clock.now < 1.1)
        counted.tick()
    counted.tick()
    assert caplog.messages == [
        "wager: 40 steps, batch 3.0, length 2.7, acceptance 50 %, 28.0 tokens/s, off 33 % of rounds, "
        "switches 4, decisions 21 µs a step"
    ]
    caplog.clear()
    clock.now = 1000.0
    counted.tick()
    assert caplog.messages == []  # no step
    clock.now = 5000.0
    counted.played(ARMS[0], 1, 0, 0, 1, 0.05, 1)
    counted.step(1, 0.0, 3e-6, tokens=1)
    counted.tick()
    assert caplog.messages == [
        "wager: 1 step, batch 1.0, length 0.0, nothing drafted, 20.0 tokens/s, off 100 % of rounds, "
        "switches 0, decisions 3 µs a step"
    ]


def test_a_step_costs_microseconds() -> None:
    counted = Meter("scheduler", "kl-ucb", ARMS, drafters=["suffix"], export=True)

    def step() -> None:
        counted.step(8, 2.0, 1e-5, tokens=15)
        for arm in ARMS:
            counted.played(arm, 2, 4, 3, 5, 0.01, 8)
        counted.tick()

    assert min(timeit.repeat(step, number=1000)) / 1000 < allowed(30e-6)  # about 3e-6 on an idle core


def test_the_dashboard_can_be_imported_and_asks_for_metrics_that_exist() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "panels", "schemaVersion", "templating", "time", "__requires"} <= board.keys()
    assert board["id"] is None  # else an import would look for that one
    assert board["schemaVersion"] >= 39
    assert [(each["name"], each["type"], each["pluginId"]) for each in board["__inputs"]] == [
        ("DS_PROMETHEUS", "datasource", "prometheus")
    ]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert {panel["type"] for panel in board["panels"]} <= {each["id"] for each in board["__requires"]}
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in board["templating"]["list"]]
    asked = {name for text in queries for name in re.findall(r"\b(?:wager_|vllm:)\w+", text)}
    ours = {name for name in asked if name.startswith("wager_")}
    assert ours <= set(COUNTERS) | set(GAUGES)
    assert set(COUNTERS) - ours <= {"wager_seconds_total", "wager_tokens_total"}
    assert set(GAUGES) - ours == {"wager_updated_timestamp_seconds"}  # for wager top: when the others were written
    found = importlib.util.find_spec("vllm")  # without importing it
    if found is not None and found.origin:
        source = (Path(found.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
        assert all(f'"{name.removesuffix("_total")}"' in source for name in asked - ours)
