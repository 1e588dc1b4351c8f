"""`wager lab simulate`: policies against each other, without a model."""

import dataclasses
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from rich.table import Table

import wager.simulation as sim
from wager.cli.experiment import Experiment, policy_table, print_changes
from wager.cli.files import Output, check_new, check_writable, data_file
from wager.cli.parameters import opt, options, parse_ints
from wager.cli.screen import wide
from wager.core import LONGEST, Request, TraceWriter, require
from wager.report.regret import draw
from wager.simulation import Comparison, Scenario, theory
from wager.simulation.adversarial import PATTERNS
from wager.simulation.costs import VERIFY, parse_verify
from wager.simulation.experiment import even_marks

ENVIRONMENTS = {  # what they are, the arms unless told otherwise, and the policies
    "tgd": ("truncated-geometric drafters, one length (BanditSpec eq. 4)", "0.8,0.6,0.4",
            "ucbspec exp3spec meta-ucb kl-ucb thompson"),
    "piecewise": ("the same with acceptances that change every --every tokens", "0.8,0.3/0.3,0.8",
                  "meta-ucb discounted-ucb sliding-ucb exp3spec meta-exp3"),
    "adversarial": ("accepted lengths fixed beforehand by a --pattern", "0.8,0.5,0.3", "exp3spec ucbspec meta-exp3"),
    "costs": ("drafters x lengths with draft and verify seconds; off is an arm", "suffix=0.45@0.1,eagle=0.65@4",
              "off ucbspec ucbspec:reward=goodput analytical kl-ucb:reward=goodput"),
    "serving": ("continuous batching under a load; lengths and off are the arms", "0.7",
                "off nightjar ada-bingreedy ucbspec:reward=goodput dsd analytical tetris linucb"),
}  # fmt: skip

