"""`wager tune`: should this model speculate, with what, and how much does it bring? In about two minutes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from wager.bench import suite as suites
from wager.bench import verdict, workloads
from wager.bench.summary import summarize
from wager.cli import options as given
from wager.cli.files import provenance
from wager.cli.options import MODEL, Options
from wager.cli.suite import checked, model_name, show
from wager.drafters import registry, shipped

if TYPE_CHECKING:
    from wager.bench.answers import Answer
    from wager.bench.peers import Method
    from wager.bench.suite import Question

PROMPTS = 10  # that answers are cut for, so that as many can be played in the time
FEWEST, MOST = 16, 96  # tokens of an answer
RESERVE = 0.04  # of the time, for the checks at the end
LENGTHS = {"suffix": (4, 8)}  # of the arms played alone; other drafters:
CHEAP, DEAR = (4,), (3,)
ANSWERS = {
    verdict.FASTER: "Yes, speculate.",
    verdict.SLOWER: "No, do not speculate.",
    verdict.EVEN: "It makes no clear difference whether you speculate.",
    verdict.UNTOLD: "So few prompts tell too little to say.",
}


def command(
    model: Annotated[
        str, typer.Argument(help="smollm2-135m (embedded), a folder, or a Hugging Face id.", metavar="MODEL")
    ] = MODEL,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='Your own prompts: one a line, or JSON lines with "prompt" or "messages".',
            show_default="prompts that come with wager",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time for all of it, loading the model included.")] = 2.0,
    drafters: given.Drafters = given.DRAFTERS,
    device: given.Device = "auto",
    dtype: given.Dtype = "auto",
    longest: Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts lose their middle.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Find out in two minutes whether your model should speculate, and with what.

    What the policy auto learns meanwhile is kept, and wager generate and wager chat start from it.
    """
    began = monotonic()
    if not 0 < minutes <= 24 * 60:
        raise ValueError(f"--minutes is above 0 and at most a day, not {minutes:g}")
    options = Options(model=model, drafters=drafters, device=device, dtype=dtype)
    chosen = workloads.in_turn(workloads.own_prompts() if prompts is None else workloads.read_file(prompts), 0)
    told = Console(stderr=True, highlight=False)
    ends = began + 60 * minutes * (1 - RESERVE)

    from wager.bench.engine import described
    from wager.cli.session import open_session, quietly

    with quietly():
        session = open_session(options, told)
        target, tokenizer = session.decoder.model, session.tokenizer
        if session.limit < 16 + MOST:
            raise ValueError(f"{model} holds {session.limit:,} tokens: too few for answers of {MOST} and a prompt")
        asked = suites.questions(chosen, tokenizer, min(longest, session.limit - MOST), target.device)
        with told.status("warming up …", spinner="dots") as status:
            named, methods = _methods(options, session.decoder, target, tokenizer)
            pace = _warm(methods, target.device)
            tokens = answer_tokens(pace, len(methods), ends - monotonic())
            answers, played = play(
                methods, asked, tokens, ends, lambda n, left: status.update(f"prompt {n}, {left:.0f} s left …")
            )
        if not played:
            more = 2 * max(1.0, pace * tokens * len(methods) + monotonic() - began) / 60
            raise ValueError(f"{minutes:g} minutes were too short for one prompt; try --minutes {ceil(more)}")
        heads = [each.json() for each in named]
        summary = summarize(heads, [question.json() for question in asked[:played]], answers)
        summary |= checked(answers, methods, target, asked[:played])
        session.keep()
    every = summary["tasks"][0]["methods"]
    head = verdict.headline(every)
    answer = ANSWERS[verdict.standing(head, "over_off_interval" if head["over_off"] else "interval")]
    said = [*([answer] if summary["unsteady"] <= verdict.WILD else []), *verdict.words(summary, options.specs)]
    took = monotonic() - began
    count = f"{played} of {len(asked)} prompts, {tokens} tokens an answer, {took:.0f} s"
    if as_json:
        content = {
            **provenance(),
            "model": model_name(model),
            **described(target),
            "minutes": minutes,
            "seconds": round(took, 1),
            "prompts": {"given": len(asked), "played": played},
            "max_tokens": tokens,
            "drafters": options.specs,
            "remembered": session.remembered,
            "verdict": said,
            "summary": summary,
        }
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    for sentence in said:
        print(sentence)
    print(f"Measured on {count}.\n")
    show({**summary, "tasks": summary["tasks"][:1]})  # of a task there are too few prompts to tell
    print(f"What `auto` learned is kept; this starts from it:\n  {_generate(options)}")


