"""docs/reproduction.md is what the results make, and the command lists, runs, writes and refuses."""

import json
import sys
from pathlib import Path

import pytest
from paper_results import board, selected

from reproduction import EXPERIMENTS, metasd_claims
from reproduction.__main__ import main
from reproduction.experiment import UNTRIED
from reproduction.page import page

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_results_make() -> None:
    made = page(ROOT / "results")
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == made, (
        "run `python -m reproduction --doc docs/reproduction.md`"
    )
    rows = [line for line in made.splitlines() if line.startswith("| [")]
    assert len(rows) == len(EXPERIMENTS)
    assert "not run yet" not in made


def test_a_longer_result_decides_and_one_of_other_methods_does_not(tmp_path: Path) -> None:
    (tmp_path / "reproduction").mkdir()
    quick = {"quick": True, "machine": "here", "date": "today", **metasd_claims.mixed(selected(1.1)).json()}
    (tmp_path / "reproduction" / "metasd-table19.json").write_text(json.dumps(quick))
    row = next(line for line in page(tmp_path).splitlines() if line.startswith("| [table 19]"))
    assert "**no**" in row
    longer = {**selected(1.8), "device": "a GPU", "date": "today", "command": "wager bench generate"}
    (tmp_path / "mixed-h200.json").write_text(json.dumps(longer))
    row = next(line for line in page(tmp_path).splitlines() if line.startswith("| [table 19]"))
    assert "**yes**" in row
    assert "a GPU" in page(tmp_path)
    (tmp_path / "mixed-h200.json").write_text(json.dumps(board({"auto": {"qa": 2.0}})))
    assert "**no**" in next(line for line in page(tmp_path).splitlines() if line.startswith("| [table 19]"))
    (tmp_path / "mixed-h200.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no result"):
        page(tmp_path)


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["reproduction", *arguments])
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0)


def test_the_command_lists_runs_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    assert called(monkeypatch, "nightjar-figure9", "--quick", "--out", "r/reproduction", "--json", "all.json") == 0
    assert "Does the claim hold? cannot be tried here." in capsys.readouterr().out  # no trace at hand
    kept = json.loads((tmp_path / "r" / "reproduction" / "nightjar-figure9.json").read_text())
    assert kept["holds"] == UNTRIED
    assert kept["quick"]
    assert kept["command"].startswith("python -m reproduction nightjar-figure9")
    assert json.loads((tmp_path / "all.json").read_text())["experiments"][0]["experiment"] == "nightjar-figure9"
    assert called(monkeypatch, "--doc", "page.md", "--results", "r") == 0
    assert "| [figure 9](#nightjar-figure9) |" in (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch-table1",), "unknown experiment 'nosuch-table1'; choose from banditspec"),
        (("metasd-table99",), "metasd-table2"),
        (("nightjar", "--all"), "leave out the names"),
        (("--doc", "page.md", "--results", "nowhere"), "no folder nowhere"),
        (("nightjar-figure9", "--data", "nowhere"), "no folder nowhere"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
