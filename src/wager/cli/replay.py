"""`wager lab replay`: policies against each other on recorded texts, without a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar

from wager.cli.experiment import Experiment, adapted, changes_table
from wager.cli.files import Output
from wager.cli.parameters import argument, opt, option, options, parse_ints
from wager.cli.replayed import Report
from wager.cli.screen import wide
from wager.cli.shown import check_explains, explained
from wager.core import recording as recordings
from wager.core.recording import Text
from wager.policies import build
from wager.simulation import Replay, joined
from wager.simulation.costs import VERIFY, parse_cost
from wager.simulation.experiment import even_marks
from wager.simulation.replay import NOISE

DEFAULT_POLICIES = ["auto", "kl-ucb:reward=goodput", "ucbspec", "meta-ucb", "analytical", "nightjar"]
LONGEST = 8  # tokens of the longest arm, unless told otherwise


@dataclass(frozen=True, slots=True)
class Replayed:
    """Recorded texts, and what a round of them costs."""

    PANEL: ClassVar = "What is replayed"

    files: Annotated[list[Path], argument("Made by wager lab record.", "RECORDINGS")]
    cost: str = opt(
        "measured",
        f"Seconds of a verification by width: measured (with the first recording), {', '.join(VERIFY)}, or a "
        "JSON file with costs or from wager lab engine.",
    )
    drafters: str | None = opt(None, "Only these, separated by commas.", shown="all that were recorded")
    lengths: str | None = opt(None, "Draft lengths that are arms; off always is one.", shown="1 to 8")
    noise: float = opt(NOISE, "Standard deviation of a round's seconds, as a share of them.")
    phases: str | None = opt(None, "Labels in the order of their texts, by commas.", shown="all texts, shuffled")
    each: int | None = opt(None, "Texts a phase.", min=1, shown="4")

    def __post_init__(self) -> None:
        if self.each is not None and self.phases is None:
            raise ValueError("--each is the number of texts of a phase; say with --phases which there are")

    def scenario(self) -> tuple[list[dict[str, Any]], Replay]:
        """The recordings' headers, and their texts as an environment."""
        heads, texts = _read(self.files, self.drafters)
        if self.phases is not None:
            texts = joined(texts, [label.strip() for label in self.phases.split(",")], self.each or 4)
        longest = min(_longest(head, path) for head, path in zip(heads, self.files, strict=True))
        tried = tuple(range(1, min(LONGEST, longest) + 1))
        if self.lengths is not None:
            tried = parse_ints(self.lengths, "--lengths")
        if max(tried) > longest:
            raise ValueError(f"drafts of at most {longest} tokens were recorded; --lengths names {max(tried)}")
        return heads, Replay(texts, parse_cost(self.cost, heads[0]), tried, self.noise, self.phases is not None)

    def json(self, heads: Sequence[Mapping[str, Any]], scenario: Replay) -> dict[str, Any]:
        """What was replayed."""
        return {
            "recordings": [str(path) for path in self.files],
            "models": list(dict.fromkeys(head.get("model") for head in heads)),
            **{"texts": len(scenario.texts), "tokens": scenario.goal, "drafters": list(scenario.drafters)},
            **{"lengths": list(scenario.lengths), "cost": self.cost, "costs": dataclasses.asdict(scenario.costs)},
            **{"noise": self.noise, "phases": self.phases, "each": self.each},
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
    for spec in chosen:
        build(spec, scenario.arms, tokens=scenario.goal)  # refused now, before a bar is drawn
    if explain is not None:
        for line in _explained(scenario, chosen[0], experiment.seed, explain):
            print(line)
        return
    in_phases = replayed.phases is not None
    marks = even_marks(scenario.goal) if in_phases else None
    comparison = experiment.compare("replaying", scenario, chosen, marks=marks)
    report = Report(comparison, sorted({text.label for text in scenario.texts}))
    console = wide(160)
    count = f"{len(scenario.texts):,} texts, {scenario.goal:,} tokens"
    console.print(report.policies(f"{count}, {experiment.runs} runs, cost {replayed.cost}"))
    console.print(report.tasks())
    each, ends = replayed.each or 4, list(accumulate(text.tokens - 1 for text in scenario.texts))
    changes = adapted(comparison, [0, *ends[each - 1 :: each]]) if in_phases else []  # tokens where phases begin
    if changes:
        console.print(changes_table(changes))
    how = {"runs": experiment.runs, "seed": experiment.seed}
    output.write({**replayed.json(heads, scenario), **how, **report.json(), "changes": changes})


def _read(files: Sequence[Path], drafters: str | None) -> tuple[list[dict[str, Any]], tuple[Text, ...]]:
    """Headers and texts of all recordings, with the drafters wanted."""
    heads: list[dict[str, Any]] = []
    texts: list[Text] = []
    wanted = None if drafters is None else [name.strip() for name in drafters.split(",")]
    for path in files:
        head, own = recordings.read(path)
        heads.append(head)
        for name in wanted or ():
            if not all(name in text.tracks for text in own):
                there = ", ".join(own[0].tracks)
                raise ValueError(f"drafter {name!r} was not recorded in {path}; there are {there or 'none'}")
        texts += own if wanted is None else [_narrowed(text, wanted) for text in own]
    return heads, tuple(texts)


def _narrowed(text: Text, names: Sequence[str]) -> Text:
    """The text with these drafters only."""
    kept = {a: {b: n for b, n in others.items() if b in names} for a, others in text.agreement.items() if a in names}
    return dataclasses.replace(text, tracks={name: text.tracks[name] for name in names}, agreement=kept)


def _longest(head: Mapping[str, Any], path: Path) -> int:
    longest = head.get("longest")
    if not isinstance(longest, int) or longest < 1:
        raise ValueError(f"{path} does not say in its header how many tokens drafters were asked for (longest)")
    return longest


def _explained(scenario: Replay, spec: str, seed: int, count: int) -> Iterator[str]:
    """One line for each of the first rounds: what the policy expected of its two best arms, and what came."""
    check_explains(spec)
    policy = build(spec, scenario.arms, seed=seed, tokens=scenario.goal)
    environment = scenario.start(seed, policy)
    wide = max(len(text.label) for text in scenario.texts)
    for _ in range(count):
        if environment.done:
            return
        label, context = environment.label, environment.context()
        outcome = environment.play(policy.choose(context))
        yield f"{label:{wide}} {explained(context.tokens, outcome, policy.options()[:2])}"
        policy.observe(outcome)
