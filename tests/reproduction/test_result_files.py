"""Result files say how they were made: a command that is accepted, a commit of this history, machine and sizes."""

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from reproduction.result_files import problems, read, refused, stale

ROOT = Path(__file__).parents[2]
RESULTS, ROWS = ROOT / "results", "python -m reproduction"
OLD = tomllib.loads((ROOT / "reproduction" / "old_results.toml").read_text(encoding="utf-8"))["files"]
FILES = sorted(path for path in RESULTS.rglob("*.json"))
SOUND = {"command": "wager lab simulate --env tgd --runs 4 -p ucbspec", "commit": "wager 0.1.0, installed",
         "date": "2026-11-16", "machine": "x86_64, 2 cores", "versions": {"wager": "0.1.0"}}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_result_is_sound_or_on_the_list_of_old_ones(path: Path) -> None:
    found = problems(read(path), ROOT)
    assert bool(found) == (path.name in OLD), f"{path.name}: {'; '.join(found) or 'is sound: take it off the list'}"


def test_the_list_of_old_results_only_shrinks_and_none_of_them_invents_a_commit() -> None:
    assert len(OLD) <= 54
    for name in (name for name in OLD if (RESULTS / name).is_file()):  # others are gone, and so off the list
        commit = read(RESULTS / name)["commit"]
        assert commit.startswith("unknown (before ") or commit.endswith("-dirty") or name == "decisions.json"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"command": "wager simulate --env tgd --runs 4"}, "is now wager lab simulate"),
        ({"command": "wager lab simulate --runs 4 --polcy ucbspec"}, "not accepted"),
        ({"command": "python script.py --runs 4"}, "not accepted"),
        ({"command": "python -m reproduction metasd --prompts 5"}, "not accepted"),
        ({"command": "wager policies"}, "no sample sizes"),
        ({"commit": "0" * 40}, "no ancestor"),
        ({"commit": "today's"}, "no commit"),
        ({"commit": None}, "no commit"),
        ({"machine": ""}, "no machine"),
    ],
)
def test_what_is_wrong_with_a_result_is_told(change: dict[str, Any], says: str) -> None:
    found = "; ".join(problems({**SOUND, **change}, ROOT))
    if says == "no ancestor" and not (ROOT / ".git").exists():
        pytest.skip("a checkout without history cannot tell")
    assert says in found
    assert bool(found) == bool(says)


def test_commands_of_every_program_are_read_by_its_own_parser() -> None:
    assert refused("wager bench generate --prompts 4 --arms suffix:4") == ""
    assert refused("python -m reproduction --all --out results/reproduction") == ""
    assert refused("python -m reproduction.turns default") == ""
    assert "invalid choice: 'defaults'" in refused("python -m reproduction.turns defaults")
    assert "unrecognized arguments: --round-s 5" in refused("python -m reproduction.turns peers --round-s 5")
    assert refused("wager lab replay results/recordings/test.jsonl.gz -p auto") == ""


def test_a_result_older_than_a_change_of_what_it_measures_is_stale(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "src/wager/policies").mkdir(parents=True)
    source = tmp_path / "src/wager/policies/one.py"
    try:
        git("init", "-q")
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no git here")
    for text in ("a = 1\n", "a = 2\n"):
        source.write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", "a change")
    first, last = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    assert stale({**SOUND, "commit": first}, tmp_path) == "src/wager/policies"
    assert stale({**SOUND, "commit": f"unknown (before {first[:7]})"}, tmp_path) == "src/wager/policies"
    assert stale({**SOUND, "commit": last}, tmp_path) == ""
    assert problems({**SOUND, "commit": first}, tmp_path) == []
    (tmp_path / "reproduction").mkdir()
    (tmp_path / "reproduction/replay_check.py").write_text("")
    git("add", "-A")
    git("commit", "-q", "-m", "a tool of its own")
    made = {command: {**SOUND, "command": command, "commit": last} for command in (ROWS, f"{ROWS}.replay_check")}
    assert [stale(one, tmp_path) for one in made.values()] == ["", "reproduction/replay_check.py"]
    git("checkout", "-q", "--orphan", "other")
    git("commit", "-q", "-m", "elsewhere")
    assert "no ancestor" in problems({**SOUND, "commit": first}, tmp_path)[0]


def test_a_file_that_holds_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([]))
    with pytest.raises(ValueError, match="holds no result"):
        read(path)
