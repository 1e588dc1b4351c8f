"""`wager simulate`: policies against each other, without a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from wager.cli.bars import compared
from wager.cli.files import check_writable, data_file, write_json
from wager.cli.replayed import adapted, changes_table
from wager.core import Request, TraceWriter
from wager.report.regret import draw, require_matplotlib
from wager.simulation import (
    Adversarial,
    Comparison,
    Costs,
    Drafter,
    Scenario,
    Serving,
    Stream,
    VerifyCost,
    load_trace,
    play,
    theory,
)
from wager.simulation.adversarial import PATTERNS
from wager.simulation.experiment import Result, even_marks

ENVIRONMENTS = {
    "tgd": "truncated-geometric drafters, one length (BanditSpec eq. 4)",
    "piecewise": "the same with acceptances that change every --every tokens",
    "adversarial": "accepted lengths fixed beforehand by a --pattern",
    "costs": "drafters x lengths with draft and verify seconds; off is an arm",
    "serving": "continuous batching under a load; lengths and off are the arms",
}
DEFAULT_POLICIES = {
    "tgd": ["ucbspec", "exp3spec", "meta-ucb", "kl-ucb", "thompson"],
    "piecewise": ["meta-ucb", "discounted-ucb", "sliding-ucb", "exp3spec", "meta-exp3"],
    "adversarial": ["exp3spec", "ucbspec", "meta-exp3"],
    "costs": ["off", "ucbspec", "ucbspec:reward=goodput", "analytical", "kl-ucb:reward=goodput"],
    "serving": ["off", "nightjar", "ada-bingreedy", "ucbspec:reward=goodput", "dsd", "analytical", "tetris", "linucb"],
}
DEFAULT_ARMS = {
    "tgd": "0.8,0.6,0.4",
    "piecewise": "0.8,0.3/0.3,0.8",
    "adversarial": "0.8,0.5,0.3",
    "costs": "suffix=0.45@0.1,eagle=0.65@4",
    "serving": "0.7",
}
# Example shapes of verification time by width: (tokens, seconds). Measured once with a 135M model; yours will differ.
VERIFY = {
    "flat": ((1, 0.070), (2, 0.072), (4, 0.072), (5, 0.076)),
    "cpu": ((1, 0.047), (2, 0.098), (4, 0.107), (5, 0.118), (8, 0.119), (16, 0.200), (32, 0.270)),
    "gpu": ((1, 0.0030), (2, 0.0036), (8, 0.0037), (16, 0.0038), (64, 0.0040)),
}

_SHAPE = "Environment"
_RUN = "Experiment"
_OUT = "Results"


def command(
    env: Annotated[
        str, typer.Option(help="; ".join(f"{k}: {v}" for k, v in ENVIRONMENTS.items()) + ".", rich_help_panel=_SHAPE)
    ] = "tgd",
    arms: Annotated[
        str | None,
        typer.Option(
            help="Drafters as \\[NAME=]ACCEPTANCE\\[@DRAFT_MS], separated by commas; phases by slashes. "
            "Serving: the acceptance, one per stretch.",
            rich_help_panel=_SHAPE,
            show_default="depends on --env",
        ),
    ] = None,
    length: Annotated[
        int, typer.Option(help="Draft length (tgd, piecewise, adversarial).", rich_help_panel=_SHAPE)
    ] = 4,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Draft lengths that are arms (costs, serving).",
            rich_help_panel=_SHAPE,
            show_default="1,2,4,8 or 1 to 5",
        ),
    ] = None,
    off: Annotated[
        bool, typer.Option("--off", help="Make plain decoding an arm in tgd and piecewise too.", rich_help_panel=_SHAPE)
    ] = False,
    verify: Annotated[
        str,
        typer.Option(help=f"Verify cost (costs): {', '.join(VERIFY)}, or WIDTH:MS,WIDTH:MS,…", rich_help_panel=_SHAPE),
    ] = "cpu",
    lag_ms: Annotated[
        float, typer.Option(help="Milliseconds an idle drafter pays per missed token.", rich_help_panel=_SHAPE)
    ] = 0.0,
    every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens per phase (piecewise).", rich_help_panel=_SHAPE, show_default="tokens over phases"
        ),
    ] = None,
    pattern: Annotated[str, typer.Option(help=f"Adversary: {', '.join(PATTERNS)}.", rich_help_panel=_SHAPE)] = "rotate",
    period: Annotated[int, typer.Option(help="Rounds per period of the adversary.", rich_help_panel=_SHAPE)] = 200,
    wake_ms: Annotated[
        float, typer.Option(help="Milliseconds to wake an idle drafter (serving).", rich_help_panel=_SHAPE)
    ] = 10.0,
    load: Annotated[
        str, typer.Option(help="Concurrent requests (serving), one number per stretch.", rich_help_panel=_SHAPE)
    ] = "8",
    rate: Annotated[
        float, typer.Option(help="Requests per second instead of a load (serving).", rich_help_panel=_SHAPE)
    ] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Arrivals from a CSV with TIMESTAMP, ContextTokens, GeneratedTokens, here or in $WAGER_DATA/traces.",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="How much faster than recorded the trace is played.", rich_help_panel=_SHAPE)
    ] = 1.0,
    tokens: Annotated[int, typer.Option(help="Tokens to generate in a run.", rich_help_panel=_RUN)] = 20000,
    runs: Annotated[int, typer.Option(help="Runs per policy, each with a seed of its own.", rich_help_panel=_RUN)] = 20,
    warmup: Annotated[
        int, typer.Option(min=0, help="Leave out the first so many tokens of every run.", rich_help_panel=_RUN)
    ] = 0,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            help="NAME or NAME:parameter=value,…; repeat it. See wager policies.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run.", rich_help_panel=_RUN)] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes.", rich_help_panel=_RUN, show_default="one per core"),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file.", rich_help_panel=_OUT)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw regret over tokens into this PNG.", rich_help_panel=_OUT)
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Also write the first policy's first run as a trace.", rich_help_panel=_OUT),
    ] = None,
) -> None:
    """Play policies in a simulated environment and compare their regret; no model needed."""
    if env not in ENVIRONMENTS:
        raise ValueError(f"unknown environment {env!r}; choose from {', '.join(ENVIRONMENTS)}")
    acceptances = DEFAULT_ARMS[env] if arms is None else arms
    if "/" in acceptances and env != "piecewise":
        raise ValueError(f"phases in --arms need --env piecewise, not {env}")
    scenario: Scenario
    if env == "serving":
        scenario = Serving(
            goal=tokens,
            lengths=parse_ints("1,2,3,4,5" if lengths is None else lengths, "--lengths"),
            acceptance=tuple(p for d in parse_drafters(acceptances) for p in d.acceptance),
            load=() if rate or trace else parse_ints(load, "--load"),
            rate=rate,
            trace=load_trace(data_file(trace, "traces"), speed=speed) if trace else (),
            costs=Costs(wake=wake_ms / 1000),
        )
    elif env == "adversarial":
        levels = tuple(d.acceptance[0] for d in parse_drafters(acceptances))
        scenario = Adversarial(levels, length, tokens, pattern, period)
    else:
        costly = env == "costs"
        scenario = Stream(
            drafters=parse_drafters(acceptances),
            lengths=parse_ints("1,2,4,8" if lengths is None else lengths, "--lengths") if costly else (length,),
            goal=tokens,
            off=costly or off,
            verify=parse_verify(verify) if costly else VerifyCost(),
            phase_tokens=(every or max(1, tokens // (1 + acceptances.count("/")))) if env == "piecewise" else 0,
            lag_seconds=lag_ms / 1000,
        )
    loads = parse_ints(load, "--load") if env == "serving" and not (rate or trace) and "," in load else ()
    for path in filter(None, (json_file, plot, record)):
        check_writable(path)
    if warmup >= tokens:
        raise ValueError(f"a warm-up of {warmup} tokens leaves nothing of {tokens}")
    if plot is not None:
        require_matplotlib()
    if record is not None and record.exists():
        raise ValueError(f"{record} exists; a trace is never overwritten")
    chosen = policy or DEFAULT_POLICIES[env]

    marks = even_marks(tokens) if loads else None
    comparison = compared("simulating", scenario, chosen, jobs, runs=runs, seed=seed, warmup=warmup, marks=marks)
    title = f"{env} {acceptances}: {tokens:,} tokens, {runs} runs"
    out = Console()
    if not out.is_terminal:  # a pipe has no width of its own
        out.width = 120
    out.print(_table(comparison, title, seconds=env in ("costs", "serving") or "@" in acceptances or lag_ms > 0))
    changes = adapted(comparison, [tokens * i // len(loads) for i in range(len(loads) + 1)]) if loads else []
    if changes:
        out.print(changes_table(changes))
    bounds = _bounds(scenario, comparison)
    if json_file is not None:
        described = {k: v for k, v in dataclasses.asdict(cast(Any, scenario)).items() if k != "trace"}
        write_json(
            json_file,
            {"environment": env, "scenario": described, **comparison.json(), "bounds": bounds, "changes": changes},
        )
    if plot is not None:
        draw(comparison, plot, title=title, bounds=bounds)
    if record is not None:
        with TraceWriter(record, {"environment": env, "policy": chosen[0], "seed": seed}) as writer:
            writer.write(Request(env))
            play(scenario, chosen[0], seed, watch=lambda context, outcome: writer.write(outcome))


def parse_ints(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise ValueError(f"{option} takes whole numbers separated by commas, not {text!r}") from None


def parse_drafters(text: str) -> tuple[Drafter, ...]:
    """Drafters from ``[NAME=]ACCEPTANCE[@DRAFT_MS],…`` with phases separated by slashes."""
    phases = [phase.split(",") for phase in text.split("/")]
    if len({len(phase) for phase in phases}) != 1:
        raise ValueError(f"--arms needs as many arms in every phase, not {text!r}")
    drafters = []
    for i, column in enumerate(zip(*phases, strict=True)):
        name, step, acceptance = f"d{i + 1}", 0.0, []
        for item in column:
            given, _, rest = item.rpartition("=")
            probability, _, milliseconds = rest.partition("@")
            try:
                acceptance.append(float(probability))
                step = float(milliseconds) / 1000 if milliseconds else step
            except ValueError:
                raise ValueError(
                    f"--arms takes [NAME=]ACCEPTANCE[@DRAFT_MS] separated by commas, not {item!r}"
                ) from None
            name = given or name
        drafters.append(Drafter(name, tuple(acceptance), step))
    if len({d.name for d in drafters}) != len(drafters):
        raise ValueError(f"--arms names a drafter twice: {text!r}")
    return tuple(drafters)


def parse_verify(text: str) -> VerifyCost:
    """A verify cost by name or as ``WIDTH:MS`` pairs."""
    if text in VERIFY:
        return VerifyCost(VERIFY[text])
    try:
        pairs = [item.split(":") for item in text.split(",")]
        return VerifyCost(tuple((int(width), float(ms) / 1000) for width, ms in pairs))
    except ValueError as error:
        raise ValueError(f"--verify takes {', '.join(VERIFY)} or WIDTH:MS pairs, not {text!r} ({error})") from None


def _bounds(scenario: Scenario, comparison: Comparison) -> dict[str, list[float]]:
    """What BanditSpec proves for this environment, at every token mark."""
    if not isinstance(scenario, Stream) or scenario.phase_tokens or len(scenario.lengths) > 1 or scenario.off:
        return {}
    acceptance: Sequence[float] = [d.acceptance[0] for d in scenario.drafters]
    length = scenario.lengths[0]
    if min(acceptance) <= 0 or max(acceptance) >= 1 or len(set(acceptance)) < 2:
        return {}
    return {
        "Theorem 4.3: UCBSpec's upper bound": [theory.ucbspec_bound(acceptance, length, n) for n in comparison.marks],
        "Theorem 4.4: asymptotic lower bound": [theory.lower_bound(acceptance, length, n) for n in comparison.marks],
    }


def _table(comparison: Comparison, title: str, *, seconds: bool) -> Table:
    served = all("latency_mean" in row.facts for row in comparison.rows)
    columns: dict[str, Callable[[Result], str]] = {
        "rounds": lambda row: f"{row.rounds.mean:,.0f}",
        "regret,\nrounds": lambda row: str(row.regret_rounds),
        "regret,\nseconds": lambda row: str(row.regret_seconds),
        "best\narm": lambda row: f"{row.best_share:.1%}",
        "\nswitches": lambda row: f"{row.switches.mean:,.0f}",
        "tokens/\nround": lambda row: f"{row.tokens_per_round.mean:.2f}",
        "tokens/\nsecond": lambda row: f"{row.goodput.mean:,.1f}",
        "of best\nfixed": lambda row: f"{row.speed.mean:.3f}",
        "latency,\nseconds": lambda row: f"{row.facts['latency_mean']:.2f}",
    }
    if not seconds:
        del columns["regret,\nseconds"], columns["tokens/\nsecond"], columns["of best\nfixed"]
    if not served:
        del columns["latency,\nseconds"]
    note = (
        "± 95 % interval over runs; regret is against the best fixed arm on the same seeds; "
        "the clairvoyant knows the environment's parameters but does not reckon with switching"
    )
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("\npolicy", style="bold", min_width=18, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        reference = row in (comparison.clairvoyant, comparison.best_fixed)
        cells = [show(row) for show in columns.values()]
        table.add_row(row.policy, *cells, style="dim" if reference else None, end_section=row is comparison.best_fixed)
    return table
