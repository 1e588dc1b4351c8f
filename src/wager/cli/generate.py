"""`wager generate`: one text."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wager.bench.verdict import MAT
from wager.cli import parameters
from wager.cli.files import check_new
from wager.cli.options import Options, System
from wager.cli.parameters import argument, opt
from wager.cli.screen import stage
from wager.cli.session import Session, open_session, quietly, recording
from wager.cli.shown import Explaining, Writer, check_explains, closing, legend, speeds
from wager.decoding.generation import Generation, Piece, token_view
from wager.policies.base import require

if TYPE_CHECKING:
    from wager.bench.compare import Comparison

_TEXT, _OUT = "Text", "Results"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt, and whether it is a message of a conversation."""

    prompt: Annotated[str | None, argument("The prompt; - reads it from standard input.")] = None
    file: Path | None = opt(None, "Read the prompt from this file; it follows PROMPT if both are given.")
    raw: bool = opt(False, "Continue the text instead of answering it as a chat message.", "--raw", panel=_TEXT)
    system: System = None

    def __post_init__(self) -> None:
        if self.raw and self.system is not None:
            raise ValueError("--system belongs to a conversation, and --raw is none; leave out one of them")

    def read(self) -> str:
        """The prompt from wherever it is to come."""
        if self.prompt is None and self.file is None:
            raise ValueError('give a prompt, as in wager generate "Why is the sky blue?", or --file, or - for stdin')
        try:
            given = sys.stdin.read() if self.prompt == "-" else self.prompt
            parts = [given, self.file.read_text(encoding="utf-8") if self.file is not None else None]
            text = "\n\n".join(filter(None, parts))
            text.encode()  # an argument that is not UTF-8 arrives in surrogates
        except UnicodeError:
            raise ValueError("the prompt is not text in UTF-8") from None
        require(bool(text.strip()), "the prompt is empty")
        return text

    def ids(self, session: Session, words: str) -> list[int]:
        """Its tokens: a chat message where the model has a chat template, else plain text."""
        model = session.options.model
        if self.system is not None and not session.chats:
            raise ValueError(f"{model} has no chat template, so there is no place for --system")
        if self.raw or not session.chats:
            ids: list[int] = session.tokenizer(words).input_ids
        else:
            before = [{"role": "system", "content": self.system}] if self.system is not None else []
            ids = session.chat_ids([*before, {"role": "user", "content": words}])
        if len(ids) >= session.limit:
            raise ValueError(f"the prompt has {len(ids):,} tokens, and {model} holds {session.limit:,} with the answer")
        return ids


@dataclass(frozen=True, slots=True)
class Results:
    """What to show of the text."""

    compare: bool = opt(False, "Time plain decoding too, and check that the texts are identical.", "--compare")
    show: bool = opt(False, "Colour every token by where it came from; without colours, mark each change.", "--show")
    as_json: bool = opt(False, "Print one JSON object: text, tokens, rounds, figures.", "--json")
    explain: bool = opt(False, "What the policy expected of each round, and what came.", "--explain", panel=_OUT)
    repeat: int = opt(2, "Runs of each way to decode in --compare; medians are reported.", panel=_OUT)
    trace: Path | None = opt(None, "Record every round in this new file; see wager lab trace.", panel=_OUT)

    def __post_init__(self) -> None:
        require(self.repeat >= 1, f"--repeat is at least 1, not {self.repeat}")
        require(not (self.as_json and self.show), "--json tells every token's source anyway; leave out --show")
        if self.trace is not None:
            check_new(self.trace, "trace")


@dataclass(slots=True)
class Made:
    """A text, and everything that may be told of it."""

    text: Generation
    seed: int | None
    pieces: list[Piece]
    explaining: Explaining | None
    comparison: "Comparison | None"


