"""The README and the docs as tests read them: blocks of code, running text, and the commands they may name."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from reproduction import turns

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Options of other programs that pages may name.
VLLM = {
    *("--port", "--max-model-len", "--max-num-seqs", "--enforce-eager", "--seed", "--tensor-parallel-size", "--dtype"),
    *("--cudagraph-capture-sizes", "--max-cudagraph-capture-size", "--speculative-config", "--scheduler-cls"),
    *("--data-parallel-size", "--host"),
}
LLAMA_CPP = {
    *("--model-draft", "--draft-max", "--draft-min", "--draft-p-min", "--spec-type"),
    *("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"),
    *("--lookup-cache-dynamic", "--lookup-cache-static"),
}
PIP = {"--no-deps", "--requirement", "--constraint", "--editable"}
TURNS = set(turns.arguments()._option_string_actions)  # python -m reproduction.turns


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.name}, line {self.line}"

    @property
    def first(self) -> str:
        """Its first words, as NOT_RUN names them; a comment after them is not part of it."""
        return self.code.split("\n", 1)[0].split("  #")[0].strip()


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in found]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def options(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")}


def every(command: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """A command and all below it, each with the words that call it."""
    yield context.command_path, command
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            below = command.resolve_command(context, [name])[1]
            yield from every(below, typer.Context(below, info_name=name, parent=context))


def reproduction() -> Any:
    """The command of `python -m reproduction`."""
    from reproduction.__main__ import command

    alone = typer.Typer()
    alone.command()(command)
    return typer.main.get_command(alone)
