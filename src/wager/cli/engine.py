"""What the engine takes, and what deciding does: `wager lab engine`, `overhead`, `identity`, `memory`, `decisions`,
`steps`."""

import logging
import os
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.bench.decisions import arms_for, decision_seconds, hinted_seconds, rows_seconds
from wager.bench.steps import proposer_hook, proposer_memory, scheduler_hook
from wager.bench.workloads import TASKS, prompts
from wager.cli.files import Output
from wager.cli.options import Target, Workload
from wager.cli.parameters import option, options
from wager.cli.screen import table, tracked, wide
from wager.cli.suite import fitted
from wager.core import require
from wager.policies import POLICIES

COMPARED = Workload(count=8, tokens=64, longest=768)  # what `wager lab identity` compares
LIMITS = {8: 10, 64: 30}  # arms -> microseconds a decision may take
ROUND_LIMIT = 50  # microseconds a round may take beside model and drafters, those that a device hides left out
STEP_LIMITS = {16: 50e-6, 256: 300e-6}  # requests -> seconds deciding and bookkeeping may add to a step
OVERHEAD = 1.02  # of a token's seconds with model.generate, that one of plain decoding may take
HELD_BATCHES = (1, 8, 32, 128)  # requests at which `auto` is timed in the scheduler hook
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 16, 32)
SENTENCE = "The sea was calm that morning, and the harbour lay quiet in the early light."
# One of every family, and arms changed at random in every round.
FAMILIES = ("random", "round-robin", "ucbspec", "exp3spec", "meta-ucb", "discounted-ucb", "petc:tokens=2000",
            "analytical", "fsm:drafter=suffix", "cached-fsm:drafter=suffix", "qlearning", "prompt-router", "nightjar",
            "dsd", "tetris:drafter=suffix", "linucb", "thompson:reward=goodput", "off")  # fmt: skip


