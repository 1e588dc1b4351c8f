"""What commands say while they work: a bar or a spinner on a terminal, lines of standard error elsewhere."""

import re
from io import StringIO

import pytest
from commands import Wager
from rich.console import Console

from wager.cli import screen


def test_without_a_terminal_a_stage_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.stage("loading [bold] " + "x" * 200) as now:
        now("preparing …")
    assert capsys.readouterr() == ("", "loading [bold] " + "x" * 200 + "\npreparing …\n")


def test_without_a_terminal_a_bar_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(screen, "monotonic", lambda: now[0])
    with screen.bar("answering", 100, done=2) as update:
        for _ in range(40):
            now[0] += 1.0
            update(advance=1, description="answers")
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == [
        "answers: 3 of 100", "answers: 18 of 100", "answers: 33 of 100",
    ]  # fmt: skip
    with screen.bar("reading") as update:
        update(advance=1)
    assert capsys.readouterr().err == "reading: 1\n"


@pytest.mark.parametrize("width", [28, 40, 60, 200])
def test_columns_that_do_not_fit_go_on_below(width: int) -> None:
    names = [f"column {i}" for i in range(9)]
    shown = screen.titled("a title", "a note", ["policy", *names])
    shown.add_row("first", *(f"{i}00.5" for i in range(9)), end_section=True)
    shown.add_row("second", *(f"{i}11.5" for i in range(9)))
    console = Console(file=StringIO(), width=width)
    console.print(shown)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    said = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in said
    assert (said.count("a title"), said.count("a note")) == (1, 1)
    parts = said.count("policy")
    assert (parts == 1) == (width == 200)
    assert said.count("first") == said.count("second") == parts
    for i, name in enumerate(names):
        assert said.count(name) == said.count(f" {i}00.5") == said.count(f" {i}11.5") == 1


@pytest.mark.parametrize("env", ["costs", "serving"])
def test_tables_of_a_simulation_keep_to_a_narrow_terminal(
    cli: Wager, monkeypatch: pytest.MonkeyPatch, env: str
) -> None:
    words = ("lab", "simulate", "--env", env, "--tokens", "300", "--runs", "2", "--jobs", "1")
    words += ("--load", "1,8") if env == "serving" else ()
    monkeypatch.setenv("COLUMNS", "200")
    known = set(re.findall(r"[\w.%/±()-]+", cli(*words).out))
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli(*words).out
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in narrow
    cut = {"ucbspec", "reward", "goodput", "kl-ucb", "(draft"}  # names that are folded
    missing = known - set(re.findall(r"[\w.%/±()-]+", narrow))
    assert not [word for word in missing if word not in cut], missing
