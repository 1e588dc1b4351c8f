"""`wager lab replay`: policies against each other on recorded texts, without a model."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.table import Table
from rich.text import Text as Words

from wager.cli.experiment import Experiment, policy_table, print_changes
from wager.cli.files import Output
from wager.cli.options import Reset
from wager.cli.parameters import argument, opt, option, options, parse_ints
from wager.cli.screen import titled, wide
from wager.cli.shown import check_explains, explained
from wager.core import recording as recordings
from wager.core.recording import Text
from wager.policies import build
from wager.policies.base import PAPER
from wager.simulation import Comparison, Replay, Run, joined
from wager.simulation.costs import VERIFY, parse_cost
from wager.simulation.experiment import Estimate, Result, even_marks
from wager.simulation.replay import NOISE

DEFAULT_POLICIES = ["auto", "kl-ucb:reward=goodput", "ucbspec", "meta-ucb", "analytical", "nightjar"]
LONGEST = 8  # tokens of the longest arm, unless told otherwise
COST = f"""Seconds of a verification by width: measured (with the first recording), {", ".join(VERIFY)}, or a JSON file
with costs or from wager lab engine."""
NEAR = 0.97  # of the task's best fixed arm: as good as it


@dataclass(frozen=True, slots=True)
class Replayed:
    """Recorded texts, and what a round of them costs."""

    PANEL: ClassVar = "What is replayed"

    files: Annotated[list[Path], argument("Made by wager lab record.", "RECORDINGS")]
    cost: str = opt("measured", COST)
    drafters: str | None = opt(None, "Only these, separated by commas.", shown="all that were recorded")
    lengths: str | None = opt(None, "Draft lengths that are arms; off always is one.", shown="1 to 8")
    noise: float = opt(NOISE, "Standard deviation of a round's seconds, as a share of them.")
    calibrated: bool = opt(False, "Tell policies that ask for it what rounds cost beforehand.", "--calibrated")
    phases: str | None = opt(None, "Labels in the order of their texts, by commas.", shown="all texts, shuffled")
    each: int | None = opt(None, "Texts a phase.", min=1, shown="4")
    reset: Reset = PAPER

    def __post_init__(self) -> None:
        if self.each is not None and self.phases is None:
            raise ValueError("--each is the number of texts of a phase; say with --phases which there are")

    def scenario(self) -> tuple[list[dict[str, Any]], Replay]:
        """The recordings' headers, and their texts as an environment."""
        heads, texts = _read(self.files, self.drafters)
        if self.phases is not None:
            texts = joined(texts, [label.strip() for label in self.phases.split(",")], self.each or 4)
        longest: int = min(head["longest"] for head in heads)
        tried = tuple(range(1, min(LONGEST, longest) + 1))
        if self.lengths is not None:
            tried = parse_ints(self.lengths, "--lengths")
        if max(tried) > longest:
            raise ValueError(f"drafts of at most {longest} tokens were recorded; --lengths names {max(tried)}")
        cost, in_phases = parse_cost(self.cost, heads[0]), self.phases is not None
        return heads, Replay(texts, cost, tried, self.noise, in_phases, self.reset, calibrated=self.calibrated)

    def json(self, heads: Sequence[Mapping[str, Any]], scenario: Replay) -> dict[str, Any]:
        return {
            "recordings": [str(path) for path in self.files],
            "models": list(dict.fromkeys(head.get("model") for head in heads)),
            **{"texts": len(scenario.texts), "tokens": scenario.goal, "drafters": list(scenario.drafters)},
            **{"lengths": list(scenario.lengths), "cost": self.cost, "costs": dataclasses.asdict(scenario.costs)},
            **{"noise": self.noise, "calibrated": self.calibrated, "phases": self.phases, "each": self.each},
            "reset": self.reset,
        }


@options
def command(
    replayed: Replayed,
    experiment: Experiment,
    *,
    explain: Annotated[int | None, option("Instead: why the first policy chose so, for so many rounds.", min=1)] = None,
    output: Output,
) -> None:
    """Replay recorded texts under policies, every fixed arm and the clairvoyant; no model needed."""
    heads, scenario = replayed.scenario()
    chosen = experiment.policy or DEFAULT_POLICIES
    if explain is not None:
        for line in _explained(scenario, chosen[0], experiment.seed, explain):
            print(line)
        return
    in_phases = replayed.phases is not None
    marks = even_marks(scenario.goal) if in_phases else None
    comparison = experiment.compare("replaying", scenario, chosen, marks=marks)
    found = summary(comparison, sorted({text.label for text in scenario.texts}))
    console = wide(160)
    count = f"{len(scenario.texts):,} texts, {scenario.goal:,} tokens"
    console.print(_policies(found["rows"], f"{count}, {experiment.runs} runs, cost {replayed.cost}"))
    console.print(_tasks(found["tasks"]))
    each, ends = replayed.each or 4, list(accumulate(text.tokens - 1 for text in scenario.texts))
    changes = print_changes(console, comparison, [0, *ends[each - 1 :: each]] if in_phases else [])
    how = {"runs": experiment.runs, "seed": experiment.seed}
    output.write({**replayed.json(heads, scenario), **how, **found, "changes": changes})


