"""The commands as a whole: one screen of help, old names, and options made from dataclasses."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from wager.cli import parameters
from wager.cli.app import COMMANDS, GROUPS, LAB, MOVED, app, loaded
from wager.cli.parameters import option, parse_ints

FIRST = 12  # options of the first panel of a long help, --help among them


def test_help_fits_one_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["--help"]).output
    assert len(shown.splitlines()) <= 32
    for name in (*COMMANDS, "lab"):
        assert f"│ {name} " in shown


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, entries in GROUPS.items() for name in entries], ids=str
)
def test_a_command_is_summed_up_in_the_words_of_its_own_help(group: str, name: str) -> None:
    entry = GROUPS[group][name]
    own = " ".join(loaded(name, entry).help.split())
    assert own.startswith(entry.summary.rstrip("."))


@pytest.mark.parametrize("old", MOVED)
def test_an_old_command_says_where_it_is_now(old: str) -> None:
    words = old.removeprefix("wager ").split()
    done = CliRunner().invoke(app, [*words, "--help"])
    assert str(done.exception) == f"wager {' '.join(words)} is now {MOVED[old]}"
    now = MOVED[old].split()
    assert now[:2] != ["wager", "lab"] or now[2] in LAB


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_a_long_help_begins_with_what_is_used_first(name: str) -> None:
    params = [param for param in loaded(name, COMMANDS[name]).params if param.param_type_name == "option"]
    assert len([param for param in params if param.rich_help_panel is None]) <= FIRST


@dataclass(frozen=True, slots=True)
class Size:
    width: Annotated[int, option("Tokens.", "--width", "-w")] = 4
    name: Annotated[str | None, option("Its name.", panel="More", shown="none")] = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"--width is at least 1, not {self.width}")


@dataclass(frozen=True, slots=True)
class Wanted(Size):
    wanted: Annotated[bool, option("Whether.", "--wanted/--unwanted")] = False


def made(command: Any) -> typer.Typer:
    one = typer.Typer()
    one.command()(parameters.options(command))
    return one


def test_a_command_is_given_its_dataclass_filled() -> None:
    seen: list[Any] = []

    def command(file: str, size: Wanted, last: int = 7) -> None:
        """What it does."""
        seen.append((file, size, last))

    one = made(command)
    assert CliRunner().invoke(one, ["f"]).exit_code == 0
    words = ["f", "-w", "3", "--name", "x", "--wanted", "--last", "8"]
    assert CliRunner().invoke(one, words).exit_code == 0
    assert seen == [("f", Wanted(4, None, False), 7), ("f", Wanted(3, "x", True), 8)]
    assert "What it does." in CliRunner().invoke(one, ["--help"]).output


def test_a_command_may_have_defaults_of_its_own_and_its_dataclass_refuses_what_it_cannot_hold() -> None:
    seen: list[Any] = []

    def command(size: Size = Size(9)) -> None:  # noqa: B008
        seen.append(size)

    assert CliRunner().invoke(made(command), []).exit_code == 0
    assert str(CliRunner().invoke(made(command), ["-w", "0"]).exception) == "--width is at least 1, not 0"
    assert seen == [Size(9)]


def test_whole_numbers_are_read_or_refused_by_the_name_of_their_option() -> None:
    assert parse_ints("1,20", "--x") == (1, 20)
    assert parse_ints("1-3,8", "--x") == (1, 2, 3, 8)
    for text in ("1,", "1-", "-1", "a-b", "1-2-3"):
        with pytest.raises(ValueError, match="--x takes whole numbers"):
            parse_ints(text, "--x")
    for text in ("8-1", "1-1000000000"):
        with pytest.raises(ValueError, match=f"the range {text} of --x is empty or longer than 1,000"):
            parse_ints(text, "--x")
