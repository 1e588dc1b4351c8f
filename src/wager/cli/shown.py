"""Text on the terminal as it comes, and the line of figures after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from wager.bench.compare import Comparison
    from wager.decoding.generation import Generation, Piece

COLOURS = ("bold green", "bold cyan", "bold magenta", "bold yellow", "bold blue", "bold red")
OWN = {"bonus": "dim underline", "plain": "dim"}  # tokens of the target itself


def plain_writer(console: Console) -> Callable[[Piece], None]:
    """Writes each piece as it is."""

    def write(piece: Piece) -> None:
        console.file.write(piece.text)
        console.file.flush()

    return write


def colours(drafters: Sequence[str]) -> dict[str, str]:
    """Source of a token -> its style."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(drafters)} | OWN


class SourceWriter:
    """Writes every token in the colour of where it came from; without colours, ``[source]`` stands at each change."""

    def __init__(self, console: Console, tokenizer: Any, drafters: Sequence[str]) -> None:
        from wager.decoding.generation import TextStream

        self.console, self.text, self.styles = console, TextStream(tokenizer), colours(drafters)
        self.coloured = coloured(console)
        self.last = ""

    def __call__(self, piece: Piece) -> None:
        for token, source in zip(piece.tokens, piece.sources, strict=True):
            self._write(self.text.push([token]), source)
        if not piece.tokens:  # the end
            self._write(self.text.end(), self.last)
        self.console.file.flush()

    def _write(self, text: str, source: str) -> None:
        if not text:
            return
        if self.coloured:
            self.console.print(Text(text, self.styles[source]), end="", soft_wrap=True)
        else:
            self.console.file.write(text if source == self.last else f"[{source}]{text}")
        self.last = source


def coloured(console: Console) -> bool:
    """Whether colours reach the reader."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def legend(generation: Generation, drafters: Sequence[str]) -> Text:
    """How many tokens came from where, in the colours they were shown in."""
    counts, styles = Counter(generation.sources), colours(drafters)
    parts = [Text(f"{name} {counts[name]}", style) for name, style in styles.items()]
    return Text("tokens by source: ").append_text(Text(", ").join(parts))


def closing(generation: Generation, speed: float | None = None, against: str = "") -> str:
    """Tokens per second, MAT, speed-up where it was measured, and arm shares in one line."""
    many = len(generation.tokens)
    parts = [
        f"{many:,} token{'s' * (many != 1)}",
        f"{generation.tokens_per_second if speed is None else speed:.1f} tokens/s",
        f"MAT {generation.mat:.2f}",
    ]
    if against:
        parts.append(against)
    if generation.shares:
        parts.append("arms " + " ".join(f"{arm} {share:.0%}" for arm, share in generation.shares.items()))
    why = {"length": "cut at --max-tokens", "context": "the model's context is full", "interrupted": "interrupted"}
    if generation.finish in why:
        parts.append(why[generation.finish])
    return ", ".join(parts)


def speeds(comparison: Comparison) -> Table:
    """All speeds: transformers', that of wager's forward alone, and that with drafts."""
    from wager.bench.compare import OFF, PLAIN, WAGER, WHAT

    table = Table(box=None, pad_edge=False)
    for column in ("", "tokens/s", "MAT", "speed-up", ""):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for name in (PLAIN, OFF, WAGER):
        speedup, mat = comparison.speedup(name), comparison.runs[name][0].mat
        cells = f"{comparison.speed(name):.1f}", f"{mat:.2f}", f"{speedup:.2f}x" if speedup else "-"
        table.add_row(name, *cells, f"[dim]{WHAT[name]}", style="bold" if name == WAGER else None)
    return table