_SHAPE, _SERVING, _RUN = "Environment", "Environment: serving", "Experiment"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the policies play."""

    env: str = opt("tgd", "; ".join(f"{name}: {about[0]}" for name, about in ENVIRONMENTS.items()) + ".")
    arms: str | None = opt(None, "\\[NAME=]ACCEPTANCE\\[@DRAFT_MS] by commas, phases by slashes.", shown="by --env")
    length: int = opt(4, "Draft length (tgd, piecewise, adversarial).")
    lengths: str | None = opt(None, "Draft lengths (costs, serving).", panel=_SHAPE, shown="1,2,4,8 or 1 to 5")
    off: bool = opt(False, "Make plain decoding an arm in tgd and piecewise too.", "--off", panel=_SHAPE)
    verify: str = opt("cpu", f"Verify cost (costs): {', '.join(VERIFY)}, or WIDTH:MS,WIDTH:MS,…", panel=_SHAPE)
    lag_ms: float = opt(0.0, "Milliseconds an idle drafter pays per missed token.", panel=_SHAPE)
    every: int | None = opt(None, "Tokens per phase (piecewise).", min=1, panel=_SHAPE, shown="tokens over phases")
    pattern: str = opt("rotate", f"Adversary: {', '.join(PATTERNS)}.", panel=_SHAPE)
    period: int = opt(200, "Rounds per period of the adversary.", panel=_SHAPE)
    load: str = opt("8", "Concurrent requests, one number per stretch.", panel=_SERVING)
    rate: float = opt(0.0, "Requests per second instead of a load.", panel=_SERVING)
    trace: Path | None = opt(None, "A CSV of arrivals, here or in $WAGER_DATA/traces.", panel=_SERVING)
    speed: float = opt(1.0, "How much faster than recorded the trace is played.", panel=_SERVING)
    wake_ms: float = opt(10.0, "Milliseconds to wake an idle drafter.", panel=_SERVING)

    def __post_init__(self) -> None:
        require(self.env in ENVIRONMENTS, f"unknown environment {self.env!r}; choose from {', '.join(ENVIRONMENTS)}")
        if self.env != "piecewise" and "/" in self.acceptances:
            raise ValueError(f"phases in --arms need --env piecewise, not {self.env}")

    @property
    def acceptances(self) -> str:
        return ENVIRONMENTS[self.env][1] if self.arms is None else self.arms

    @property
    def loads(self) -> tuple[int, ...]:
        """Concurrent requests of each stretch; none where requests arrive by themselves."""
        return () if self.env != "serving" or self.rate or self.trace else parse_ints(self.load, "--load")

    def scenario(self, tokens: int) -> Scenario:
        """What the options describe, for so many tokens."""
        drafters = parse_drafters(self.acceptances)
        require(self.length <= LONGEST, f"--length is at most {LONGEST:,} tokens, not {self.length:,}")
        if self.env == "serving":
            lengths = parse_ints("1,2,3,4,5" if self.lengths is None else self.lengths, "--lengths")
            acceptance, costs = tuple(p for d in drafters for p in d.acceptance), sim.Costs(wake=self.wake_ms / 1000)
            trace = sim.load_trace(data_file(self.trace, "traces"), speed=self.speed) if self.trace else ()
            return sim.Serving(tokens, lengths, acceptance, self.loads, self.rate, trace, costs)
        if self.env == "adversarial":
            levels = tuple(d.acceptance[0] for d in drafters)
            return sim.Adversarial(levels, self.length, tokens, self.pattern, self.period)
        costly, phases = self.env == "costs", 1 + self.acceptances.count("/")
        several = parse_ints("1,2,4,8" if self.lengths is None else self.lengths, "--lengths") if costly else ()
        verify = parse_verify(self.verify) if costly else sim.VerifyCost()
        every = (self.every or max(1, tokens // phases)) if self.env == "piecewise" else 0
        shape = drafters, several or (self.length,), tokens, costly or self.off
        return sim.Stream(*shape, verify, phase_tokens=every, lag_seconds=self.lag_ms / 1000)


@dataclass(frozen=True, slots=True)
class Simulation(Experiment):
    """Policies to compare, how often, and for how many tokens."""

    runs: int = opt(20, "Runs per policy, each with a seed of its own.")
    tokens: int = opt(20000, "Tokens to generate in a run.")
    warmup: int = opt(0, "Leave out the first so many tokens of every run.", min=0, panel=_RUN)

    def __post_init__(self) -> None:
        left = self.warmup < self.tokens or self.tokens <= 0
        require(left, f"a warm-up of {self.warmup} tokens leaves nothing of {self.tokens}")


@dataclass(frozen=True, slots=True)
class Files(Output):
    plot: Path | None = opt(None, "Draw regret over tokens into this PNG.")
    record: Path | None = opt(None, "Also write the first policy's first run as a trace.")

    def __post_init__(self) -> None:
        Output.__post_init__(self)
        if self.record is not None:
            check_new(self.record, "trace")
        if self.plot is not None:
            check_writable(self.plot)
            there = find_spec("matplotlib") is not None
            require(there, "pictures need matplotlib; install it with: pip install 'wager[bench]'")


@options
def command(environment: Environment, simulation: Simulation, files: Files) -> None:
    """Play policies in a simulated environment and compare their regret; no model needed."""
    env, tokens, loads = environment.env, simulation.tokens, environment.loads
    scenario = environment.scenario(tokens)
    chosen = simulation.policy or ENVIRONMENTS[env][2].split()
    marks = even_marks(tokens) if len(loads) > 1 else None
    comparison = simulation.compare("simulating", scenario, chosen, warmup=simulation.warmup, marks=marks)
    title = f"{env} {environment.acceptances}: {tokens:,} tokens, {simulation.runs} runs"
    out = wide(120)
    timed = env in ("costs", "serving") or "@" in environment.acceptances or environment.lag_ms > 0
    out.print(_table(comparison, title, seconds=timed))  # where rounds take different times, seconds tell more
    starts = [tokens * i // len(loads) for i in range(len(loads) + 1)] if len(loads) > 1 else []
    changes = print_changes(out, comparison, starts)
    bounds = theory.bounds(scenario, comparison.marks)
    described = {k: v for k, v in dataclasses.asdict(cast(Any, scenario)).items() if k != "trace"}
    files.write({"environment": env, "scenario": described, **comparison.json(), "bounds": bounds, "changes": changes})
    if files.plot is not None:
        draw(comparison, files.plot, title=title, bounds=bounds)
    if files.record is not None:
        with TraceWriter(files.record, {"environment": env, "policy": chosen[0], "seed": simulation.seed}) as writer:
            writer.write(Request(env))
            sim.play(scenario, chosen[0], simulation.seed, watch=lambda context, outcome: writer.write(outcome))


def parse_drafters(text: str) -> tuple[sim.Drafter, ...]:
    """Drafters from ``[NAME=]ACCEPTANCE[@DRAFT_MS],…`` with phases separated by slashes."""
    phases = [phase.split(",") for phase in text.split("/")]
    require(len(set(map(len, phases))) == 1, f"--arms needs as many arms in every phase, not {text!r}")
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
                raise ValueError(f"--arms takes [NAME=]ACCEPTANCE[@MS] separated by commas, not {item!r}") from None
            name = given or name
        drafters.append(sim.Drafter(name, tuple(acceptance), step))
    require(len({d.name for d in drafters}) == len(drafters), f"--arms names a drafter twice: {text!r}")
    return tuple(drafters)


def _table(comparison: Comparison, title: str, *, seconds: bool) -> Table:
    rows = [{**row.json(), **row.facts} for row in comparison.rows]
    left_out = {"regret_seconds", "goodput", "speed"} if not seconds else set()
    columns = {
        **{"rounds": ("rounds", ",.0f"), "regret,\nrounds": ("regret_rounds", "")},
        **{"regret,\nseconds": ("regret_seconds", ""), "best\narm": ("best_share", ".1%")},
        **{"\nswitches": ("switches", ",.0f"), "tokens/\nround": ("tokens_per_round", ".2f")},
        **{"tokens/\nsecond": ("goodput", ",.1f"), "of best\nfixed": ("speed", ".3f")},
        "latency,\nseconds": ("latency_mean", ".2f"),
    }
    known = {name: of for name, of in columns.items() if of[0] not in left_out and all(of[0] in row for row in rows)}
    note = "the clairvoyant knows the environment's parameters but does not reckon with switching"
    return policy_table(title, note, known, rows, references=2)
