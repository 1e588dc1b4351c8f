"""docs/reproduction.md is what the results make, and the command lists, runs, writes and refuses."""

import json
import re
import sys
from pathlib import Path

import pytest
from paper_recordings import recording

from reproduction import page
from reproduction.__main__ import main
from reproduction.registry import EXPERIMENTS, PAPERS

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_results_make() -> None:
    rows = page.read_all(ROOT / "results")
    made = page.page(rows, ROOT / "results")
    # what comes after depends on the history of the checkout
    kept = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").partition(page.AGE)[0]
    assert kept == made, "run `python -m reproduction --doc docs/reproduction.md`"
    assert len([line for line in made.splitlines() if line.startswith("| [")]) == len(EXPERIMENTS)
    assert "not run" not in made


def test_every_paper_has_a_summary_that_is_short_and_a_picture() -> None:
    made = page.page(page.read_all(ROOT / "results"), ROOT / "results")
    top = made.partition("## How a verdict is reached")[0]
    read = re.sub(r"!\[.*|\]\([^)]*\)", "", top.partition("## In three minutes")[2])
    assert len(re.findall(r"\w{2,}", read)) < 1100, "three minutes are not enough to read it"
    assert max(len(experiment.texts["short"].split()) for experiment in EXPERIMENTS.values()) <= 16
    for title in PAPERS.values():
        counts = [int(cell) for cell in re.findall(rf"^\| {title} \|.*", top, flags=re.MULTILINE)[0].split("|")[3:-1]]
        assert sum(counts) == len([n for n in EXPERIMENTS if PAPERS[EXPERIMENTS[n].paper] == title])
    for paper, title in PAPERS.items():
        assert f"### {title} in short" in top
        picture = ROOT / "docs" / "img" / f"reproduction-{paper}.svg"
        assert f"(img/{picture.name})" in top
        assert picture.stat().st_size < 60_000


def test_pictures_are_the_same_for_the_same_rows() -> None:
    pytest.importorskip("matplotlib")
    rows = page.read_all(ROOT / "results")
    assert page.pictures(rows) == page.pictures(rows)


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
    recording(tmp_path / "results" / "recordings" / "one.jsonl", 20, tokens=20, tasks=("humaneval", "math_reasoning"))
    assert called(monkeypatch, "metasd-table2", "--out", "results/reproduction", "--json", "all.json") == 0
    assert "The claim: " in capsys.readouterr().out
    kept = json.loads((tmp_path / "results" / "reproduction" / "metasd-table2.json").read_text())
    assert kept["sample"] == {"prompts": 20, "seeds": 20}
    assert kept["command"].startswith("python -m reproduction metasd-table2")
    assert json.loads((tmp_path / "all.json").read_text())["experiments"][0]["experiment"] == "metasd-table2"
    assert called(monkeypatch, "--doc", "page.md") == 0
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| [table 2](#metasd-table2) |" in written
    assert (tmp_path / "img" / "reproduction-metasd.svg").is_file()
    assert called(monkeypatch, "--commands") == 0
    assert "reproduction/metasd-table2.json: python -m reproduction metasd-table2" in capsys.readouterr().out


def test_a_row_that_cannot_be_made_again_here_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "out" / "metasd-table4.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"verdict": "holds", "parts": [{}]}))
    assert called(monkeypatch, "metasd-table4", "--out", "out") == 0
    assert json.loads(path.read_text())["verdict"] == "holds"
    assert "stays as it was" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch-table1",), "unknown experiment 'nosuch-table1'; choose from banditspec"),
        (("metasd-table99",), "metasd-table2"),
        (("nightjar", "--all"), "leave out the names"),
        (("--doc", "page.md", "--results", "nowhere"), "no folder nowhere"),
        (("--commands", "--results", "nowhere"), "no folder nowhere"),
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
