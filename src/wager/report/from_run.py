"""A run of `wager bench`: every answer of every method, round by round."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wager.report.colours import drafter_of, length_of
from wager.report.scales import TIMES
from wager.report.views import (
    Big,
    Choice,
    Cost,
    Curve,
    Drafted,
    Material,
    Measure,
    Method,
    Regret,
    Source,
    Speedups,
    Text,
    TextRound,
)

FORMAT, VERSION = "wager-run", 1
INTERVAL = "95 % intervals by bootstrap over prompts"
KINDS = ("plain", "peer", "off", "arm", "policy")
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]  # method -> prompt -> answer


def with_answers(run: dict[str, Any], path: Path) -> dict[str, Any]:
    """A run that is not complete, with the answers that lie beside it."""
    beside = path.with_name("answers.jsonl")
    if run.get("complete") is not False or not beside.exists():
        return run
    found = []
    for line in beside.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the answer in hand when it was cut
    return {**run, "answers": found} if len(found) > len(run.get("answers") or ()) else run


def ran(run: Mapping[str, Any], source: Source) -> Material:
    """All figures of a run."""
    made = Material(source, verdict=[str(line) for line in run.get("verdict") or ()])
    kinds = {m["name"]: m["kind"] for m in run["methods"]}
    odd = next((kind for kind in kinds.values() if kind not in KINDS), None)
    if odd is not None:
        raise ValueError(f"a method's kind is one of {', '.join(KINDS)}, not {odd!r}")
    task_of = {p["id"]: p["task"] for p in run["prompts"]}
    by: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in kinds}
    for answer in run["answers"]:
        if not (answer["tokens"] > 0 and answer["seconds"] > 0 and math.isfinite(answer["seconds"])):
            raise ValueError(f"the answer of {answer['method']} to {answer['prompt']} has no tokens or no seconds")
        by[answer["method"]][answer["prompt"]] = answer
    summary = run.get("summary") or {}
    if summary.get("tasks"):
        done = [p for p in task_of if all(p in own for own in by.values())]  # by every method: only those compare
        made.speedups.append(_speedups(summary, source))
        made.regrets += _regrets(by, kinds, done, summary["tasks"][0]["best_arm"], source)
        made.figures = _figures(summary, run["answers"])
    arms = [str(arm) for arm in run["arms"]]
    order = {p: i for i, p in enumerate(task_of)}
    for name, kind in kinds.items():
        if kind == "policy":
            own = sorted(by[name].values(), key=lambda a: order[a["prompt"]])
            if any(a.get("rounds") for a in own):
                made.choices.append(_choice(name, own, arms, task_of, source))
    rounds = [r for answer in run["answers"] for r in answer.get("rounds") or ()]
    pairs = drafted_pairs((arms[r[0]], r[1], r[2]) for r in rounds)
    if pairs:
        made.drafted.append(Drafted(source, pairs))
    cost = verify_cost([(r[1] + 1, r[5]) for r in rounds])
    if cost:
        how = "Median seconds of the target's verification in all rounds, by their width; a width in 5 rounds or more."
        made.costs.append(Cost(source, {"wager": cost}, "quartiles", how))
    worded = [a for a in run["answers"] if a.get("pieces")]
    worded.sort(key=lambda a: (a["method"] != "auto", a["method"], order[a["prompt"]]))
    made.texts = [text_of(f"{a['prompt']} · {a['method']}", a["pieces"], source) for a in worded]
    return made


def _speedups(summary: Mapping[str, Any], source: Source) -> Speedups:
    """The run's own figures, as it printed them."""
    every, *tasks = summary["tasks"]
    methods = [
        Method(
            row["method"],
            row["kind"],
            _measure(row),
            {
                task["task"]: _measure(own)
                for task in tasks
                for own in task["methods"]
                if own["method"] == row["method"]
            },
        )
        for row in every["methods"]
    ]
    how = (
        f"Tokens over seconds of whole calls, the prompt's own forward included, over {every['prompts']} prompts; "
        "a task of one prompt has no interval."
    )
    return Speedups(source, summary["base"], [task["task"] for task in tasks], methods, INTERVAL, INTERVAL, how)


