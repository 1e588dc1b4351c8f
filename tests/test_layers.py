"""Imports go down only, policies see no clock, tensor, file or engine, and files and functions are short."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import wager

ROOT = Path(wager.__file__).parent
FLOORS = (
    "core, policies, models, drafters, eagle, training, simulation, decoding vllm, bench report, cli"  # lowest first
)
FLOOR = {name: i for i, names in enumerate(FLOORS.split(", ")) for name in names.split()}
NUMBERS = {"abc", "bisect", "collections", "functools", "itertools", "math", "operator", "numpy"}
POLICIES_MAY_IMPORT = {"__future__", "dataclasses", "inspect", "typing", "wager", *NUMBERS}
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if len(path.relative_to(ROOT).parts) > 1)


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


def imports(module: Path) -> Iterator[str]:
    for node in ast.walk(parsed(module)):
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


def module_file(parts: list[str]) -> Path | None:
    path = Path(*parts)
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if parts and (ROOT / p).is_file()), None)


def needed(module: Path) -> set[Path]:
    """The package's modules that must be there before this one: what it imports as it is loaded."""
    found = set()
    for node in parsed(module).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("wager"):
            parts = str(node.module).split(".")[1:]
            inside = [module_file([*parts, alias.name]) for alias in node.names]
            # a package counts where a name of its own is taken, not where one of its modules is
            found |= {path for path in (*inside, None if all(inside) else module_file(parts)) if path}
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    needs = {module: needed(module) for module in (p.relative_to(ROOT) for p in ROOT.rglob("*.py"))}
    done: set[Path] = set()

    def visit(module: Path, path: tuple[Path, ...]) -> None:
        assert module not in path, f"a circle: {' -> '.join(map(str, (*path[path.index(module) :], module)))}"
        if module not in done:
            for other in sorted(needs[module] - {module}):
                visit(other, (*path, module))
            done.add(module)

    for module in needs:
        visit(module, ())


def test_files_and_functions_are_short() -> None:
    """Lists of parameters, which kernels and commands explain one by one, do not count."""
    checkout = Path(__file__).parent.parent
    for path in sorted(
        path for folder in ("src", "reproduction", "tests") for path in (checkout / folder).rglob("*.py")
    ):
        text = path.read_text()
        assert len(text.splitlines()) <= 350, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.body[0].lineno < 60, f"{path}: {node.name}"
