"""Imports go down only, and policies see no clock, tensor, file or engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import wager

ROOT = Path(wager.__file__).parent
FLOORS = [  # top floor first
    {"cli"},
    {"bench", "report"},
    {"decoding", "vllm"},
    {"simulation"},
    {"training"},
    {"eagle"},
    {"drafters"},
    {"models"},
    {"policies"},
    {"core"},
]
FLOOR = {name: len(FLOORS) - i for i, names in enumerate(FLOORS) for name in names}
NUMBERS = {"abc", "bisect", "collections", "heapq", "itertools", "math", "numpy"}
POLICIES_MAY_IMPORT = {"__future__", "dataclasses", "inspect", "typing", "wager", *NUMBERS}
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if len(path.relative_to(ROOT).parts) > 1)


def imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield str(node.module)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_down_only(module: Path) -> None:
    for name in imports(module):
        parts = name.split(".")
        if parts[0] == "wager" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != module.parts[0]:
            assert FLOOR[parts[1]] < FLOOR[module.parts[0]], f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] == "policies"], ids=str)
def test_policies_import_nothing_but_numbers(module: Path) -> None:
    assert {name.split(".")[0] for name in imports(module)} <= POLICIES_MAY_IMPORT


def test_nothing_installed_imports_the_reproduction() -> None:
    for module in ROOT.rglob("*.py"):
        assert not any(name.split(".")[0] == "reproduction" for name in imports(module.relative_to(ROOT))), module
