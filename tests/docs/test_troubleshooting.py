"""docs/troubleshooting.md quotes messages that the program can print, and every one that does not explain itself."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from messages import everything, of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PLAIN = Path(__file__).with_name("plain_messages.txt")
SHORTEST = 12  # characters that some part of a message must have, to be found by
# Forms of messages that explain themselves.
REMEDIES = (
    "answer|begin|build|choose|delete|download|give|install|leave|lower|make|measure|name|pass|put|raise|record|remove|"
    "run|say|see|start|take|train|use|wait|write"
)
FORMS = (
    r"\bnot (of |at |an? )?…(,| and| with length|$| \(…\)$| …$|; plain)",  # the wrong value, after what would be right
    r"(is|are) at least \d|\blies? (strictly )?(in|between)\b|(is|are) 0 or more",  # what would be right
    r"; (choose from|there are|it takes|it has|the \w+ are|these do:) .*…",  # what there is
    rf"; ({REMEDIES})\b",  # what to do
    r"\bneeds?\b.* at least one\b|\bas in\b|\bsuch as\b|\bis now\b|\btwice\b",  # what is missing, and an example
)


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


def covers(quote: str, message: str) -> bool:
    """Whether a quote on the page is of this message: its parts are in it, in their order."""
    at = 0
    for part in (part.strip() for part in quote.split("…") if part.strip(" ,;:().")):
        found = message.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return at > 0


def printed(message: str) -> bool:
    """Whether one module has all parts of a message, an ellipsis standing for what differs."""
    parts = [part.strip() for part in message.split("…") if part.strip(" ,;:().")]
    if any(covers(message, said) for _, said in everything()):
        return True
    return any(all(any(part in text for text in module) for part in parts) for module in texts())


def plain() -> set[str]:
    """The messages that need no row, though they have none of the forms."""
    lines = PLAIN.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def unexplained(messages: set[str], quotes: list[str]) -> list[str]:
    """Messages that are neither on the page nor explain themselves."""
    left = (one for one in messages if not any(re.search(form, one) for form in FORMS))
    return sorted(one for one in left if one not in plain() and not any(covers(quote, one) for quote in quotes))


def test_every_message_is_on_the_page_or_explains_itself() -> None:
    said = {message for _, message in everything()}
    assert len(said) > 400
    assert unexplained(said, quoted(PAGE.read_text(encoding="utf-8"))) == []


def test_the_list_of_plain_messages_holds_no_other() -> None:
    said = {message for _, message in everything()}
    assert sorted(plain() - said) == [], "these are no longer in the source"


@pytest.mark.parametrize(
    "code",
    [
        'raise ValueError(f"the moon is {phase}")',
        'require(full, "the moon is " + phase)',
        'log.warning("the moon is %s", phase)',
        'text = f"the moon is {phase}"\nraise TypeError(text)',
        'raise ValueError(f"the moon is {phase}" if night else "the sun shines; choose from …")',
    ],
)
def test_a_message_that_is_nowhere_is_found(code: str) -> None:
    assert unexplained(set(of(code)), ["the sun is …"]) == ["the moon is …"]
    assert unexplained(set(of(code)), ["the moon is …"]) == []


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
