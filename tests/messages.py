"""The sentences that the source can say to a user, read from its syntax trees; `…` stands for what is put in."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
ERRORS = {"ValueError", "TypeError", "RecordingError", "TraceError", "BadParameter", "UsageError"}
LOGGED = {"warning", "error", "warn"}
VARIANTS = 16  # of one sentence at most: those of its conditional parts
Names = Mapping[str, list[ast.expr]]


def called(node: ast.expr) -> str:
    """The last word of what is called."""
    found = node.func if isinstance(node, ast.Call) else node
    return found.id if isinstance(found, ast.Name) else found.attr if isinstance(found, ast.Attribute) else ""


def sentences(node: ast.expr, names: Names) -> list[str]:
    """What an expression may read as."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [re.sub(r"%[srdgf]", "…", node.value)]
    if isinstance(node, ast.FormattedValue):
        inner = node.value
        return sentences(inner, names) if isinstance(inner, ast.IfExp | ast.BinOp | ast.Name | ast.Constant) else ["…"]
    if isinstance(node, ast.JoinedStr | ast.BinOp):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
        whole = [""]
        for part in parts:
            whole = [before + after for before in whole for after in sentences(part, names)][:VARIANTS]
        return whole
    if isinstance(node, ast.IfExp):
        return sentences(node.body, names) + sentences(node.orelse, names)
    if isinstance(node, ast.Name) and node.id in names:
        others = {name: values for name, values in names.items() if name != node.id}
        return [one for value in names[node.id] for one in sentences(value, others)][:VARIANTS]
    return ["…"]


def spoken(node: ast.AST) -> ast.expr | None:
    """The sentence in a node that raises an error, refuses a parameter or logs a warning."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and called(node.exc) in ERRORS:
        return node.exc.args[0] if node.exc.args else None
    if isinstance(node, ast.Call) and called(node) == "require" and len(node.args) > 1:
        return node.args[1]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in LOGGED and node.args:
        return node.args[0] if called(node.func.value) in ("log", "logger", "warnings") else None
    return None


def assigned(tree: ast.AST) -> Names:
    """The texts that names stand for, in a module."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(
            node.value, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp
        ):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def of(source: str) -> Iterator[str]:
    """The sentences of a module."""
    tree = ast.parse(source)
    names = assigned(tree)
    for node in ast.walk(tree):
        if (said := spoken(node)) is not None:
            yield from (re.sub(r"…+", "…", one).strip() for one in sentences(said, names))


@cache
def everything() -> frozenset[tuple[str, str]]:
    """Every module with every sentence it can say, but for those made elsewhere."""
    modules = {path.relative_to(SOURCE / "wager").as_posix(): path for path in SOURCE.rglob("*.py")}
    return frozenset((name, one) for name, path in modules.items() for one in of(path.read_text()) if one.strip("… :"))