@parameters.options
def command(prompt: Prompt, options: Options, results: Results) -> None:
    """Generate a text with adaptive speculative decoding.

    The text goes to standard output as it comes; figures and everything else go to standard error.
    """
    if results.explain:
        check_explains(options.policy)
    words = prompt.read()
    told = Console(stderr=True, highlight=False)
    with quietly(options.model):
        session = open_session(options, told)
        made = _generate(session, prompt.ids(session, words), results, told)
        session.keep()
    if results.as_json:
        _print_json(session, made)
    else:
        _tell(session, made, told, show=results.show)
    if made.comparison is not None and made.comparison.failed:
        raise typer.Exit(1)


def _generate(session: Session, ids: list[int], results: Results, told: Console) -> Made:
    """Generate and show the text, then compare."""
    from wager.bench.compare import Request

    seed, decoder = session.options.sampling_seed(), session.decoder
    request = Request(decoder, ids, session.options.settings(), seed)
    if results.compare:
        with stage("warming up …", told):
            request.warm_up()
    pieces: list[Piece] = []
    writer = Writer(Console(highlight=False), session.tokenizer, list(decoder.drafters), show=results.show)
    watch: Callable[[Piece], None] = pieces.append if results.as_json else writer
    explaining = Explaining(decoder.policy, watch) if results.explain else None
    try:
        with recording(session, results.trace):
            made = request.wager(watch=explaining or watch)
    except BaseException:  # what is said of it begins a line of its own
        if writer.begun:
            print(flush=True)
        raise
    if not results.as_json and not made.text.endswith("\n"):
        print(flush=True)
    comparison = None
    if results.compare:
        # measuring everything for a trace takes time, so such a run does not count
        counts = made if results.trace is None else None
        with stage("comparing with plain decoding …", told) as now:
            comparison = request.compare(counts, repeats=results.repeat, tell=_telling(now, counts))
    return Made(made, seed, pieces, explaining, comparison)


def _telling(now: Callable[[str], object], first: Generation | None) -> Callable[[int, int, str], None]:
    """Says which run begins, and how long all that are left take if they go on as those before them."""
    spent, began = 0.0 if first is None else first.prefill_seconds + first.decode_seconds, monotonic()

    def tell(number: int, of: int, way: str) -> None:
        done = number - 1
        left = f", about {(spent + monotonic() - began) / done * (of - done):.0f} s left" if done else ""
        now(f"comparing with plain decoding, run {number} of {of}: {way}{left} …")

    return tell


def _print_json(session: Session, made: Made) -> None:
    from wager.bench.engine import measured

    content = {
        **measured(session.decoder.model),
        **session.options.described(),
        **{"remembered": session.remembered, "seed": made.seed},
        "drafter_bytes": {name: d.memory for name, d in session.decoder.drafters.items()},
        **{"text": made.text.text, "tokens": made.text.tokens, "sources": made.text.sources},
        "pieces": token_view(made.pieces, session.tokenizer),
        "summary": made.text.summary(),
        "explained": made.explaining.json() if made.explaining else None,
        "compare": made.comparison.json() if made.comparison else None,
    }
    print(json.dumps(content, indent=1, ensure_ascii=False))


def _tell(session: Session, made: Made, told: Console, *, show: bool) -> None:
    """The figures, on standard error."""
    if show:
        told.print(legend(made.text, list(session.decoder.drafters)))
    for each in made.explaining.lines() if made.explaining else ():
        told.print(each, style="dim", markup=False, soft_wrap=True)
    line = closing(made.text)
    if (outcome := made.comparison) is not None:
        told.print(outcome.outcome(), markup=False, soft_wrap=True)
        told.print(speeds(outcome))
        told.print(f"{outcome.note()}; MAT: {MAT}", style="dim", soft_wrap=True)
        told.print(outcome.verdict(), markup=False, soft_wrap=True)
        if warning := outcome.unsteady():
            told.print(warning, style="yellow", soft_wrap=True)
        line = closing(made.text, outcome.speed("wager"), outcome.against())
    told.print(line, style="dim", markup=False, soft_wrap=True)