def _read(files: Sequence[Path], drafters: str | None) -> tuple[list[dict[str, Any]], tuple[Text, ...]]:
    """Headers and texts of all recordings, with the drafters wanted."""
    heads: list[dict[str, Any]] = []
    texts: list[Text] = []
    wanted = None if drafters is None else [name.strip() for name in drafters.split(",")]
    for path in files:
        head, own = recordings.read(path)
        if not isinstance(head.get("longest"), int) or head["longest"] < 1:
            raise ValueError(f"{path} does not say in its header how many tokens drafters were asked for (longest)")
        heads.append(head)
        for text in own:
            names = list(text.tracks) if wanted is None else wanted
            if missing := [name for name in names if name not in text.tracks]:
                there = ", ".join(text.tracks) or "none"
                raise ValueError(f"drafter {missing[0]!r} was not recorded in {path}; there are {there}")
            pairs = text.agreement.items()
            kept = {a: {b: n for b, n in others.items() if b in names} for a, others in pairs if a in names}
            tracks = {name: text.tracks[name] for name in names}
            texts.append(dataclasses.replace(text, tracks=tracks, agreement=kept))
    return heads, tuple(texts)


def _explained(scenario: Replay, spec: str, seed: int, count: int) -> Iterator[str]:
    """One line for each of the first rounds: what the policy expected of its two best arms, and what came."""
    check_explains(spec)
    policy = build(spec, scenario.arms, seed=seed, tokens=scenario.horizon(spec))
    environment = scenario.start(seed, policy)
    wide = max(len(text.label) for text in scenario.texts)
    for _ in range(count):
        if environment.done:
            return
        label, context = environment.label, environment.context()
        outcome = environment.play(policy.choose(context))
        ours, other = [*policy.options(), None, None][:2]
        yield f"{label:{wide}} {explained(context.tokens, outcome, ours, other)}"
        policy.observe(outcome)


def summary(comparison: Comparison, labels: Sequence[str]) -> dict[str, Any]:
    """Every policy beside the clairvoyant, the best fixed arm and off: over all texts and by label, with intervals."""
    best, clairvoyant = comparison.best_fixed, comparison.clairvoyant
    off = next(result for result in comparison.fixed if result.policy == "off")
    rows = [
        {
            **{"policy": row.policy, "goodput": row.goodput.json(), "to_off": _ratio(row, off)},
            **{"to_best_fixed": row.speed.json(), "to_clairvoyant": _ratio(row, clairvoyant)},
            **{"gap_closed": _gap_closed(row, best, clairvoyant), "tokens_per_round": row.tokens_per_round.json()},
            **{"regret_rounds": row.regret_rounds.json(), "regret_seconds": row.regret_seconds.json()},
            "pulls": row.json()["pulls"],
        }
        for row in (clairvoyant, best, off, *comparison.results)
    ]
    tasks = []
    for label in labels:  # in times off's tokens a second
        own = min(comparison.fixed, key=lambda result: sum(run.facts[f"seconds {label}"] for run in result.runs))
        goodput = Estimate.of([_goodput(run, label) for run in off.runs]).json()
        policies = {result.policy: _ratio(result, off, label) for result in comparison.results}
        fixed = {"best_fixed_arm": own.policy, "best_fixed": _ratio(own, off, label)}
        bound = {"clairvoyant": _ratio(clairvoyant, off, label), "policies": policies}
        tasks.append({"label": label, "off_goodput": goodput, **fixed, **bound})
    to_off = {result.policy: _ratio(result, off) for result in comparison.fixed}
    return {"best_fixed_arm": str(comparison.best), "rows": rows, "fixed_to_off": to_off, "tasks": tasks}


def _goodput(run: Run, label: str | None = None) -> float:
    if label is None:
        return run.tokens / run.seconds
    return run.facts[f"tokens {label}"] / run.facts[f"seconds {label}"]


def _ratio(result: Result, base: Result, label: str | None = None) -> dict[str, Any]:
    """How many times the other's tokens a second, run by run on the same seeds."""
    pairs = zip(result.runs, base.runs, strict=True)
    return Estimate.of([_goodput(run, label) / _goodput(other, label) for run, other in pairs]).json()


def _gap_closed(row: Result, fixed: Result, bound: Result) -> dict[str, Any] | None:
    """Share of the way from the best fixed arm to the clairvoyant, in tokens a second; None where there is none."""
    triples = list(zip(*([_goodput(run) for run in result.runs] for result in (row, fixed, bound)), strict=True))
    if any(upper <= lower * (1 + 1e-9) for _, lower, upper in triples):
        return None
    return Estimate.of([(x - lower) / (upper - lower) for x, lower, upper in triples]).json()


def _policies(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A line for every policy."""
    columns = {
        **{"tokens/\nsecond": ("goodput", ",.1f"), "times\noff": ("to_off", ".3f±")},
        **{"of best\nfixed": ("to_best_fixed", ".3f"), "of clair-\nvoyant": ("to_clairvoyant", ".3f")},
        **{"gap\nclosed": ("gap_closed", ".0%"), "\nMAT": ("tokens_per_round", ".2f")},
        **{"regret,\nrounds": ("regret_rounds", ""), "regret,\nseconds": ("regret_seconds", "")},
    }
    note = "gap closed: of that between the best fixed arm and the clairvoyant, who knows every text to its end"
    return policy_table(title, note, columns, rows, references=3)


def _tasks(tasks: Sequence[Mapping[str, Any]]) -> Table:
    """A line for every label."""
    note = f"in times off's tokens a second; bold: at least {NEAR:.0%} of the task's best fixed arm in hindsight"
    fold = ["best fixed", "clairvoyant", *tasks[0]["policies"]]
    shown = titled("by task", note, ["task", "off,\ntokens/s"], fold=fold)
    for about in tasks:
        best, own = about["best_fixed"]["mean"], [x["mean"] for x in about["policies"].values()]
        first = (f"{about['off_goodput']['mean']:,.1f}", f"{about['best_fixed_arm']} {best:.2f}")
        cells = (Words(f"{x:.2f}", style="bold" if x >= NEAR * best else "") for x in own)
        shown.add_row(Words(about["label"]), *first, f"{about['clairvoyant']['mean']:.2f}", *cells)
    return shown
