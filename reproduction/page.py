"""docs/reproduction.md, made of the kept results: it cannot say what they do not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction import causes, flags, protocol, result_files
from reproduction import pictures as drawn
from reproduction.experiment import VERDICTS, Experiment, shown
from reproduction.inference import UNDECIDED
from reproduction.registry import EXPERIMENTS, PAPERS, PLACES
from reproduction.rows import counted
from reproduction.summary import summary

FOLDER = "reproduction"  # of results/, one file an experiment
PICTURES = Path("img")
COLUMNS = ("", "what it claims", "verdict", "parts that hold, do not, undecided", "on", "as in the paper, and not")
AGE = "## Results older than the code they measure"
HEAD = """# The papers' tables and figures, tested

Every table and figure of the four papers that shows results is a row here: what it claims, how it was tested, on how
much, and whether the claim holds. The page is written by `python -m reproduction --doc docs/reproduction.md` from
`results/reproduction/`; nothing on it is typed in.

"""
RULE = """## How a verdict is reached

- A claim is taken apart into parts. A part compares two methods on the same prompts (or the same seeds of a
  simulation): one difference a prompt, the mean over 20 shuffles. The 95 % interval of the mean difference is by
  bootstrap over prompts (`reproduction/inference.py`).
- A part *holds* where the whole interval is on the paper's side, *does not hold* where none of it is, and is
  *undecided* otherwise. With fewer than 20 prompts or 5 seeds it is undecided, whatever the interval.
- A row that is undecided says part by part why, and which command on which machine would decide it.
- A row *holds* where all parts do, holds *in part* where more than half do, and *does not hold* where no majority would
  hold even if every undecided part turned out in favour. Otherwise it is *undecided*. *Not tested*: the paper claims
  nothing there.
- Beside the verdict stands what differs from the paper's protocol, field by field; ours is read from the run. Warnings
  are computed, too: a policy that played one arm in 99 % of its rounds and some other never, speeds that are not
  medians.
- Claims about specialists are tested with specialists only. Where a drafter brings less than 15 % more tokens a round
  on its own task than the best other specialist, the parts that rest on it are undecided, and the row says by how much.
  Parts that are about no single task are undecided where at least half of the specialists are none.
- How long a head takes to catch up on tokens it missed was timed for 64 of them only. It counts as fixed on a GPU, by
  the token on a CPU (`reproduction/costs.py`); every row that rests on it also says what the other reading would give.
