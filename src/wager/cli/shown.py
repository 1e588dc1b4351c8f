"""Text on the terminal as it comes, what the policy expected of each round, and the line of figures after it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.cli.screen import table
from wager.core import Round
from wager.decoding.generation import Generation, Piece, TextStream
from wager.policies import POLICIES
from wager.policies.base import Option, Policy, require
from wager.policies.registry import parse

if TYPE_CHECKING:
    from wager.bench.compare import Comparison

COLOURS = ("bold green", "bold cyan", "bold magenta", "bold yellow", "bold blue", "bold red")
OWN = {"bonus": "dim underline", "plain": "dim"}  # tokens of the target itself
ENDS = {"length": "cut at --max-tokens", "context": "the model's context is full", "interrupted": "interrupted"}


def colours(drafters: Sequence[str]) -> dict[str, str]:
    """Source of a token -> its style."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(drafters)} | OWN


class Writer:
    """Writes the text as it comes; to ``show`` sources, each token in the colour of its own.

    Without colours, ``[source]`` stands at each change.
    """

    def __init__(self, console: Console, tokenizer: Any, drafters: Sequence[str], *, show: bool) -> None:
        self.console, self.text, self.styles, self.show = console, TextStream(tokenizer), colours(drafters), show
        self.coloured = console.is_terminal and console.color_system is not None and not console.no_color
        self.last, self.begun = "", False  # the source written last, and whether anything was written

    def __call__(self, piece: Piece) -> None:
        self.begun = True
        if not self.show:
            self.console.file.write(piece.text)
        elif piece.tokens:
            for token, source in zip(piece.tokens, piece.sources, strict=True):
                self._write(self.text.push([token]), source)
        else:  # the end
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


def legend(generation: Generation, drafters: Sequence[str]) -> Text:
    """How many tokens came from where, in the colours they were shown in."""
    counts = Counter(generation.sources)
    parts = [Text(f"{name} {counts[name]}", style) for name, style in colours(drafters).items()]
    return Text("tokens by source: ").append_text(Text(", ").join(parts))


def closing(generation: Generation, speed: float | None = None, against: str = "") -> str:
    """Tokens per second, MAT, speed-up where it was measured, and arm shares in one line."""
    many = len(generation.tokens)
    pace = generation.tokens_per_second if speed is None else speed
    parts = [f"{many:,} token{'s' * (many != 1)}", f"{pace:.1f} tokens/s", f"MAT {generation.mat:.2f}", against]
    if generation.shares:
        parts.append("arms " + " ".join(f"{arm} {share:.0%}" for arm, share in generation.shares.items()))
    return ", ".join(filter(None, [*parts, ENDS.get(generation.finish, "")]))


def speeds(comparison: "Comparison") -> Table:
    """All speeds: with speculation, of the same engine without it, and transformers'."""
    from wager.bench.compare import OFF, PLAIN, WAGER, WHAT

    shown = table("", ("", "x off", f"x {PLAIN}", "tokens/s", "MAT", ""), box=None, pad_edge=False)
    shown.columns[-1].justify = "left"
    for name in (PLAIN, OFF, WAGER):
        ratios = [f"{ratio:.2f}" if (ratio := comparison.speedup(name, over)) else "-" for over in (OFF, PLAIN)]
        cells = *ratios, f"{comparison.speed(name):.1f}", f"{comparison.runs[name][0].mat:.2f}"
        shown.add_row(name, *cells, f"[dim]{WHAT[name]}", style="bold" if name == WAGER else None)
    return shown


def check_explains(spec: str) -> None:
    """Refuse a policy that does not say what it expects."""
    name, _ = parse(spec)
    able = [key for key, entry in POLICIES.items() if entry.make.explains]
    require(name in able, f"policy {name!r} does not say what it expects of its arms; these do: {', '.join(able)}")


class Explaining:
    """Notes what the policy expected of every round that comes by, and passes the piece on."""

    def __init__(self, policy: Policy, then: Callable[[Piece], None]) -> None:
        self.policy, self.then = policy, then
        policy.late = False  # type: ignore[misc]  # of this one: it is asked for its options before it chooses again
        # a round, what was expected of its arm (None: it was not weighed, or the choice before it stands), and of the
        # best of the others
        self.rounds: list[tuple[Round, Option | None, Option | None]] = []

    def __call__(self, piece: Piece) -> None:
        if piece.round is not None:
            options = [] if piece.stands else self.policy.options()
            ours = next((option for option in options if option.arm == piece.round.arm), None)
            other = next((option for option in options if option is not ours), None)
            self.rounds.append((piece.round, ours, other))
        self.then(piece)

    def lines(self) -> list[str]:
        return [explained(i, *each) for i, each in enumerate(self.rounds, 1)]

    def json(self) -> list[dict[str, Any]]:
        told = []
        for i, (played, *both) in enumerate(self.rounds, 1):
            came: dict[str, Any] = {
                "accepted": played.accepted,
                "drafted": played.drafted,
                "seconds": round(played.seconds, 6),
            }
            expected, other = (option and {
                "arm": str(option.arm), "tokens": round(option.tokens, 4),
                "seconds": round(option.seconds, 6) if option.timed else None,
                "tokens_per_second": round(option.goodput, 3) if option.timed else None,
            } for option in both)  # fmt: skip
            trial = exploration(*both)
            tried = trial and {"cost_seconds": round(trial[0], 6), "may_bring_tokens_per_second": round(trial[1], 3)}
            came["exploration"] = tried
            which = {"round": i, "arm": str(played.arm), "stands": both == [None, None]}
            told.append({**which, "expected": expected, "runner_up": other, **came})
        return told


def exploration(played: Option | None, other: Option | None) -> tuple[float, float] | None:
    """Of a round whose arm is not expected to be the fastest: seconds it is expected to lose, and tokens a second if
    its draft is accepted whole, which is why it is tried; None for any other round."""
    if played is None or other is None or not played.timed or played.goodput >= other.goodput:
        return None
    return played.seconds - played.tokens / other.goodput, (played.arm.length + 1) / played.seconds


def explained(number: int, played: Round, ours: Option | None, other: Option | None) -> str:
    """A round in one line: its arm, what was expected of that and of another, and what came."""
    options = [option for option in (ours, other) if option is not None]
    came = f"{played.accepted}/{played.drafted} accepted, {played.seconds * 1e3:.2f} ms"
    words = [
        f"{o.arm}: {o.tokens:.2f} tokens" + (f", {o.seconds * 1e3:.2f} ms, {o.goodput:.1f}/s" if o.timed else "")
        for o in options
    ]
    if not options:
        words.append("the last choice stands")
    elif ours is not None and not ours.timed:
        words.append("nothing was timed yet")
    elif other is None and not played.arm.length:
        words.append("times plain decoding, or nothing was proposed")
    elif (trial := exploration(ours, other)) is not None:
        brings = f"may bring {trial[1]:.1f}/s" if played.arm.length else "times plain decoding"
        words.append(f"exploration: costs about {trial[0] * 1e3:.2f} ms, {brings}")
    return " | ".join((f"{number:5} {played.arm!s:>18}", *words, came))