def _methods(options: Options, decoder: Any, target: Any, tokenizer: Any) -> tuple[list[suites.Named], list[Method]]:
    """Plain decoding, off, one or two arms of every drafter, and auto exactly as `wager generate` runs it."""
    from wager.bench.peers import decoder_method
    from wager.models.fingerprint import fingerprint

    specs = shipped.expand(options.specs, getattr(target, "name_or_path", ""), lambda: fingerprint(target))
    arms = [arm for spec in specs for arm in fixed_arms(spec)]
    named = suites.parse_methods(",".join(["transformers", "off"]))
    named += [suites.Named(arm, "arm") for arm in arms]
    methods = suites.build(named, target, tokenizer, tokens=options.max_tokens, specs=specs)
    return [*named, suites.Named("auto", "policy")], [*methods, decoder_method("auto", decoder)]


def fixed_arms(spec: str) -> list[str]:
    """The arms of a drafter that are played alone."""
    name, _ = registry.parse(spec)
    dear = name.partition(":")[0] in ("eagle", "draft", "draft-model")
    return [f"{name}:{length}" for length in LENGTHS.get(name, DEAR if dear else CHEAP)]


def _warm(methods: Sequence[Method], device: Any) -> float:
    """Warm every method up, and forget what that taught; seconds a token of the slowest."""
    from wager.bench.peers import warm_up

    paces = []
    for method in methods:
        warm_up(method, device, FEWEST)  # the first call of all also loads what is loaded when it is needed
        before = monotonic()
        count = warm_up(method, device, FEWEST)
        paces.append((monotonic() - before) / count)
        if method.decoder is not None:
            method.decoder.reset()
    return max(paces)


def answer_tokens(pace: float, methods: int, seconds: float) -> int:
    """Tokens an answer, so that enough prompts can be played in the time; ``pace`` is seconds a token."""
    return max(FEWEST, min(MOST, int(seconds / (PROMPTS * methods * pace))))


def play(
    methods: Sequence[Method],
    asked: Sequence[Question],
    tokens: int,
    ends: float,
    tell: Callable[[int, float], None],
    clock: Callable[[], float] = monotonic,
) -> tuple[dict[tuple[str, str], Answer], int]:
    """Whole prompts in turn until there is no time for another; the answers, and how many prompts they are of."""
    from wager.bench.peers import turns

    answers: dict[tuple[str, str], Answer] = {}
    longest = 0.0  # seconds of a prompt
    for number, question in enumerate(asked):
        began = clock()
        if began >= ends or began + longest > ends:
            return answers, number
        tell(number + 1, ends - began)
        given: dict[tuple[str, str], Answer] = {}
        for _, method in turns(methods, [question], seed=number):
            if clock() >= ends:
                return answers, number  # what was given to this prompt does not count
            given[question.id, method.name] = method.run(question.ids, tokens)
        answers |= given
        longest = max(longest, clock() - began)
    return answers, len(asked)


def _generate(options: Options) -> str:
    """The command that uses what was learned."""
    model = "" if options.model == MODEL else f" --model {options.model}"
    drafters = "" if options.drafters == given.DRAFTERS else f" --drafters {options.drafters}"
    return f'wager generate "…"{model}{drafters}'
