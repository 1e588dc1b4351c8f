"""A run of `wager bench`, every answer of every method round by round, and a trace, the rounds of one policy."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wager.core import trace as traces
from wager.core.arm import Arm
from wager.core.round import Round
from wager.report.colours import Palette, drafter_of, length_of
from wager.report.figures.choice import by_batch, choice
from wager.report.figures.lines import cost, regret, survival
from wager.report.figures.speed import speed
from wager.report.scales import TIMES, plural
from wager.report.tokens import token_view
from wager.report.views import MAT, Big, Curve, Figure, Material, Measure, Method, Source

FORMAT, VERSION = "wager-run", 1
INTERVAL = "95 % intervals by bootstrap over prompts"
KINDS = ("plain", "peer", "off", "arm", "policy")
OFF = "off, the same engine without speculation"
Json = Mapping[str, Any]


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


def unfinished(run: Json, source: Source) -> str:
    """How far a run has come."""
    whole = len(run["methods"]) * len(run["prompts"])
    return f"{source.file} is not finished: {len(run['answers']):,} of {whole:,} answers are there."


def ran(run: Json, source: Source, palette: Palette) -> Material:
    """All figures of a run."""
    made = Material(source, verdict=[str(line) for line in run.get("verdict") or ()])
    kinds = {m["name"]: m["kind"] for m in run["methods"]}
    for odd in (kind for kind in kinds.values() if kind not in KINDS):
        raise ValueError(f"a method's kind is one of {', '.join(KINDS)}, not {odd!r}")
    task_of = {p["id"]: p["task"] for p in run["prompts"]}
    by: dict[str, dict[str, Json]] = {name: {} for name in kinds}  # method -> prompt -> answer
    for answer in run["answers"]:
        if not (answer["tokens"] > 0 and answer["seconds"] > 0 and math.isfinite(answer["seconds"])):
            raise ValueError(f"the answer of {answer['method']} to {answer['prompt']} has no tokens or no seconds")
        by[answer["method"]][answer["prompt"]] = answer
    if not source.complete:
        made.verdict = [unfinished(run, source)]
    summary, arms = run.get("summary") or {}, [str(arm) for arm in run["arms"]]
    policies = [name for name, kind in kinds.items() if kind == "policy"]
    if summary.get("tasks"):
        done = [p for p in task_of if all(p in own for own in by.values())]  # by every method: only those compare
        made.cards.append(_speedups(summary, source))
        best = summary["tasks"][0]["best_arm"]
        made.cards += [_regret(by, policies, done, best, source)] if best and policies and done else []
        made.figures = _figures(summary, run["answers"])
    for name in policies:
        own = [by[name][prompt] for prompt in task_of if prompt in by[name]]
        if any(a.get("rounds") for a in own):
            made.cards.append(_choice(name, own, arms, task_of, palette, source))
    rounds = [r for answer in run["answers"] for r in answer.get("rounds") or ()]
    made.cards += _rounds([(_arm(arms, r[0]), r[1], r[2], r[5]) for r in rounds], palette, source, " in all rounds")
    order = {p: i for i, p in enumerate(task_of)}
    worded = [a for a in run["answers"] if a.get("pieces")]
    worded.sort(key=lambda a: (a["method"] != "auto", a["method"], order[a["prompt"]]))
    texts = {f"{a['prompt']} · {a['method']}": a["pieces"] for a in worded}
    made.cards += [token_view(texts, palette, source)] if texts else []
    return made


def _speedups(summary: Json, source: Source) -> Figure:
    """The run's own figures, as it printed them."""
    every, *tasks = summary["tasks"]
    methods = []
    for i, row in enumerate(every["methods"]):  # in the same order in every task
        overall, *per = (
            Measure(float(own["speedup"]), *(own.get("interval") or ()))
            for own in (row, *(task["methods"][i] for task in tasks))
        )
        own = dict(zip((task["task"] for task in tasks), per, strict=True))
        methods.append(Method(row["method"], row["kind"], overall, own))
    how = f"Tokens over seconds of whole calls, prefill included, over {plural(every['prompts'], 'prompt')}."
    if len(tasks) > 1 and any(task["prompts"] == 1 for task in tasks):
        how += " A task of one prompt has no interval."
    return speed(methods, INTERVAL, INTERVAL, how, source)


def _regret(
    by: Mapping[str, Mapping[str, Json]], policies: Sequence[str], done: Sequence[str], best: str, source: Source
) -> Figure:
    curves = []
    for name in policies:
        x, y = [0.0], [0.0]
        for prompt in done:
            ours, theirs = by[name][prompt], by[best][prompt]
            x.append(x[-1] + ours["tokens"])
            y.append(y[-1] + ours["seconds"] - ours["tokens"] * theirs["seconds"] / theirs["tokens"])
        curves.append(Curve(name, x, y))
    how = f"After each prompt: a policy's seconds less those of {best} for as many tokens on the same prompt."
    return regret(best, "seconds", curves, how, source)


