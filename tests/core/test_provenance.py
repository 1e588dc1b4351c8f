"""Where a result comes from: the commit, and the command without the machine's paths."""

import subprocess
import sys
from pathlib import Path

import pytest

import wager
from wager.core import provenance


def test_paths_stay_out_of_the_command() -> None:
    said = "wager bench --out /home/me/made --data ~/data -m ./model --suite quick"
    assert provenance.without_paths(said) == "wager bench --out made --data data -m ./model --suite quick"
    assert provenance.without_paths("wager bench --drafter eagle:x=/home/me/x") == "wager bench --drafter eagle:x=x"
    joined = "wager bench --out=/home/me/made --data=~/data --methods=fixed:length=4 --model=ORG/NAME"
    assert (
        provenance.without_paths(joined)
        == "wager bench --out=made --data=data --methods=fixed:length=4 --model=ORG/NAME"
    )


def test_a_result_names_its_command_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["wager", "bench", "--out", "/tmp/made here"])
    assert provenance.provenance()["command"] == "wager bench --out 'made here'"
    assert provenance.provenance("python -m reproduction")["command"].startswith("python -m reproduction bench")
    folder = Path(wager.__file__).parent
    asked = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True)
    if asked.returncode == 0:
        assert provenance.commit().removesuffix("-dirty") == asked.stdout.strip()


def test_an_installed_package_names_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment it is installed in is part of somebody's repository."""
    package = tmp_path / "env" / "wager"
    package.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(wager, "__file__", str(package / "__init__.py"))
    provenance.commit.cache_clear()
    try:
        assert provenance.commit() == f"wager {wager.__version__}, installed"
    finally:
        provenance.commit.cache_clear()
