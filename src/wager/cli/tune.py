"""`wager tune`: should this model speculate, with what, and how much does it bring? In about two minutes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

from rich.console import Console

from wager.bench import methods as made
from wager.bench import verdict, workloads
from wager.bench.runs import Run, interleaved
from wager.cli import options as given
from wager.cli.options import MODEL, Options
from wager.cli.parameters import argument, option
from wager.cli.screen import stage
from wager.cli.session import Session, open_session, quietly
from wager.cli.suite import LongestPrompt, fitted, model_name, show
from wager.core import OFF, Arm, require
from wager.core.provenance import provenance
from wager.drafters import registry, shipped
from wager.models.embedded import cache
from wager.models.fingerprint import fingerprint
from wager.report.scales import plural

PROMPTS = 10  # that answers are cut for, so that as many fit in the time
FEWEST, MOST = 16, 96  # tokens of an answer
ROUNDS, PRODUCTS = "rounds.json", "packed.json"  # the files of decoding.calibrate and models.calibration ...
PLAIN = "plain"  # ... and their word for a product without packed weights; neither is imported here, torch would be too
RESERVE = 0.04  # of the time, for the checks at the end
LENGTHS = {"suffix": (4, 8)}  # of the arms that are run alone; other drafters:
CHEAP, DEAR = (4,), (3,)
ANSWERS = {
    verdict.FASTER: "Yes, speculate.",
    verdict.SLOWER: "No, do not speculate.",
    verdict.EVEN: "Speculation makes no clear difference.",
}
FIXED_ONLY = "Yes, speculate, but with a fixed setting instead of `auto`."
UNCLEAR = "Not clearly: no setting is faster than plain decoding by more than the spread between prompts."


def command(
    model: Annotated[str, argument("smollm2-135m (fetched once), a folder, or a Hugging Face id.", shown=True)] = MODEL,
    prompts: Annotated[Path | None, option("Your own prompts: one a line, or JSON lines.", shown="wager's own")] = None,
    minutes: Annotated[float, option("Time to measure in; loading and preparing the model are not counted.")] = 2.0,
    drafters: given.Drafters = given.DRAFTERS,
    device: given.Device = "auto",
    dtype: given.Dtype = "auto",
    longest: LongestPrompt = 1024,
    as_json: Annotated[bool, option("Print one JSON object instead.", "--json")] = False,
) -> None:
    """Find out in two minutes whether your model should speculate, and with what.

    What the policy auto learns meanwhile is kept, and wager generate and wager chat start from it.
    """
    require(0 < minutes <= 24 * 60, f"--minutes is above 0 and at most a day, not {minutes:g}")
    options = Options(model=model, drafters=drafters, device=device, dtype=dtype)
    chosen = workloads.in_turn(workloads.own_prompts() if prompts is None else workloads.read_file(prompts), 0)
    told = Console(stderr=True, highlight=False)

    with quietly(model):
        session = open_session(options, told)
        measured = _measure(session, chosen, longest, 60 * minutes, told)
        session.keep()
    summary, played, tokens = measured["summary"], measured["prompts"], measured["max_tokens"]
    said = [*answer(summary), *verdict.words(summary, options.specs)]
    if as_json:
        content = {**provenance(), "minutes": minutes, **measured, "verdict": said}
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    print("\n".join(said))
    print(f"Measured on {played['played']} of {plural(played['given'], 'prompt')}, {tokens} tokens per answer, "
          f"{measured['seconds']:.0f} s.\n")  # fmt: skip
    show({**summary, "tasks": summary["tasks"][:1]})  # of a task there are too few prompts to tell
    print("\n".join(timed_words(measured["timed"])))
    own = "" if model == MODEL else f" --model {model}"
    own += "" if drafters == given.DRAFTERS else f" --drafters {drafters}"
    print(f'What `auto` learned is kept; this starts from it:\n  wager generate "…"{own}')


def timed(decoder: Any) -> dict[str, Any]:
    """What was timed of this model on this machine, as JSON: rounds in seconds, and how products are run."""
    known = decoder.calibration
    verify = {} if known is None else {str(width): seconds for width, seconds in sorted(known.verify.items())}
    draft = {} if known is None else {str(arm): seconds for arm, seconds in known.draft.items()}
    return {"verify_seconds": verify, "draft_seconds": draft, "products": decoder.target.ways}


def timed_words(found: Mapping[str, Any]) -> list[str]:
    """The same in words, with the files it is kept in, those that are there: an incomplete timing is not kept."""
    parts = [f"verifying {width} {seconds * 1e3:.1f} ms" for width, seconds in found["verify_seconds"].items()]
    parts += [f"drafting {arm} {seconds * 1e3:.1f} ms" for arm, seconds in found["draft_seconds"].items()]
    lines = [_file(ROUNDS, ", ".join(parts))] if parts else []
    if found["products"]:
        faster = [name for name, ways in found["products"].items() if set(ways) != {PLAIN}]
        lines.append(_file(PRODUCTS, f"packed kernels for {', '.join(faster)}" if faster else "plain kernels only"))
    return [f"Timed on this machine, and kept in {cache()}; delete a file to time it again:", *lines] if lines else []


def _file(name: str, said: str) -> str:
    kept = (cache() / name).is_file()
    return f"  {name}: {said}" + (
        "" if kept else " (in use, but not saved: the timing is incomplete, or the folder cannot be written)"
    )


def answer(summary: Mapping[str, Any]) -> list[str]:
    """Whether to speculate, in a sentence; none where the machine was too busy to tell."""
    if summary["unsteady"] > verdict.TOO_NOISY:
        return []
    rows = summary["tasks"][0]["methods"]
    found = verdict.standing(verdict.headline(rows))
    if found in (verdict.EVEN, verdict.SLOWER):  # what is true of auto may not be of the arms beside it in the table
        settings = [row for row in rows if row["kind"] in ("arm", "policy")]
        if any(verdict.standing(row) == verdict.FASTER for row in settings):
            return [FIXED_ONLY]
        if any(verdict.over(row)[0] > 1 for row in settings):
            return [UNCLEAR]
    return [ANSWERS[found]] if found in ANSWERS else []  # of too few prompts the verdict tells


def _measure(
    session: Session, chosen: Sequence[workloads.Prompt], longest: int, seconds: float, told: Console
) -> dict[str, Any]:
    """Whole prompts until the time is up, and always one, as JSON."""
    from wager.bench.engine import described

    options, target = session.options, session.decoder.model
    asked = fitted(chosen, options.model, target, session.tokenizer, MOST, longest)
    with stage("preparing the methods …", told) as now:
        specs = shipped.expand(options.specs, getattr(target, "name_or_path", ""), lambda: fingerprint(target))
        arms = [OFF, *(Arm.parse(arm) for spec in specs for arm in fixed_arms(spec))]
        auto = made.Method("auto", "policy", lambda given, _: made.decoder_generator("auto", session.decoder, given))
        methods = [made.transformers_method(made.PLAIN), *map(made.arm_method, arms), auto]  # auto as generate runs it
        shared = made.Target(target, session.tokenizer, tokens=options.max_tokens, specs=specs)
        generators = [method.make(shared, ()) for method in methods]
        pace = 0.0  # seconds a token of the slowest
        for number, generator in enumerate(generators, 1):
            now(f"warming up {generator.name}, {number} of {len(generators)} …")
            generator.warm_up(target.device, FEWEST)  # the very first also loads what is loaded on demand
            before = monotonic()
            count = generator.warm_up(target.device, FEWEST)
            pace = max(pace, (monotonic() - before) / count)
        began = monotonic()
        ends = began + seconds * (1 - RESERVE)
        tokens = answer_tokens(pace, len(methods), ends - began)
        run = Run(methods, asked, (), max_tokens=tokens)
        played = play(run, generators, ends, lambda n, left: now(f"prompt {n}, {max(0.0, left):.0f} s left …"))
    prompts, seconds = {"given": len(asked), "played": played}, round(monotonic() - began, 1)
    how = {"max_tokens": tokens, "drafters": options.specs, "remembered": session.remembered}
    how["timed"] = timed(session.decoder)
    about = {"model": model_name(options.model), **described(target), "seconds": seconds, "prompts": prompts}
    return {**about, **how, "summary": run.summary(target)}


def fixed_arms(spec: str) -> list[str]:
    """The arms of a drafter that are run alone."""
    name, _ = registry.parse(spec)
    dear = name.partition(":")[0] in ("eagle", "eagle3", "draft", "draft-model")
    return [f"{name}:{length}" for length in LENGTHS.get(name, DEAR if dear else CHEAP)]


def answer_tokens(pace: float, methods: int, seconds: float) -> int:
    """Tokens per answer, so that enough prompts fit in the time; ``pace`` is seconds a token."""
    return max(FEWEST, min(MOST, int(seconds / (PROMPTS * methods * pace))))


def play(run: Run, generators: Sequence[made.TextGenerator], ends: float, tell: Callable[[int, float], object]) -> int:
    """Prompts in turn until there is no time for another; how many were answered by all, which alone count.

    The first is played to its end: an answer from one prompt is better than none.
    """
    longest = 0.0  # seconds of a prompt
    for number, prompt in enumerate(run.prompts):
        began = monotonic()
        if number and (began >= ends or began + longest > ends):
            return number
        tell(number + 1, ends - began)
        for _, generator in interleaved(generators, [prompt], seed=number):
            if number and monotonic() >= ends:
                return number
            run.add((prompt.id, generator.name), generator.run(prompt.ids, run.head["max_tokens"]))
        longest = max(longest, monotonic() - began)
    return len(run.prompts)