def _measure(row: Mapping[str, Any]) -> Measure:
    low, high = row.get("interval") or (None, None)
    return Measure(float(row["speedup"]), low, high)


def _regrets(
    by: Answers, kinds: Mapping[str, str], done: Sequence[str], best: str | None, source: Source
) -> list[Regret]:
    policies = [name for name, kind in kinds.items() if kind == "policy"]
    if best is None or not policies or not done:
        return []
    curves = []
    for name in policies:
        x, y, at, lost = [0.0], [0.0], 0, 0.0
        for prompt in done:
            ours, theirs = by[name][prompt], by[best][prompt]
            at += ours["tokens"]
            lost += ours["seconds"] - ours["tokens"] * theirs["seconds"] / theirs["tokens"]
            x.append(float(at))
            y.append(lost)
        curves.append(Curve(name, x, y))
    how = f"After each prompt: a policy's seconds less those of {best} for as many tokens on the same prompt."
    return [Regret(source, best, "seconds", curves, how)]


def _figures(summary: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> list[Big]:
    rows = summary["tasks"][0]["methods"]
    lead = _lead(rows)
    base = summary["base"]
    spread = "95 % interval {:.2f} to {:.2f}".format(*lead["interval"]) if lead.get("interval") else ""
    big = [
        Big(f"{lead['speedup']:.2f}{TIMES}", f"{lead['method']} over {base}", spread),
        Big(f"{lead['tokens_per_second']:.1f}", "tokens a second", f"{base}: {rows[0]['tokens_per_second']:.1f}"),
        Big(f"{lead['mat']:.2f}", "tokens a round", "MAT, bonus included"),
    ]
    judged = [a for a in answers if a["method"] != base and a.get("same") is not None]
    if judged:
        same = sum(bool(a["same"]) for a in judged)
        big.append(Big(f"{same:,} of {len(judged):,}", "texts identical", f"to those of {base}"))
    return big


def _lead(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The method that the run's verdict is about: auto, else the first policy, else the fastest after the first."""
    policies = [row for row in rows if row["kind"] == "policy"]
    auto = next((row for row in policies if row["method"].partition(":")[0] == "auto"), None)
    return auto or next(iter(policies), None) or max(rows[1:] or rows, key=lambda row: float(row["speedup"]))


def _choice(
    name: str, answers: Sequence[Mapping[str, Any]], arms: Sequence[str], task_of: Mapping[str, str], source: Source
) -> Choice:
    played: list[str] = []
    marks: list[tuple[int, str]] = []
    for answer in answers:
        task = task_of[answer["prompt"]]
        if not marks or marks[-1][1] != task:
            marks.append((len(played), task))
        played += [arms[r[0]] for r in answer.get("rounds") or ()]
    return Choice(source, name, played, marks if len(marks) <= 16 else ())


def drafted_pairs(rounds: Any) -> dict[str, list[tuple[int, int]]]:
    """(arm, drafted, accepted) of rounds as (depth, accepted) by drafter; trees, whose depth is the arm's, apart."""
    found: dict[str, list[tuple[int, int]]] = {}
    for arm, drafted, accepted in rounds:
        if drafted and arm != "off":
            tree = "@" in arm
            depth = max(accepted, min(length_of(arm), drafted)) if tree else drafted
            found.setdefault(drafter_of(arm) + (" (tree)" if tree else ""), []).append((depth, accepted))
    return found


def verify_cost(taken: Sequence[tuple[int, float]], least: int = 5) -> dict[int, Measure]:
    """Median and quartiles of seconds by width, for widths that were met often enough."""
    by: dict[int, list[float]] = {}
    for width, seconds in taken:
        if seconds > 0:
            by.setdefault(width, []).append(seconds)
    known = {width: held for width, held in by.items() if len(held) >= least}
    if len(known) < 2:
        return {}
    out = {}
    for width, held in known.items():
        low, _, high = statistics.quantiles(held, n=4)
        out[width] = Measure(statistics.median(held), low, high)
    return out


def text_of(title: str, pieces: Sequence[Any], source: Source) -> Text:
    """A text from its pieces."""
    rounds = [
        TextRound(str(arm), [(str(text), str(who)) for text, who in tokens], [str(t) for t in rejected])
        for arm, tokens, rejected in pieces
    ]
    return Text(source, title, rounds)
