"""The command line as a user meets it: commands that need no model, and bad input."""

import json
from pathlib import Path

import pytest
from commands import Wager, one_sentence

from wager.policies import POLICIES

QUICK = ("--tokens", "300", "--runs", "2", "--jobs", "1")


@pytest.mark.parametrize("env", ["tgd", "piecewise", "adversarial", "costs", "serving"])
def test_every_environment_simulates_with_its_defaults(cli: Wager, env: str) -> None:
    done = cli("lab", "simulate", "--env", env, *QUICK)
    assert done.code == 0, done.err
    assert all(word in done.out for word in ("clairvoyant", "best fixed", "regret"))


def test_simulate_writes_json_a_picture_and_a_trace(cli: Wager, tmp_path: Path) -> None:
    done = cli(
        *("lab", "simulate", "--arms", "0.8,0.4", "--length", "3", *QUICK),
        *("--policy", "ucbspec", "--policy", "meta-ucb:beta=0.5"),
        *("--json", "out.json", "--plot", "out.png", "--record", "out.jsonl"),
    )
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["command"].startswith("wager lab simulate --arms 0.8,0.4")
    assert [row["policy"] for row in result["policies"]] == ["ucbspec", "meta-ucb:beta=0.5"]
    figures = {"rounds", "regret_rounds", "regret_seconds", "switches", "goodput", "best_share"}
    assert figures <= set(result["policies"][0])
    assert result["best_fixed_arm"] == "d1:3"
    assert set(result["bounds"]) == {"Theorem 4.3: UCBSpec's upper bound", "Theorem 4.4: asymptotic lower bound"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    told = cli("lab", "trace", "out.jsonl")
    assert told.code == 0
    assert "d1:3" in told.out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "out.jsonl", "out.png"]


def test_policies_lists_all_and_explains_one(cli: Wager) -> None:
    listed = cli("policies")
    assert listed.code == 0
    assert all(name in listed.out for name in POLICIES)
    rows = json.loads(cli("policies", "--json").out)
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["summary"] and row["source"] for row in rows)
    assert "beta: default 0.01; weight of the exploration bonus" in cli("policies", "meta-ucb").out
    assert "budget: default 0; most draft tokens of a step" in cli("policies", "auto").out
    assert "one of tokens, goodput" in cli("policies", "kl-ucb").out


def test_decision_bench_times_policies(cli: Wager, tmp_path: Path) -> None:
    done = cli("lab", "decisions", "-p", "ucbspec", "--repeats", "1", "--json", "d.json")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "d.json").read_text())
    assert 0 < found["policies"][0]["arms"]["8"]["median_us"] < 1000
    for row in found["rounds"]:
        assert min(row["choose_us"], row["observe_us"], row["loop_us"]) > 0
    assert "the loop itself" in done.out


SIMULATE = [
    ("--policy best", "unknown policy 'best'; choose from auto, off, fixed"),
    ("--policy AUTO", "unknown policy 'AUTO' (did you mean 'auto'?)"),
    ("--policy ucbspek:reward=goodput", "unknown policy 'ucbspek' (did you mean 'ucbspec'?); choose from auto"),
    ("--policy ucbspec:beta=1", "has no parameter 'beta'; it takes delta, reward"),
    ("--policy ucbspec:delta=two", "is a number, not 'two'"),
    ("--policy fixed:drafter=d9,length=4", "the arms are d1:4"),
    ("--policy off", "no arm off here"),
    ("--policy petc:c=inf", "is a number, not 'inf'"),
    ("--length 100000000", "--length is at most 1,024 tokens, not 100,000,000"),
    ("--json own.txt", "own.txt exists and holds no results of wager's"),
    ("--env serving --trace binary", "binary is not a load trace: it is no text in UTF-8"),
    ("--env serving --trace own.txt", "TIMESTAMP, ContextTokens and GeneratedTokens (it has no column TIMESTAMP)"),
    ("--env casino", "unknown environment 'casino'; choose from tgd"),
    ("--arms 0.8,1.2", r"lie in [0, 1]"),
    ("--arms 0.8,-0.2", r"lie in [0, 1]"),
    ("--arms 0.8,high", "not 'high'"),
    ("--arms a=0.8,a=0.7", "twice"),
    ("--arms=", "separated by commas, not ''"),
    ("--arms 0.8/0.2", "need --env piecewise"),
    ("--env piecewise --arms 0.8,0.2/0.5", "as many arms in every phase"),
    ("--length 0", "at least 1"),
    ("--tokens 0", "at least 1 token"),
    ("--runs 0", "at least 1 run"),
    ("--warmup 900 --tokens 500", "leaves nothing"),
    ("--lag-ms inf", "lag seconds are finite"),
    ("--env adversarial --pattern evil", "choose from rotate, trap"),
    ("--env costs --verify tpu", "flat, cpu, gpu"),
    ("--env costs --lengths 1,x", "whole numbers"),
    ("--env serving --load 0", "between 1 and the largest batch"),
    ("--env serving --trace here.csv", "is not a load trace"),
    ("--env serving --trace missing.csv", "missing.csv"),
    ("--env serving --trace here.csv --speed 0", "speed above 0"),
    ("--env serving --rate nan", "a rate above 0"),
    ("--env serving --wake-ms -5", "the cost 'wake'"),
    ("--json .", "not a file"),
    ("--json nowhere/out.json", "cannot write"),
    ("--plot nowhere/out.png", "cannot write"),
    ("--record here.csv", "never overwritten"),
]
BAD = [
    *((f"lab simulate {words}", said) for words, said in SIMULATE),
    ("simulate --tokens 9", "wager simulate is now wager lab simulate"),
    ("bench engine", "wager bench engine is now wager lab engine"),
    ("bench --suite quick generate", "--suite before generate does nothing"),
    ("generate Hi --no-memory", "--no-memory is now --no-state"),
    ("policies best", "choose from auto, off, fixed"),
    ("lab trace here.csv", "is not a wager trace"),
    ("lab trace missing.jsonl", "missing.jsonl"),
    ("lab trace binary", "is not a wager trace"),
    ("lab trace odd.jsonl", "is not a wager trace"),
]


@pytest.mark.parametrize(("words", "names"), BAD)
def test_bad_input_ends_in_one_sentence_and_exit_code_2(cli: Wager, tmp_path: Path, words: str, names: str) -> None:
    (tmp_path / "here.csv").write_text("a,b\n1,2\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "own.txt").write_text("notes\nmine\n")
    (tmp_path / "odd.jsonl").write_text('{"format": "wager-trace", "version": 2, "meta": 5}\n')
    one_sentence(cli(*words.split()), names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["binary", "here.csv", "odd.jsonl", "own.txt"]
    assert (tmp_path / "own.txt").read_text() == "notes\nmine\n"
