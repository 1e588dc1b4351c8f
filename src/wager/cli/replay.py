"""`wager replay`: policies against each other on recorded texts, without a model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.cli.bars import compared
from wager.cli.explained import check_explains, explained
from wager.cli.files import check_writable, write_json
from wager.cli.replayed import Report, adapted, changes_table
from wager.cli.simulate import VERIFY, parse_ints
from wager.core import recording as recordings
from wager.core.recording import Text
from wager.policies import build
from wager.simulation import Replay, RoundCost, VerifyCost, joined
from wager.simulation.experiment import even_marks
from wager.simulation.replay import NOISE

DEFAULT_POLICIES = ["auto", "kl-ucb:reward=goodput", "ucbspec", "meta-ucb", "analytical", "nightjar"]
LONGEST = 8  # tokens of the longest arm, unless told otherwise

_SHAPE = "What is replayed"
_RUN = "Experiment"
_OUT = "Results"


def command(
    files: Annotated[
        list[Path], typer.Argument(metavar="RECORDINGS", help="Made by wager record.", show_default=False)
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            help="NAME or NAME:parameter=value,…; repeat it. See wager policies.",
            show_default=", ".join(DEFAULT_POLICIES),
            rich_help_panel=_RUN,
        ),
    ] = None,
    cost: Annotated[
        str,
        typer.Option(
            help=f"Seconds of a verification by width: measured (with the first recording), {', '.join(VERIFY)}, or a "
            "JSON file with costs or from wager bench engine.",
            rich_help_panel=_SHAPE,
        ),
    ] = "measured",
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Draft lengths that are arms; off always is one.", show_default="1 to 8", rich_help_panel=_SHAPE
        ),
    ] = None,
    drafters: Annotated[
        str | None,
        typer.Option(
            help="Only these, separated by commas.", show_default="all that were recorded", rich_help_panel=_SHAPE
        ),
    ] = None,
    noise: Annotated[
        float,
        typer.Option(help="Standard deviation of a round's seconds, as a share of them.", rich_help_panel=_SHAPE),
    ] = NOISE,
    phases: Annotated[
        str | None,
        typer.Option(
            help="Labels in the order their texts come, separated by commas.",
            show_default="all texts, shuffled",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    each: Annotated[
        int | None, typer.Option(min=1, help="Texts a phase.", show_default="4", rich_help_panel=_SHAPE)
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Runs per policy, each with a seed of its own.", rich_help_panel=_RUN)
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run.", rich_help_panel=_RUN)] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes.", rich_help_panel=_RUN, show_default="one per core")
    ] = None,
    explain: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead of tables: why the first policy chose as it did in so many rounds of the first run.",
            rich_help_panel=_OUT,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file.", rich_help_panel=_OUT)
    ] = None,
) -> None:
    """Replay recorded texts under policies, every fixed arm and the clairvoyant; no model needed."""
    if json_file is not None:
        check_writable(json_file)
    if each is not None and phases is None:
        raise ValueError("--each is the number of texts of a phase; say with --phases which there are")
    heads, texts = _read(files, drafters)
    if phases is not None:
        texts = joined(texts, [label.strip() for label in phases.split(",")], each or 4)
    longest = min(_longest(head, path) for head, path in zip(heads, files, strict=True))
    tried = tuple(range(1, min(LONGEST, longest) + 1)) if lengths is None else parse_ints(lengths, "--lengths")
    if max(tried) > longest:
        raise ValueError(f"drafts of at most {longest} tokens were recorded; --lengths asks for {max(tried)}")
    scenario = Replay(texts, parse_cost(cost, heads[0]), tried, noise, phases is not None)
    chosen = policy or DEFAULT_POLICIES
    for spec in chosen:
        build(spec, scenario.arms, tokens=scenario.goal)  # refused now, before a bar is drawn
    if explain is not None:
        for line in _explained(scenario, chosen[0], seed, explain):
            print(line)
        return
    marks = even_marks(scenario.goal) if phases is not None else None
    comparison = compared("replaying", scenario, chosen, jobs, runs=runs, seed=seed, marks=marks)
    report = Report(comparison, sorted({text.label for text in texts}))
    console = Console()
    if not console.is_terminal:  # a pipe has no width of its own
        console.width = 160
    title = f"{len(texts):,} texts, {scenario.goal:,} tokens, {runs} runs, cost {cost}"
    console.print(report.policies(title))
    console.print(report.tasks())
    changes = adapted(comparison, _starts(texts, each or 4)) if phases is not None else []
    if changes:
        console.print(changes_table(changes))
    if json_file is not None:
        said: dict[str, Any] = {
            "recordings": [str(path) for path in files],
            "models": list(dict.fromkeys(head.get("model") for head in heads)),
            "texts": len(texts),
            "tokens": scenario.goal,
            "drafters": list(scenario.drafters),
            "lengths": list(tried),
            "cost": cost,
            "costs": dataclasses.asdict(scenario.costs),
            **{"noise": noise, "runs": runs, "seed": seed, "phases": phases, "each": each},
        }
        write_json(json_file, {**said, **report.json(), "changes": changes})


def _starts(texts: Sequence[Text], each: int) -> list[int]:
    """Tokens at which each phase begins, and those of all at the end."""
    ends = list(accumulate(text.tokens - 1 for text in texts))
    return [0, *ends[each - 1 :: each]]


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
        if wanted is not None:
            own = [_narrowed(text, wanted) for text in own]
        texts += own
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


# -- costs


def parse_cost(text: str, head: Mapping[str, Any]) -> RoundCost:
    """Costs by name, or from a file; what a file leaves out is as it was when the texts were recorded."""
    costs = head.get("costs")
    recorded: dict[str, Any] = costs if isinstance(costs, dict) else {}
    if text == "measured":
        if "verify" not in recorded:
            raise ValueError(f"the recording holds no measured costs; choose --cost {', '.join(VERIFY)} or a file")
        return _cost(recorded, "the recording's header")
    if text in VERIFY:
        return _cost({**recorded, "verify": VERIFY[text]}, "the recording's header")
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"--cost is measured, {', '.join(VERIFY)} or a file, and there is no file {text!r}")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if "widths" in body:
            body = {"verify": [[row["width"], row["seconds"]["wager"]["median"]] for row in body["widths"]]}
        return _cost({**recorded, "verify": body["verify"], **body}, text)
    except (ValueError, KeyError, TypeError) as error:
        if str(error).startswith("the costs in"):
            raise
        raise ValueError(
            f'{path} holds no costs: neither {{"verify": [[WIDTH, SECONDS], …], …}} nor results of wager bench engine'
        ) from None


def _cost(body: Mapping[str, Any], where: str) -> RoundCost:
    try:
        verify = VerifyCost(tuple((int(width), float(seconds)) for width, seconds in body["verify"]))
        drafting = ({str(k): float(v) for k, v in body.get(key, {}).items()} for key in ("propose", "step", "lag"))
        return RoundCost(verify, *drafting)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"the costs in {where} are not seconds by width and by drafter ({error})") from None


# -- why


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
