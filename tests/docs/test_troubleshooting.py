"""Every message that docs/troubleshooting.md quotes is one that the program can print."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SHORTEST = 12  # characters that some part of a message must have, to be found by


def quoted(page: str) -> list[str]:
    """The messages in the first column of its tables."""
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| message"))]
    return [span for row in rows for span in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@cache
def texts() -> list[list[str]]:
    """The texts in the source, module by module, without docstrings: of an f-string the parts between its values."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        strings = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in documentation)
        found.append([string.value for string in strings if isinstance(string.value, str)])
    return found


def printed(message: str) -> bool:
    """Whether one module has all parts of a message, an ellipsis standing for what differs."""
    parts = [part.strip() for part in message.split("…") if part.strip(" ,;:().")]
    return any(all(any(part in text for text in module) for part in parts) for module in texts())


def test_every_quoted_message_is_in_the_source() -> None:
    messages = quoted(PAGE.read_text(encoding="utf-8"))
    assert len(messages) > 80
    assert [message for message in messages if not printed(message)] == []


def test_messages_are_long_enough_to_be_found() -> None:
    vague = [m for m in quoted(PAGE.read_text(encoding="utf-8")) if max(map(len, m.split("…"))) < SHORTEST]
    assert vague == []


@pytest.mark.parametrize("wrong", ["the prompt is quite empty", "the prompt is empty … and the moon is full"])
def test_a_message_that_is_not_printed_is_found(wrong: str) -> None:
    assert not printed(wrong)
    assert quoted(f"| message | why |\n| --- | --- |\n| `{wrong}` | `other` |") == [wrong]