- Servers under a changing load are simulated with costs fitted to steps measured on a GPU (`reproduction/fitted.py`;
  how far off the fit is stands beside the row's hardware). Drafting and the slope in tokens are varied by 0.8 and 1.25,
  switching by 0 and 2. Beside a part's interval stands the band of its mean; a part whose sign changes in it is
  undecided.
- Results of earlier runs without figures a prompt are shown, and no verdict rests on them.

```sh
python -m reproduction                        # lists all rows
python -m reproduction banditspec-figure3     # tests one
make reproduce                                # all rows that need no model, and this page
make reproduce FULL=1                         # prints the commands behind every result, and what would decide the rest
```

A row that needs a recording finds it in `results/recordings/` by what it holds; new recordings are used as soon as they
are there. Rows that need the model itself are run with `--with-model`. Where it was measured, a row names the seconds
of a core that its runs took.

"""


def read_all(results: Path) -> dict[str, dict[str, Any] | None]:
    """The kept result of every row; None where there is none of this form."""
    found: dict[str, dict[str, Any] | None] = {}
    for name in EXPERIMENTS:
        path = results / FOLDER / f"{name}.json"
        told = result_files.read(path) if path.is_file() else None
        found[name] = told if told is not None and "verdict" in told else None
    return found


def page(rows: Mapping[str, Mapping[str, Any] | None], results: Path) -> str:
    """The page but for what depends on the history of the checkout."""
    parts = [HEAD, summary(rows, EXPERIMENTS, PAPERS, str(PICTURES)), RULE, _count(rows)]
    for paper, title in PAPERS.items():
        own = {name: row for name, row in rows.items() if EXPERIMENTS[name].paper == paper}
        parts.append(f"## {title}\n\n")
        parts.append(_table([COLUMNS, *(_cells(EXPERIMENTS[name], row) for name, row in own.items())]))
        parts.append(_without_results(paper))
    parts.append(
        "## Every row\n\nEvery claim taken apart, with the protocols of both sides and the figures in full.\n\n"
    )
    parts += [_details(EXPERIMENTS[name], row, results) for name, row in rows.items()]
    return "".join(parts)


def pictures(rows: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """One picture a paper, by file name."""
    found = {}
    for paper, title in PAPERS.items():
        own = {EXPERIMENTS[name].place: row for name, row in rows.items() if EXPERIMENTS[name].paper == paper}
        found[f"reproduction-{paper}.svg"] = drawn.picture(title, own)
    return found


def older_than_code(results: Path) -> str:
    """The results whose sources changed since they were made, or that do not say with what they were made."""
    rows = []
    for path in sorted([*results.glob("*.json"), *(results / FOLDER).glob("*.json")]):
        content = result_files.read(path)
        name = path.relative_to(results).as_posix()
        says = [why for why in result_files.problems(content, results.parent) if "not known" in why or "commit" in why]
        if changed := result_files.stale(content, results.parent):
            says.append(f"changed since: {changed}")
        if says:
            rows.append((f"[{name}](../results/{name})", str(content.get("commit", ""))[:24], "; ".join(says)))
    if not rows:
        return f"{AGE}\n\nNone.\n"
    return f"{AGE}\n\nThese should be measured again; `git` told so when the page was made.\n\n" + _table(
        [("result", "made with", "why"), *rows]
    )


def _count(rows: Mapping[str, Mapping[str, Any] | None]) -> str:
    verdicts = [row["verdict"] for row in rows.values() if row is not None]
    words = {"holds": "hold", "in part": "hold in part", "does not hold": "do not hold", "undecided": "are undecided"}
    said = ", ".join(f"{verdicts.count(kind)} {words.get(kind, kind)}" for kind in VERDICTS if kind in verdicts)
    left = len(rows) - len(verdicts)
    return f"Of {len(rows)} tables and figures: {said}" + (f", {left} not run yet" if left else "") + ".\n\n"


def _without_results(paper: str) -> str:
    left = [f"{place} ({own['shows']})" for place, own in PLACES[paper].items() if not own["results"]]
    return f"Without results, and so no rows: {', '.join(left)}.\n\n" if left else ""


def _cells(experiment: Experiment, row: Mapping[str, Any] | None) -> tuple[str, ...]:
    first = f"[{experiment.place}](#{experiment.name})"
    if row is None:
        return (first, experiment.claim, "**undecided**", "", "not run", f"To decide it: {experiment.decides}.")
    if row["missing"]:
        return (first, experiment.claim, "**undecided**", "", "nothing yet", f"To decide it: {experiment.decides}.")
    counts = ", ".join(str(n) for n in counted(row).values()) if row["parts"] else ""
    compared = protocol.compared(experiment.name, row["protocol"])
    same, other = ([says for says, *_, alike in compared if alike is which] for which in (True, False))
    said = f"Same: {', '.join(same) or 'nothing'}. Differs: {', '.join(other)}." if compared else ""
    return (first, experiment.claim, f"**{row['verdict']}**", counts, _sample(row), said)


def _sample(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in row["sample"].items())


def _details(experiment: Experiment, row: Mapping[str, Any] | None, results: Path) -> str:
    lines = [
        f'### <a id="{experiment.name}"></a>{PAPERS[experiment.paper]}, {experiment.place}',
        "",
        f"*In the paper*: {experiment.what}. *The claim*: {experiment.claim}",
        "",
    ]
    if note := experiment.texts.get("note"):
        lines += [f"*Here*: {note}", ""]
    lines += _found(experiment, row) if row is not None and not row["missing"] else _nothing(experiment, row)
    for name in experiment.older:
        path = results / name
        if path.is_file():
            lines += _older(name, result_files.read(path))
    return "\n".join(lines) + "\n"


def _nothing(experiment: Experiment, row: Mapping[str, Any] | None) -> list[str]:
    why = "; ".join(row["missing"]) if row is not None else "not run"
    lines = [f"**Undecided**: {why}. What would decide it: {experiment.decides}.", ""]
    rows = [(says, theirs) for says, theirs, *_ in protocol.compared(experiment.name, {"": ""})]
    return [*lines, _table([("protocol", "the paper's"), *rows])]


def _found(experiment: Experiment, row: Mapping[str, Any]) -> list[str]:
    link = f"[{experiment.name}.json](../results/{FOLDER}/{experiment.name}.json)"
    about = f"{row['machine']}, {row['date']}"
    about += f", {row['took']:,.0f} s of a core" if row["took"] is not None else ""
    lines = [
        f"**{row['verdict'].capitalize()}**"
        + (f", on {sample}" if (sample := _sample(row)) else "")
        + f". {row['headline']}."
    ]
    lines += ["", f"*From* {link}: {about}, `{row['command']}`.", ""]
    if row["untested"]:
        lines += [row["untested"], ""]
    lines += [f"- {_bold(part['verdict'])}: {part['says']}{_effect(part)}" for part in row["parts"]]
    if row.get("premise"):
        lines += ["", f"*Not tested by this*: {row['premise']}."]
    if row["verdict"] == UNDECIDED:
        lines += ["", f"*Why it is undecided*: {causes.told(row)}."]
    if row["because"] and row["verdict"] != "holds":
        lines += ["", row["because"]]
    if row["flags"]:
        lines += ["", *(f"- Warning: {says}." for says in row["flags"])]
    if other := row.get("otherwise"):
        changed = f"{len(other['changed'])} of {other['parts']} parts decided otherwise"
        lines += ["", f"If {other['if']}, the row would be: {other['verdict']} ({changed})."]
        lines += ["", *(f"- {says}" for says in other["changed"])] if other["changed"] else []
    if row["verdict"] != "holds" and experiment.decides:
        lines += ["", f"What would settle it: {experiment.decides}."]
    if compared := protocol.compared(experiment.name, row["protocol"]):
        rows = [(says, theirs, own, "" if same else "differs") for says, theirs, own, same in compared]
        lines += ["", _table([("protocol", "the paper's", "ours", ""), *rows])]
    figures = row["figures"]
    if figures["columns"]:
        cells = [[shown(cell) for cell in line] for line in figures["rows"]]
        lines += ["", _table([figures["columns"], *cells])]
    return lines


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict == "does not hold" else verdict


def _effect(part: Mapping[str, Any]) -> str:
    return f": {part['effect']}" if part["effect"] else ""


def _older(name: str, content: Mapping[str, Any]) -> list[str]:
    """An earlier run: its figures, and what is wrong with them."""
    about = ", ".join(
        filter(None, (str(content.get("device") or content.get("machine", "")), str(content.get("date", ""))))
    )
    lines = [f"*An earlier run, on which no verdict rests*: [{name}](../results/{name}), {about}.", ""]
    warned = flags.of_older(name, content)
    lines += [*(f"- Warning: {says}." for says in warned), *([""] if warned else [])]
    methods = content.get("methods")
    if isinstance(methods, list):
        rows = [
            (str(m["method"]), shown(float(m.get("steady") or m["speedup"])), shown(float(m["mat"]))) for m in methods
        ]
        lines.append(_table([("method", "times plain decoding", "tokens a round"), *rows]))
    elif isinstance(content.get("policies"), list):
        rows = [
            (p["policy"], f"{p['goodput']['mean']:,.1f}", f"± {p['goodput']['half_width_95'] or 0:,.1f}")
            for p in content["policies"]
        ]
        lines.append(_table([("policy", "tokens a second", "95 %"), *rows]))
    return lines


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]]) + "\n\n"