@options
def engine(
    target: Target,
    *,
    context: Annotated[int, option("Tokens in the cache.", min=1)] = 300,
    tokens: Annotated[int, option("Tokens of text for the other measurements.", min=2)] = 128,
    repeats: Annotated[int, option("Interleaved repetitions.", min=1)] = 15,
    output: Output,
) -> None:
    """Time one forward of every width, wager's own Python per round, and plain decoding through wager."""
    from wager.bench import engine as measure
    from wager.decoding.decoder import Decoder
    from wager.models.hf_runner import HFRunner

    model, tokenizer = target.load()
    decoder = Decoder(model, tokenizer, drafters="suffix,prompt-lookup", policy="off")
    runners = {"transformers": HFRunner(model), "wager": decoder.target}
    rows = measure.widths(measure.forward_seconds(runners, WIDTHS, context=context, repeats=repeats))
    prompt = tokenizer(SENTENCE).input_ids
    playing = Decoder(model, tokenizer, drafters="suffix,prompt-lookup", policy="ucbspec")
    own = measure.spread(measure.own_seconds(playing, prompt, tokens))
    pairs = measure.off_against_plain(model, decoder, prompt, tokens, max(2, repeats // 3))
    off = measure.spread([theirs / ours for theirs, ours in pairs])
    shown = table(f"one forward, {context} tokens of context, milliseconds (median)",
                  ("width", "transformers", "wager", "wager / its width 1"), left=0)  # fmt: skip
    for row in rows:
        cells = (f"{row['seconds'][name]['median'] * 1e3:.2f}" for name in ("transformers", "wager"))
        shown.add_row(str(row["width"]), *cells, f"{row['to_width_1']:.2f}")
    Console().print(shown)
    median, low, high = (f"{own[key] * 1e3:.3f}" for key in ("median", "low", "high"))
    print(f"wager's own Python per round: {median} ms (quartiles {low}, {high})")
    print(f"off against plain generate: {off['median']:.3f}x (quartiles {off['low']:.3f}, {off['high']:.3f})")
    how = {"context": context, "repeats": repeats}
    content = {"model": target.model, **measure.described(model), **how, "widths": rows}
    output.write({**content, "own_seconds_per_round": own, "off_to_plain": off})


@options
def overhead(
    *,
    families: Annotated[
        str, option("Families, separated by commas: gpt_neox, opt, stablelm.")
    ] = "gpt_neox,opt,stablelm",
    prompt: Annotated[int, option("Tokens of the prompt.", min=1)] = 32,
    tokens: Annotated[int, option("Tokens of a text.", min=2)] = 64,
    repeats: Annotated[int, option("Interleaved pairs of texts.", min=2)] = 9,
    output: Output,
) -> None:
    """Time plain decoding through transformers' own forward, with wager and with model.generate.

    Models of families without a forward of wager's, with random weights, on the CPU in float32.
    """
    from wager.bench.overhead import own_forward_overhead
    from wager.bench.shapes import FAMILIES as KNOWN

    chosen = [family.strip() for family in families.split(",")]
    for family in chosen:
        require(family in KNOWN, f"unknown family {family!r}; choose from {', '.join(KNOWN)}")
    load = round(os.getloadavg()[0], 2)
    found = [own_forward_overhead(f, prompt, tokens, repeats) for f in tracked("timing", chosen, len(chosen))]
    columns = ("family", "generate, ms a token", "off / generate", "quartiles", "outside, ms CPU", "off", "added")
    shown = table("a token of plain decoding by wager over one of model.generate, medians of pairs", columns)
    for row in found:
        wall, outside, milliseconds = row["off_to_plain"], row["outside_cpu_seconds_per_token"].values(), 1e3
        ratio = f"{'[red]' if wall['median'] > OVERHEAD else ''}{wall['median']:.3f}"
        quartiles = f"{wall['low']:.3f} to {wall['high']:.3f}"
        beside = [f"{seconds * milliseconds:.3f}" for seconds in outside]
        took = f"{row['plain_seconds_per_token'] * milliseconds:.1f}"
        shown.add_row(row["family"], took, ratio, quartiles, *beside, f"{row['added']['median']:+.2%}")
    wide(110).print(shown)
    print("outside: CPU time outside the model's forward, which is the same in both; added: off's over generate's, as a"
          " share of a token")  # fmt: skip
    print(f"{repeats} pairs of {tokens} tokens after {prompt}; load average before: {load}; limit: {OVERHEAD}")
    about = {"prompt": prompt, "tokens": tokens, "repeats": repeats, "load_average": load, "limit": OVERHEAD}
    output.write({**about, "families": found})


@options
def identity(
    target: Target,
    workload: Workload = COMPARED,
    *,
    datastore: Annotated[Path | None, option("Also the retrieval drafter, over this datastore.")] = None,
    every: Annotated[bool, option("Every policy on every prompt, not two in turn.", "--every")] = False,
    output: Output,
) -> None:
    """Compare wager's greedy texts with plain decoding's: all drafters, every policy family, arms changed at random.

    Ends with exit code 1 if a text differs where the model's logits do not tie.
    """
    chosen = prompts(workload.data, tasks=TASKS, count=workload.count)
    from wager.bench.draft_models import truncated
    from wager.bench.engine import check_texts, described
    from wager.decoding.arms import build_drafters
    from wager.drafters.draft_model import DraftModel

    model, tokenizer = target.load()
    cut = fitted(chosen, target.model, model, tokenizer, workload.tokens, workload.longest)
    stored, draft = [] if datastore is None else [f"retrieval={datastore}"], DraftModel(truncated(model, 4))
    drafters = list(build_drafters(["suffix", "prompt-lookup", draft, *stored], model, tokenizer).values())
    asked = [prompt.ids for prompt in cut]
    texts = check_texts(model, drafters, FAMILIES, asked, workload.tokens, every=every)
    records = list(tracked("comparing", texts, len(asked) * (len(FAMILIES) if every else 3)))
    differing = [r for r in records if not r["same"]]
    broken = [r for r in differing if not r["tie"]]
    used = Counter(name for r in records for name in r["drafters"])
    largest = max((r["gap"] for r in differing if r["gap"] is not None), default=0.0)
    same, ties = len(records) - len(differing), len(differing) - len(broken)
    print(f"{len(asked)} prompts, {len(records)} texts, {sum(r['tokens'] for r in records):,} tokens: {same} identical,"
          f" {ties} ties (largest gap {largest:.2g} standard deviations), {len(broken)} differ")  # fmt: skip
    print("drafted by: " + ", ".join(f"{name} in {times} texts" for name, times in used.most_common()))
    said = {"model": target.model, **described(model), "prompts": len(asked), "max_tokens": workload.tokens}
    found = {"texts": len(records), "identical": same, "ties": ties, "differ": len(broken)}
    output.write({**said, **found, "largest_gap": largest, "drafters": dict(used), "differing": differing})
    if broken:
        raise typer.Exit(1)


@options
def memory(
    target: Target, *, requests: Annotated[int, option("Requests, one after the other.", min=20)] = 200, output: Output
) -> None:
    """Watch the process's memory over many requests, some of which fill the model's context."""
    from wager.bench.engine import described, memory_over
    from wager.decoding.decoder import Decoder

    model, tokenizer = target.load()
    decoder = Decoder(model, tokenizer, drafters="suffix,prompt-lookup", policy="random")
    held = list(tracked("generating", memory_over(decoder, requests), requests))
    marks = {number: held[number - 1] for number in (1, 20, requests // 2, requests)}
    growth = held[-1] / held[19] - 1
    print("resident memory: " + ", ".join(f"{size / 2**20:,.0f} MiB after {n}" for n, size in marks.items()))
    print(f"growth from request 20 to {requests}: {growth:+.1%}")
    content: dict[str, Any] = {"model": target.model, **described(model), "requests": requests}
    output.write({**content, "growth_after_20": growth, "mebibytes": [round(size / 2**20, 1) for size in held]})


@options
def decisions(
    *,
    policy: Annotated[list[str] | None, option("Policy to time; repeat it.", "--policy", "-p", shown="all")] = None,
    repeats: Annotated[int, option("Interleaved repetitions; their median is reported.", min=1)] = 7,
    output: Output,
) -> None:
    """Time choose plus observe of every policy, at 8 and at 64 arms, and a whole round of `auto`, without a model."""
    specs = policy or ["fixed:drafter=d0,length=1" if name == "fixed" else name for name in POLICIES]
    taken: dict[tuple[str, int], list[float]] = {(spec, k): [] for spec in specs for k in LIMITS}
    for _ in tracked("timing", range(repeats), repeats):
        for spec, k in taken:
            taken[spec, k].append(decision_seconds(spec, arms_for(k), rounds=1500, warmup=500) * 1e6)
    shown = table("choose + observe, median (slowest repetition), microseconds",
                  ["policy", *(f"{k} arms (≤ {limit})" for k, limit in LIMITS.items())])  # fmt: skip
    rows = []
    for spec in specs:
        cells, row = [], {}
        for k, limit in LIMITS.items():
            median, worst = statistics.median(taken[spec, k]), max(taken[spec, k])
            row[str(k)] = {"median_us": median, "worst_us": worst, "within_limit": median <= limit}
            cells.append(f"{'' if median <= limit else '[red]'}{median:.1f} ({worst:.1f})")
        rows.append({"policy": spec, "arms": row})
        shown.add_row(spec, *cells)
    Console().print(shown)
    auto = []
    hinted: dict[str, tuple[Callable[[str], tuple[float, float]], int]] = {  # the table's rounds have no hints
        "4 drafters x 8 lengths, one text": (hinted_seconds, 20),
        "3 drafters x 5 lengths, 256 requests": (rows_seconds, 180),
    }
    for name, (measure, limit) in hinted.items():
        both = zip(*(measure("auto") for _ in range(repeats)), strict=True)
        choose, observe = (statistics.median(seconds) * 1e6 for seconds in both)
        print(f"auto, {name}: choose {choose:.1f} µs (at most {limit}), observe {observe:.1f} µs")
        auto.append({"of": name, "choose_us": choose, "observe_us": observe, "limit_us": limit})
    whole = _rounds(repeats)
    output.write({"limits_us": {str(k): v for k, v in LIMITS.items()}, "policies": rows, "auto": auto, "rounds": whole})


def _rounds(repeats: int) -> list[dict[str, Any]]:
    """Time whole rounds of the loop without a model: `auto`'s choose and observe, and what the loop adds to them."""
    from wager.bench.rounds import SWEPT, own_seconds

    found: list[dict[str, Any]] = []
    for name, swept in {"caches kept": 0, f"a forward reads {SWEPT >> 20} MiB": SWEPT}.items():
        times = [own_seconds("auto", swept=swept) for _ in range(repeats)]
        parts = ([t.choose for t in times], [t.observe for t in times], [t.loop for t in times])
        choose, observe, loop = (statistics.median(seconds) * 1e6 for seconds in parts)
        whole = choose + observe + loop
        print(f"auto in the loop, 4 drafters x 8 lengths, {name}: choose {choose:.1f} µs, observe {observe:.1f} µs,"
              f" the loop itself {loop:.1f} µs; {whole:.1f} µs of {ROUND_LIMIT}")  # fmt: skip
        row = {"of": name, "choose_us": choose, "observe_us": observe, "loop_us": loop, "limit_us": ROUND_LIMIT}
        found.append(row)
    return found


@options
def steps(
    *,
    count: Annotated[int, option("Steps to time of each kind.", "--steps", min=50)] = 2000,
    scheduler: Annotated[bool, option("The scheduler hook only.", "--scheduler-only")] = False,
    output: Output,
) -> None:
    """Time what deciding and bookkeeping add to a server's step, and watch memory: both hooks, no model."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    cases: list[tuple[Callable[..., dict[str, Any]], str]]
    cases = [(scheduler_hook, p) for p in ("nightjar", "dsd", "ucbspec")]
    cases += [(proposer_hook, p) for p in ("nightjar", "auto") if not scheduler]
    held = dict[str, float]()
    if not scheduler:  # first: the most a process ever held does not fall again
        held["after_1000_requests"], held["after_3000_requests"] = proposer_memory()
    every = [(hook, policy, batch, dict[str, float]()) for batch in STEP_LIMITS for hook, policy in cases]
    # Where nothing is ever accepted `auto` drafts nothing, and with 0.7 about four tokens.
    every += [(scheduler_hook, "auto", batch, {"acceptance": a}) for a in (0.0, 0.7) for batch in HELD_BATCHES]
    costs = [{**hook(policy, batch, count, **how), **how}
             for hook, policy, batch, how in tracked("timing", every, len(every))]  # fmt: skip
    columns = ("hook", "policy", "batch", "acceptance", "median", "mean", "p90", "limit")
    shown = table("microseconds a step", columns, left=2)
    for cost in costs:
        seconds = [cost[name] for name in ("median_seconds", "mean_seconds", "p90_seconds")]
        limit = STEP_LIMITS.get(cost["batch"])
        about = cost["hook"], cost["policy"], str(cost["batch"]), str(cost.get("acceptance", "-"))
        cells = (*(f"{1e6 * x:.0f}" for x in seconds), f"{1e6 * limit:.0f}" if limit else "-")
        shown.add_row(*about, *cells, style="red" if limit and seconds[0] > limit else None)
    Console().print(shown)
    if held:
        early, late = (f"{bytes_held / 1e6:.1f} MB" for bytes_held in held.values())
        print(f"proposer hook: {early} at most after 1,000 requests, {late} after 3,000")
    limits = {str(k): v for k, v in STEP_LIMITS.items()}
    output.write({"steps": count, "limits_seconds": limits, "costs": costs, "proposer_bytes": held})
