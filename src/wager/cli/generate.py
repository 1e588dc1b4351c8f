"""`wager generate`: one text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wager.cli import options as given
from wager.cli.compare import WAGER, Comparison, compare, warm_up
from wager.cli.explained import Explained, Explaining, check_explains
from wager.cli.files import provenance
from wager.cli.options import Options, check_new
from wager.cli.session import Session, open_session, quietly, recording
from wager.cli.shown import SourceWriter, closing, legend, plain_writer

if TYPE_CHECKING:
    from wager.decoding.generation import Piece

_OUT = "Results"


def command(
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to say to the model; - reads it from standard input.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the prompt from this file; it follows PROMPT if both are given.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on with the text instead of answering it as a chat message.")
    ] = False,
    model: given.Model = given.MODEL,
    policy: given.PolicySpec = given.POLICY,
    drafters: given.Drafters = given.DRAFTERS,
    lengths: given.Lengths = given.LENGTHS,
    trees: given.Trees = "",
    dtype: given.Dtype = "auto",
    device: given.Device = "auto",
    memory: given.Memory = None,
    max_tokens: given.MaxTokens = given.MAX_TOKENS,
    system: given.System = None,
    stop: given.Stop = None,
    repetition_penalty: given.RepetitionPenalty = None,
    temperature: given.Temperature = 0.0,
    top_p: given.TopP = None,
    top_k: given.TopK = None,
    min_p: given.MinP = None,
    seed: given.Seed = None,
    comparing: Annotated[
        bool,
        typer.Option(
            "--compare", help="Time plain decoding too, and check that the texts are identical.", rich_help_panel=_OUT
        ),
    ] = False,
    repeat: Annotated[
        int, typer.Option(help="Runs of each way to decode in --compare; medians are told.", rich_help_panel=_OUT)
    ] = 2,
    show: Annotated[
        bool,
        typer.Option(
            "--show",
            help="Colour every token by where it came from; without colours, mark each change.",
            rich_help_panel=_OUT,
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Tell for every round what the policy expected of its two best arms, and what came.",
            rich_help_panel=_OUT,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object: text, tokens, rounds, figures.", rich_help_panel=_OUT),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Record every round in this new file; see wager trace.", rich_help_panel=_OUT),
    ] = None,
) -> None:
    """Generate a text, faster, and not a token changed.

    The text goes to standard output as it comes; figures and everything else go to standard error.
    """
    if repeat < 1:
        raise ValueError(f"--repeat is at least 1, not {repeat}")
    if as_json and show:
        raise ValueError("--json tells every token's source anyway; leave out --show")
    if raw and system is not None:
        raise ValueError("--system belongs to a conversation, and --raw is none; leave out one of them")
    if trace is not None:
        check_new(trace)
    options = Options(
        model=model,
        policy=policy,
        drafters=drafters,
        lengths=lengths,
        trees=trees,
        dtype=dtype,
        device=device,
        memory=memory,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop,
        seed=seed,
    )
    if explain:
        check_explains(policy)
    words = read_prompt(prompt, file)
    out, told = Console(highlight=False), Console(stderr=True, highlight=False)
    with quietly():
        session = open_session(options, told)
        ids = _ids(session, words, system, raw=raw)
        drawn = options.sampling_seed()
        if comparing:
            warm_up(session, ids)
        names = list(session.decoder.drafters)
        steps: list[Piece] = []
        watch: Callable[[Piece], None] = steps.append
        if not as_json:
            watch = SourceWriter(out, session.tokenizer, names) if show else plain_writer(out)
        explained: list[Explained] | None = None
        if explain:
            watch = explaining = Explaining(session.decoder.policy, watch)
            explained = explaining.rounds
        with recording(session, trace):
            made = session.play(ids, watch=watch, seed=drawn)
        if not as_json and not made.text.endswith("\n"):
            print(flush=True)
        outcome: Comparison | None = None
        if comparing:
            if not as_json:
                told.print("comparing with plain decoding …", style="dim")
            # measuring everything for a trace takes time, so such a run does not count
            outcome = compare(session, ids, made if trace is None else None, repeats=repeat, seed=drawn)
        session.keep()
    if as_json:
        from wager.decoding.generation import token_view

        content = {
            **provenance(),
            **options.described(),
            "remembered": session.remembered,
            "drafter_bytes": {name: d.memory for name, d in session.decoder.drafters.items()},
            "seed": drawn,
            "text": made.text,
            "tokens": made.tokens,
            "sources": made.sources,
            "pieces": token_view(steps, session.tokenizer),
            "summary": made.summary(),
            "explained": None if explained is None else [each.json() for each in explained],
            "compare": outcome.json() if outcome else None,
        }
        print(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        if show:
            told.print(legend(made, names))
        for each in explained or ():
            told.print(each.line(), style="dim", markup=False, soft_wrap=True)
        if outcome is None:
            line = closing(made)
        else:
            told.print(outcome.table())
            told.print(outcome.note(), style="dim", soft_wrap=True)
            told.print(outcome.verdict(), markup=False, soft_wrap=True)
            if warning := outcome.unsteady():
                told.print(warning, style="yellow", soft_wrap=True)
            line = closing(made, outcome.speed(WAGER), outcome.against())
        told.print(line, style="dim", markup=False, soft_wrap=True)
    if outcome is not None and outcome.difference is not None and not outcome.difference.tie:
        raise typer.Exit(1)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from wherever it is to come."""
    if prompt is None and file is None:
        raise ValueError(
            'give a prompt, as in wager generate "Why is the sky blue?", or --file, or - for standard input'
        )
    try:
        parts = [] if prompt is None else [sys.stdin.read() if prompt == "-" else prompt]
        if file is not None:
            parts.append(file.read_text(encoding="utf-8"))
        text = "\n\n".join(part for part in parts if part)
        text.encode()  # an argument that is not UTF-8 arrives in surrogates
    except UnicodeError:
        raise ValueError("the prompt is not text in UTF-8") from None
    if not text.strip():
        raise ValueError("the prompt is empty")
    return text


def _ids(session: Session, words: str, system: str | None, *, raw: bool) -> list[int]:
    """The prompt's tokens: a chat message where the model knows conversations, else plain text."""
    if system is not None and not session.chats:
        raise ValueError(f"{session.options.model} has no chat template, so there is no place for --system")
    if raw or not session.chats:
        ids = session.text_ids(words)
    else:
        before = [{"role": "system", "content": system}] if system is not None else []
        ids = session.chat_ids([*before, {"role": "user", "content": words}])
    if len(ids) >= session.limit:
        raise ValueError(
            f"the prompt has {len(ids):,} tokens, and {session.options.model} holds {session.limit:,} "
            "with at least one new one"
        )
    return ids
