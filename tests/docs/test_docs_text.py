"""In the running text of the README and the docs every option, command, link, result and variable must exist."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import LLAMA_CPP, PAGES, PIP, ROOT, TURNS, VLLM, every, options, prose, reproduction
from typer.core import TyperGroup

from wager.cli.app import MOVED, RENAMED, app

QUOTES = ("CHANGELOG.md", "reproduction.md")  # name commands as they were


def spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every option of every command, and what the changelog says that it was called."""
    whole = typer.main.get_command(app)
    context = typer.Context(whole, info_name="wager")
    return options(reproduction()).union(
        {"--help", *RENAMED}, *(options(command) for _, command in every(whole, context))
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_options_in_the_text_exist(page: Path, known: set[str]) -> None:
    named = {option for span in spans(page) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}
    others = VLLM | PIP | TURNS | LLAMA_CPP
    assert named <= known | others, f"{page.name} names {sorted(named - known - others)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    for span in spans(page):
        words = re.findall(r"[\w-]+", span.partition('"')[0])
        if words[:1] != ["wager"] or not span.startswith("wager ") or words[1].startswith("-"):
            continue
        command: Any = typer.main.get_command(app)
        context = typer.Context(command, info_name="wager")
        for word in words[1:]:
            if not isinstance(command, TyperGroup) or not re.fullmatch("[a-z]+", word):
                break
            if page.name in QUOTES and f"{context.info_name} {word}" in MOVED:
                break
            assert word in command.list_commands(context), f"{page.name}: `{span}`"
            command = command.resolve_command(context, [word])[1]
            context = typer.Context(command, info_name=word, parent=context)
        if not isinstance(command, TyperGroup):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", span))
            extra = VLLM if context.info_name == "serve" else set()
            assert named <= options(command) | extra, f"{page.name}: `{span}`"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_within_the_repository_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose(path)):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_results_that_a_page_names_are_there(path: Path) -> None:
    now, _, _ = path.read_text().partition("\n## Longer results still to come\n")  # of the reproduction's page
    for name in re.findall(r"`(results/[\w.-]+)`", now):
        assert (ROOT / name).is_file(), f"{path.name} names {name}"


def test_variables_that_pages_name_are_read_somewhere() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for page in PAGES:
        for name in set(re.findall(r"`(WAGER_[A-Z0-9_]+)`", prose(page))):
            assert name in source or name in os.environ, f"{page.name} names {name}"
