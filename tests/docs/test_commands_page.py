"""docs/commands.md lists every command of the command line, and no other, with options that each of them has."""

import re
from typing import Any

import pytest
import typer
from pages import ROOT, every, options
from typer.core import TyperGroup

from wager.cli.app import app

PAGE = ROOT / "docs" / "commands.md"


@pytest.fixture(scope="module")
def there() -> dict[str, Any]:
    """The commands that can be called, by their words."""
    whole = typer.main.get_command(app)
    found = every(whole, typer.Context(whole, info_name="wager"))
    return {name: one for name, one in found if not isinstance(one, TyperGroup) or one.invoke_without_command}


def listed(page: str) -> dict[str, set[str]]:
    """The commands in the first column of its tables, each with the options in its row."""
    rows = re.findall(r"^\| `(wager[ a-z-]+)` \| (.*)$", page, flags=re.MULTILINE)
    assert len(rows) == len({name for name, _ in rows}), "a command has two rows"
    return {name: set(re.findall(r"`(--[a-z-]+)`", rest)) for name, rest in rows}


def test_the_page_has_every_command_and_no_other(there: dict[str, Any]) -> None:
    assert set(listed(PAGE.read_text(encoding="utf-8"))) == set(there)


def test_a_row_names_options_of_its_own_command(there: dict[str, Any]) -> None:
    for name, named in listed(PAGE.read_text(encoding="utf-8")).items():
        assert named <= options(there[name]), f"{name} has no {sorted(named - options(there[name]))}"


def test_a_command_or_an_option_that_is_wrong_is_found() -> None:
    page = "| `wager lab traces` | a trace | `--jsn` | |\n| `wager top` | a server | | |"
    assert listed(page) == {"wager lab traces": {"--jsn"}, "wager top": set()}
