"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wager.policies import POLICIES


def wager(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wager", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "160"})


QUICK = ("--tokens", "300", "--runs", "2", "--jobs", "1")


@pytest.mark.parametrize("env", ["tgd", "piecewise", "adversarial", "costs", "serving"])
def test_every_environment_simulates_with_its_defaults(env: str) -> None:
    done = wager("lab", "simulate", "--env", env, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "clairvoyant" in done.stdout
    assert "best fixed" in done.stdout
    assert "regret" in done.stdout


def test_simulate_writes_json_a_picture_and_a_trace(tmp_path: Path) -> None:
    done = wager(
        *("lab", "simulate", "--arms", "0.8,0.4", "--length", "3", *QUICK),
        *("--policy", "ucbspec", "--policy", "meta-ucb:beta=0.5"),
        *("--json", "out.json", "--plot", "out.png", "--record", "out.jsonl"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["command"].startswith("wager lab simulate --arms 0.8,0.4")
    assert [row["policy"] for row in result["policies"]] == ["ucbspec", "meta-ucb:beta=0.5"]
    assert {"rounds", "regret_rounds", "regret_seconds", "switches", "goodput", "best_share"} <= set(
        result["policies"][0]
    )
    assert result["best_fixed_arm"] == "d1:3"
    assert set(result["bounds"]) == {"Theorem 4.3: UCBSpec's upper bound", "Theorem 4.4: asymptotic lower bound"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    told = wager("lab", "trace", "out.jsonl", cwd=tmp_path)
    assert told.returncode == 0
    assert "d1:3" in told.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "out.jsonl", "out.png"]


def test_the_same_seed_gives_the_same_result_in_one_process_or_two(tmp_path: Path) -> None:
    for name, jobs in (("a", "1"), ("b", "2")):
        words = ("--tokens", "500", "--runs", "3", "--jobs", jobs, "--seed", "9", "--json", f"{name}.json")
        assert wager("lab", "simulate", "-p", "exp3spec", *words, cwd=tmp_path).returncode == 0
    a, b = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert a["policies"] == b["policies"]


def test_policies_lists_all_and_explains_one() -> None:
    listed = wager("policies")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in POLICIES)
    rows = json.loads(wager("policies", "--json").stdout)
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["summary"] and row["source"] for row in rows)
    assert "beta: default 0.01" in wager("policies", "meta-ucb").stdout
    assert "one of tokens, goodput" in wager("policies", "kl-ucb").stdout


def test_decision_bench_times_policies(tmp_path: Path) -> None:
    done = wager("lab", "decisions", "-p", "ucbspec", "--repeats", "1", "--json", "d.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "d.json").read_text())["policies"][0]
    assert 0 < row["arms"]["8"]["median_us"] < 1000


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("lab", "simulate", "--policy", "best"), "unknown policy 'best'; choose from auto, off, fixed"),
        (("lab", "simulate", "--policy", "ucbspec:beta=1"), "has no parameter 'beta'; it takes delta, reward"),
        (("lab", "simulate", "--policy", "ucbspec:delta=two"), "is a number, not 'two'"),
        (("lab", "simulate", "--policy", "fixed:drafter=d9,length=4"), "the arms are d1:4"),
        (("lab", "simulate", "--policy", "off"), "no arm off here"),
        (("lab", "simulate", "--env", "casino"), "unknown environment 'casino'; choose from tgd"),
        (("lab", "simulate", "--arms", "0.8,1.2"), r"lie in [0, 1]"),
        (("lab", "simulate", "--arms", "0.8,-0.2"), r"lie in [0, 1]"),
        (("lab", "simulate", "--arms", "0.8,high"), "not 'high'"),
        (("lab", "simulate", "--arms", "a=0.8,a=0.7"), "twice"),
        (("lab", "simulate", "--env", "piecewise", "--arms", "0.8,0.2/0.5"), "as many arms in every phase"),
        (("lab", "simulate", "--length", "0"), "at least 1"),
        (("lab", "simulate", "--tokens", "0"), "positive"),
        (("lab", "simulate", "--runs", "0"), "at least 1 run"),
        (("lab", "simulate", "--warmup", "900", "--tokens", "500"), "leaves nothing"),
        (("lab", "simulate", "--env", "adversarial", "--pattern", "evil"), "choose from rotate, trap"),
        (("lab", "simulate", "--env", "costs", "--verify", "tpu"), "flat, cpu, gpu"),
        (("lab", "simulate", "--env", "costs", "--lengths", "1,x"), "whole numbers"),
        (("lab", "simulate", "--env", "serving", "--load", "0"), "between 1 and the largest batch"),
        (("lab", "simulate", "--env", "serving", "--trace", "here.csv"), "is not a load trace"),
        (("lab", "simulate", "--env", "serving", "--trace", "missing.csv"), "missing.csv"),
        (("lab", "simulate", "--env", "serving", "--trace", "here.csv", "--speed", "0"), "speed above 0"),
        (("lab", "simulate", "--env", "serving", "--rate", "nan"), "a rate above 0"),
        (("lab", "simulate", "--env", "serving", "--wake-ms", "-5"), "the cost 'wake'"),
        (("lab", "simulate", "--lag-ms", "inf"), "lag seconds are finite"),
        (("lab", "simulate", "--arms", ""), "separated by commas, not ''"),
        (("lab", "simulate", "--arms", "0.8/0.2"), "need --env piecewise"),
        (("lab", "simulate", "--policy", "petc:c=inf"), "is a number, not 'inf'"),
        (("lab", "simulate", "--json", "."), "not a file"),
        (("lab", "simulate", "--json", "nowhere/out.json"), "cannot write"),
        (("lab", "simulate", "--plot", "nowhere/out.png"), "cannot write"),
        (("lab", "simulate", "--record", "here.csv"), "never overwritten"),
        (("simulate", "--tokens", "9"), "wager simulate is now wager lab simulate"),
        (("bench", "engine"), "wager bench engine is now wager lab engine"),
        (("generate", "Hi", "--no-memory"), "--no-memory is now --no-state"),
        (("policies", "best"), "choose from auto, off, fixed"),
        (("lab", "trace", "here.csv"), "is not a wager trace"),
        (("lab", "trace", "missing.jsonl"), "missing.jsonl"),
        (("lab", "trace", "binary"), "is not a wager trace"),
        (("lab", "trace", "odd.jsonl"), "is not a wager trace"),
    ],
)
def test_bad_input_ends_in_one_sentence_and_exit_code_2(tmp_path: Path, words: tuple[str, ...], names: str) -> None:
    (tmp_path / "here.csv").write_text("a,b\n1,2\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "odd.jsonl").write_text('{"format": "wager-trace", "version": 2, "meta": 5}\n')
    done = wager(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert names in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["binary", "here.csv", "odd.jsonl"]


def test_importing_wager_is_fast_and_light() -> None:
    code = "import sys, wager; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'typer', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
