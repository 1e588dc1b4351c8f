"""Every Python block of the README and the docs runs as it stands, after those before it on its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_the_python_blocks_of_a_page_run(path: Path) -> None:
    page: dict[str, Any] = {"__name__": "page"}
    for number, code in enumerate(blocks(path)):
        exec(compile(code, f"{path.name}, block {number}", "exec"), page)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_within_the_repository_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_results_that_a_page_names_are_there(path: Path) -> None:
    for name in re.findall(r"`(results/[\w.-]+)`", path.read_text()):
        assert (ROOT / name).is_file(), f"{path.name} names {name}"
