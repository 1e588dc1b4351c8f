"""docs/reproduction.md, made of the kept results: it cannot say what they do not."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.experiment import NO, PART, UNTRIED, YES, Experiment, shown
from reproduction.registry import EXPERIMENTS, PAPERS

FOLDER = "reproduction"  # of results/, one file an experiment
COLUMNS = ("", "what it claims", "re-run with", "our figure", "holds", "why not")
HEAD = """# The papers' tables and figures, re-run

For every table and figure of the four papers that shows results: what it claims, the command that re-runs it on the
models that can be had here, what came out, and whether the claim holds. The experiments are not part of the installed
package: they run from a checkout. This page is written by `python -m reproduction --doc docs/reproduction.md` from
`results/reproduction/` and from the longer results it names; whether a claim holds is computed from the figures, part
by part: *yes* if all parts of it do, *in part* if some do, *no* if none does.

```
python -m reproduction                             # lists them all
python -m reproduction banditspec-table1 --quick   # one, in less than five minutes on two cores
python -m reproduction metasd --quick              # all of a paper; runs that experiments share are made once
make reproduce                                     # all in their short form, and this page
```

Without `--quick` the same experiments take more prompts, longer texts and longer simulations. Prompts come from the
folder that `--data` or `WAGER_DATA` names; without one, from the small set that comes with wager.

**What differs throughout.** The only target is SmolLM2-135M with the drafters shipped for it; the papers' have 7 to
70 billion parameters. Where a figure is of recorded texts, rounds cost what a stated table says
(`reproduction/costs.py`), so that it does not depend on how busy a machine is; in real rounds every round
counts as the median of its width. *Speed* is in times plain decoding, *tokens a round* includes the target's own.
Small figures from two prompts a task say little about near equals: where a longer result is named, the verdict is
that result's.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """An experiment and the result its verdict rests on."""

    experiment: Experiment
    told: Mapping[str, Any]  # the outcome, as JSON
    source: str  # what it was made with
    quick: Mapping[str, Any] | None  # the quick outcome, where a longer one decided


def read(results: Path, experiment: Experiment) -> Row | None:
    """The kept result of an experiment, longer ones first; None where there is none."""
    path = results / FOLDER / f"{experiment.name}.json"
    quick = _load(path) if path.is_file() else None
    for longer in experiment.longer:
        files = [results / name for name in longer.files]
        if not all(file.is_file() for file in files):
            continue
        contents = [_load(file) for file in files]
        try:
            outcome = (longer.evaluate or experiment.evaluate)(contents)
        except (KeyError, ValueError):  # made with other methods than the claim is about
            continue
        source = "; ".join(_source(name, content) for name, content in zip(longer.files, contents, strict=True))
        return Row(experiment, json.loads(json.dumps(outcome.json())), source, quick)
    if quick is None:
        return None
    form = "quick" if quick.get("quick") else "full"
    link = f"[{form}](../results/{FOLDER}/{experiment.name}.json)"
    return Row(experiment, quick, f"{link}, {quick.get('machine', '')}, {quick.get('date', '')}", None)


def _source(name: str, content: Mapping[str, Any]) -> str:
    """A longer result: its file, machine, date and command."""
    command = str(content.get("command", "")).partition(" -- ")[0]  # what follows is another program's
    about = (
        f"[{name}](../results/{name})",
        content.get("device") or content.get("machine", ""),
        content.get("date", ""),
    )
    return ", ".join([*filter(None, about), *([f"`{command}`"] if command else [])])


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError
    except ValueError:
        raise ValueError(f"{path} holds no result: it is not a JSON object; run its experiment again") from None
    return content


def page(results: Path) -> str:
    """The whole page; every experiment has a row, and one without a result says so."""
    rows = {name: read(results, experiment) for name, experiment in EXPERIMENTS.items()}
    parts = [HEAD, _count(list(rows.values()))]
    for paper, title in PAPERS.items():
        own = [(name, row) for name, row in rows.items() if EXPERIMENTS[name].paper == paper]
        parts.append(f"## {title}\n")
        parts.append(_table([COLUMNS, *(_cells(EXPERIMENTS[name], row) for name, row in own)]))
    parts.append(
        "## The figures\n\nEvery claim taken apart, with what differs from the paper and the figures in full.\n"
    )
    parts += [_details(EXPERIMENTS[name], row) for name, row in rows.items() if row is not None]
    return "\n".join(parts)


def _count(rows: Sequence[Row | None]) -> str:
    verdicts = [row.told["holds"] for row in rows if row is not None]
    said = ", ".join(
        f"{sum(v == kind for v in verdicts)} {kind}" for kind in (YES, PART, NO, UNTRIED) if kind in verdicts
    )
    return f"Of {len(rows)} tables and figures: {said}" + (
        f", {len(rows) - len(verdicts)} not run yet.\n" if len(verdicts) < len(rows) else ".\n"
    )


def _cells(experiment: Experiment, row: Row | None) -> tuple[str, ...]:
    command = f"`python -m reproduction {experiment.name} --quick`"
    if row is None:
        return (experiment.place, experiment.claim, command, "not run yet", "", "")
    first = f"[{experiment.place}](#{experiment.name})"
    return (first, experiment.claim, command, row.told["headline"], f"**{row.told['holds']}**", _short(row.told))


def _short(told: Mapping[str, Any]) -> str:
    """Which parts do not hold, counted, and the reasons."""
    failed = [check for check in told["checks"] if not check["holds"]]
    if not failed:
        return ""
    reasons = list(dict.fromkeys(check["because"] for check in failed if check["because"]))
    said = reasons or [f"Not: {check['says']}." for check in failed]
    return " ".join([f"{len(failed)} of {len(told['checks'])} parts fail.", *said])


def _details(experiment: Experiment, row: Row) -> str:
    lines = [
        f'### <a id="{experiment.name}"></a>{PAPERS[experiment.paper]}, {experiment.place}',
        "",
        f"*In the paper*: {experiment.what}. *Here*: {experiment.differs.strip()}",
        "",
        f"*From*: {row.source}.",
        "",
    ]
    lines += [f"- {'holds' if check['holds'] else '**fails**'}: {check['says']}" for check in row.told["checks"]]
    figures = row.told["figures"]
    lines += ["", _table([figures["columns"], *([shown(cell) for cell in line] for line in figures["rows"])])]
    if row.quick is not None:
        lines.append(
            f"The quick form on {row.quick.get('machine', 'a CPU')} ({row.quick['holds']}): {row.quick['headline']}.\n"
        )
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]]) + "\n"