def _figures(summary: Json, answers: Sequence[Json]) -> list[Big]:
    rows, base = summary["tasks"][0]["methods"], summary["base"]
    # The method that the run's verdict is about: auto, else the first policy, else the fastest after the first.
    policies = [row for row in rows if row["kind"] == "policy"]
    policies.sort(key=lambda row: row["method"].partition(":")[0] != "auto")
    lead = policies[0] if policies else max(rows[1:] or rows, key=lambda row: float(row["speedup"]))
    ratio, interval, against = lead["speedup"], lead.get("interval"), base
    if lead.get("over_off") is not None:  # the same engine without speculation comes first
        ratio, interval, against = lead["over_off"], lead.get("over_off_interval"), OFF
    spread = "95 % interval {:.2f} to {:.2f}".format(*interval) if interval else ""
    big = [
        Big(f"{ratio:.2f}{TIMES}", f"{lead['method']} over {against}", spread),
        Big(f"{lead['tokens_per_second']:.1f}", "tokens per second", f"{base}: {rows[0]['tokens_per_second']:.1f}"),
        Big(f"{lead['mat']:.2f}", "tokens per round", MAT),
    ]
    if judged := [bool(a["same"]) for a in answers if a["method"] != base and a.get("same") is not None]:
        big.append(Big(f"{sum(judged):,} of {len(judged):,}", "texts identical", f"to those of {base}"))
    return big


def _choice(
    name: str, answers: Sequence[Json], arms: Sequence[str], task_of: Json, palette: Palette, source: Source
) -> Figure:
    played: list[str] = []
    marks: list[tuple[int, str]] = []
    for answer in answers:
        task = task_of[answer["prompt"]]
        if not marks or marks[-1][1] != task:
            marks.append((len(played), task))
        played += [_arm(arms, r[0]) for r in answer.get("rounds") or ()]
    return choice(name, played, palette, source, marks)


def _arm(arms: Sequence[str], told: int | str) -> str:
    """By its place among the run's arms, or as it is written, where something was merged into its draft."""
    return arms[told] if isinstance(told, int) else Arm.parse(told).label


def _rounds(
    rounds: Iterable[tuple[str, int, int, float]], palette: Palette, source: Source, where: str = ""
) -> list[Figure]:
    """What rounds of one request say of drafters and of verification: arm, drafted, accepted, seconds of it."""
    pairs: dict[str, list[tuple[int, int]]] = {}  # trees, whose depth is the arm's, apart
    seconds: dict[int, list[float]] = {}
    for arm, drafted, accepted, verify in rounds:
        if verify > 0:
            seconds.setdefault(drafted + 1, []).append(verify)
        if drafted and arm != "off":
            tree = "@" in arm
            depth = max(accepted, min(length_of(arm), drafted)) if tree else drafted
            pairs.setdefault(drafter_of(arm) + (" (tree)" if tree else ""), []).append((depth, accepted))
    found, by_width = [survival(pairs, palette, source)] if pairs else [], {}
    for width, own in seconds.items():
        if len(own) >= 5:
            low, _, high = statistics.quantiles(own, n=4)
            by_width[width] = Measure(statistics.median(own), low, high)
    if len(by_width) > 1:
        how = f"Median seconds of the target's verification{where}, by its width; a width in 5 rounds or more."
        found.append(cost({"wager": by_width}, how, source))
    return found


def traced(path: Path, palette: Palette) -> Material:
    """All figures of a trace; one that is still being written is read as far as it goes."""
    meta = traces.read_meta(path)
    source = described(path, "a trace", meta)
    made = Material(source)
    rounds: list[Round] = []
    marks: list[tuple[int, str]] = []
    requests = 0
    for record in traces.read(path):
        if isinstance(record, Round):
            rounds.append(record)
            continue
        requests += 1
        if record.label and (not marks or marks[-1][1] != record.label):
            marks.append((len(rounds), record.label))
    if not rounds:
        made.verdict = [f"{path.name} holds no round yet."]
        return made
    who, arms = str(meta.get("policy") or "the policy"), [r.arm.label for r in rounds]
    batches = [r.batch for r in rounds]
    made.cards.append(choice(who, arms, palette, source, marks))
    if max(batches) > 1:
        made.cards.append(by_batch(who, arms, batches, palette, source))
    alone = [(r.arm.label, r.drafted, r.accepted, r.verify_seconds) for r in rounds if r.batch == 1]
    made.cards += _rounds(alone, palette, source)
    tokens, seconds, drafted, accepted = (
        sum(getattr(r, name) for r in rounds) for name in ("emitted", "seconds", "drafted", "accepted")
    )
    made.figures = [
        Big(f"{tokens:,}", "tokens", plural(requests, "request")),
        Big(f"{len(rounds):,}", "rounds"),
        Big(f"{tokens / sum(batches):.2f}", "tokens per round", MAT),
        *([Big(f"{tokens / seconds:.1f}", "tokens per second", "decoding alone")] if seconds > 0 else []),
    ]
    taken = f", and {accepted / drafted:.0%} of the drafted tokens were taken" if drafted else ""
    made.verdict = [f"{who} wrote {tokens:,} tokens in {len(rounds):,} rounds{taken}."]
    return made


def described(path: Path, kind: str, held: Json) -> Source:
    """Where a file comes from, as far as it says."""
    command, date, machine, device, gpu = (
        held[key] if isinstance(held.get(key), str) else "" for key in ("command", "date", "machine", "device", "gpu")
    )
    where = "; ".join(filter(None, (device or gpu, machine)))
    return Source(path.name, kind, command, date, where, held.get("complete") is not False)
