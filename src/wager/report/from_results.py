"""The JSON of `wager generate`, `wager bench generate`, and `wager lab simulate`, `engine`, `versus` and `drafters`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from wager.report.from_run import text_of
from wager.report.scales import TIMES
from wager.report.views import (
    Big,
    Choice,
    Cost,
    Curve,
    Load,
    LoadRow,
    Material,
    Measure,
    Method,
    Regret,
    Shares,
    Source,
    Speedups,
    Text,
    TextRound,
)

Json = Mapping[str, Any]
OWN = {"off": "wager without drafts", "transformers": "transformers' plain decoding"}


def generated(held: Json, source: Source) -> Material:
    """`wager generate --json`: one text, and how it came about."""
    made = Material(source)
    summary, policy = held["summary"], str(held.get("policy") or "wager")
    if held.get("pieces"):
        made.texts.append(text_of(policy, held["pieces"], source))
    else:
        made.texts.append(Text(source, policy, _unworded(held["sources"]), worded=False, whole=str(held["text"])))
    if held.get("explained"):
        made.choices.append(Choice(source, policy, [str(each["arm"]) for each in held["explained"]]))
    elif summary.get("arms"):
        made.shares.append(Shares(source, {policy: dict(summary["arms"])}, "policy"))
    big = [
        Big(f"{summary['tokens_per_second']:.1f}", "tokens a second", "decoding alone"),
        Big(f"{summary['mat']:.2f}", "tokens a round", "MAT, bonus included"),
        Big(f"{summary['tokens']:,}", "tokens"),
    ]
    compare = held.get("compare")
    if compare and compare.get("speedup"):
        ways = compare["ways"]
        plain = ways["transformers"]["tokens_per_second"]
        kinds = {"transformers": "plain", "wager, off": "off", "wager": "policy"}
        methods = [
            Method(name, kinds.get(name, "policy"), Measure(way["tokens_per_second"] / plain), {})
            for name, way in sorted(ways.items(), key=lambda item: list(kinds).index(item[0]))
        ]
        runs = f"{compare['repeats']} run{'s' * (compare['repeats'] != 1)}"
        how = f"Median tokens a second over {runs} of each; {compare['timing']}."
        made.speedups.append(Speedups(source, "transformers", (), methods, "", "", how))
        big.insert(0, Big(f"{compare['speedup']:.2f}{TIMES}", "over transformers", "median of runs"))
        same = {True: "the text is identical", False: "the text differs", None: "the text was drawn anew"}
        told = same[compare.get("identical")]
        if compare.get("identical_to") == "wager, off":
            told += f" {'to' if compare['identical'] else 'from'} the seed's without drafts"
        made.verdict = [f"{policy} writes this text {compare['speedup']:.2f} times as fast as transformers; {told}."]
    else:
        made.verdict = [f"{policy} wrote {summary['tokens']:,} tokens in {summary['rounds']:,} rounds."]
    made.figures = big
    return made


def _unworded(sources: Sequence[str]) -> list[TextRound]:
    """Tokens known by their source only; a bonus or plain token ends a round."""
    rounds: list[TextRound] = []
    held: list[tuple[str, str]] = []
    for source in sources:
        held.append(("", str(source)))
        if source in ("bonus", "plain"):
            arm = next((who for _, who in held if who not in ("bonus", "plain")), "off")
            rounds.append(TextRound(arm, held, ()))
            held = []
    return [*rounds, TextRound(held[0][1], held, ())] if held else rounds


def compared(held: Json, source: Source) -> Material:
    """`wager bench generate`: methods on tasks, as ratios."""
    made = Material(source)
    rows = held["methods"]
    tasks = list(rows[0]["tasks"])
    methods = []
    for row in rows:
        low, high = row["quartiles"]
        per = {task: Measure(float(value["speedup"])) for task, value in row["tasks"].items()}
        spread = (
            Measure(float(row["speedup"]))
            if row is rows[0]
            else Measure(float(row["speedup"]), float(low), float(high))
        )
        methods.append(Method(row["method"], row["kind"], spread, per))
    base = methods[0].name
    how = (
        "Tokens over seconds of whole calls, all answers together. The whiskers are quartiles of single prompts' "
        "ratios, so a bar may lie outside them; a run of wager bench gives 95 % intervals."
    )
    made.speedups.append(Speedups(source, base, tasks, methods, "quartiles over prompts", "", how))
    names = {id(row): method for row, method in zip(rows, methods, strict=True)}
    played = {
        names[id(row)].name: dict(row["arms"])
        for row in rows
        if names[id(row)].kind == "policy" and len(row.get("arms") or ()) > 0
    }
    if played:
        made.shares.append(Shares(source, played, "policy"))
    auto = next((row for row in rows if names[id(row)].name == "auto"), None)
    if auto is not None and any(value.get("arms") for value in auto["tasks"].values()):
        by_task = {task: dict(value["arms"]) for task, value in auto["tasks"].items()}
        made.shares.append(Shares(source, by_task, "task (auto)"))
    made.verdict, made.figures = _judged(methods, rows, held, base)
    return made


def _judged(methods: Sequence[Method], rows: Sequence[Json], held: Json, base: str) -> tuple[list[str], list[Big]]:
    policies = [m for m in methods if m.kind == "policy"]
    fixed = [m for m in methods if m.kind in ("arm", "off")]
    lead = next((m for m in policies if m.name == "auto"), max(policies, key=lambda m: m.overall.value, default=None))
    if lead is None:
        lead = max(methods, key=lambda m: m.overall.value)
    row = rows[[m.name for m in methods].index(lead.name)]
    verdict = f"{lead.name} is {lead.overall.value:.2f} times as fast as {OWN.get(base, base)}"
    big = [Big(f"{lead.overall.value:.2f}{TIMES}", f"{lead.name} over {base}", f"{held['prompts']} prompts")]
    if row.get("tokens_per_second"):
        big.append(
            Big(f"{row['tokens_per_second']:,.1f}", "tokens a second", f"{base}: {rows[0]['tokens_per_second']:,.1f}")
        )
    if fixed and lead not in fixed:
        best = max(fixed, key=lambda m: m.overall.value)
        verdict += f"; the best fixed arm, {best.name}, reaches {best.overall.value:.2f}"
        share = lead.overall.value / best.overall.value
        big.append(Big(f"{share:.0%}", "of the best fixed arm", f"{best.name}, known only afterwards"))
    differ = held.get("differences")
    if differ:
        same = differ["answers"] - differ["texts"]
        explained = differ["texts"] and not differ.get("unexplained", 1)  # of sampled texts it is not looked into
        ties = f"the other {differ['texts']:,} part at ties" if explained else ""
        big.append(Big(f"{same:,} of {differ['answers']:,}", "texts identical", ties))
    return [verdict + "."], big


def engine(held: Json, source: Source) -> Material:
    """`wager lab engine`: what one forward costs by its width."""
    made = Material(source)
    lines: dict[str, dict[int, Measure]] = {}
    for row in held["widths"]:
        for name, s in row["seconds"].items():
            lines.setdefault(name, {})[int(row["width"])] = Measure(s["median"], s["low"], s["high"])
    lines = {name: lines[name] for name in sorted(lines, key=lambda name: name != "wager")}
    how = f"One forward with {held['context']:,} tokens in the cache; medians."
    made.costs.append(Cost(source, lines, "quartiles", how))
    own, off, step = held["own_seconds_per_round"]["median"], held["off_to_plain"]["median"], lines["wager"]
    broad = max(step)
    made.verdict = [
        f"Verifying {broad} tokens at once takes {step[broad].value / step[min(step)].value:.2f} times as long as one, "
        f"and without drafts wager is {off:.2f} times as fast as transformers."
    ]
    made.figures = [
        Big(f"{off:.2f}{TIMES}", "wager without drafts", "over transformers"),
        Big(f"{step[min(step)].value * 1e3:.2f} ms", "one token", str(held.get("device", ""))),
        Big(f"{step[broad].value * 1e3:.2f} ms", f"{broad} tokens at once"),
        Big(f"{own * 1e3:.3f} ms", "wager's own Python", "a round"),
    ]
    return made


def simulated(held: Json, source: Source) -> Material:
    """`wager lab simulate`: regret over tokens, and who played what."""
    made = Material(source)
    marks = [float(mark) for mark in held["marks"]]
    curves = [
        Curve(
            str(p["policy"]),
            marks,
            [float(e["mean"]) for e in p["regret_curve"]],
            [float(e["half_width_95"] or 0.0) for e in p["regret_curve"]],
        )
        for p in held["policies"]
    ]
    curves += [
        Curve(name, marks, [float(v) for v in y], reference=True) for name, y in (held.get("bounds") or {}).items()
    ]
    best = str(held["best_fixed_arm"])
    how = f"Environment {held['environment']!r}; means over runs, bands are 95 % intervals."
    rows = sorted(held["policies"], key=lambda p: (p["policy"] != "auto", -p["speed"]["mean"]))
    lost = rows[0]["regret_seconds"]["mean"]
    if lost != rows[0]["regret_rounds"]["mean"]:
        how += f" Not all rounds take as long here: in seconds the regret of {rows[0]['policy']} is {lost:,.1f}."
    made.regrets.append(Regret(source, best, "rounds", curves, how))
    pulls = {str(p["policy"]): _normal(p["pulls"]) for p in rows if sum(p["pulls"].values()) > 0}
    if pulls:
        made.shares.append(Shares(source, pulls, "policy"))
    first = rows[0]
    made.verdict = [
        f"{first['policy']} reaches {first['speed']['mean']:.1%} of the speed of the best fixed arm, {best}, "
        "which is known only afterwards."
    ]
    made.figures = [
        Big(f"{first['speed']['mean']:.1%}", "of the best fixed arm's speed", str(first["policy"])),
        Big(f"{first['regret_rounds']['mean']:,.0f}", "rounds of regret", f"after {marks[-1]:,.0f} tokens"),
        Big(f"{first['tokens_per_round']['mean']:.2f}", "tokens a round"),
        Big(f"{first['best_share']:.1%}", "of rounds with the best arm"),
    ]
    return made


def _normal(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {arm: count / total for arm, count in counts.items()}


def served(held: Json, source: Source) -> Material:
    """`wager lab versus` and `drafters`: methods under loads."""
    made = Material(source)
    rows = held["compared"]
    points = sorted(
        dict.fromkeys(str(r["point"]) for r in rows), key=lambda p: (not p.isdecimal(), int(p) if p.isdecimal() else 0)
    )
    methods = list(dict.fromkeys(str(r["method"]) for r in rows))
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in held["turns"]:
        if turn.get("latency_seconds"):
            taken.setdefault((turn["method"], turn["point"]), []).append(turn["latency_seconds"]["mean"])
    cells = [
        LoadRow(
            str(r["method"]),
            str(r["point"]),
            _spread(taken.get((r["method"], r["point"]), ())),
            Measure(r["throughput_ratio"], min(r["throughput_ratios"]), max(r["throughput_ratios"]))
            if r.get("throughput_ratio")
            else None,
        )
        for r in rows
    ]
    differ, texts = sum(r["texts_that_differ"] for r in rows), sum(r["texts"] for r in rows)
    load = Load(source, points, methods, cells, held.get("vllm_table") or (), differ, texts)
    made.loads.append(load)
    lead = next((m for m in ("auto", "together") if m in methods), None)
    ratios = [(p, row.ratio.value) for p in points if lead and (row := load.at(lead, p)) is not None and row.ratio]
    if lead and ratios:
        (at, value), *rest = ratios
        said = [f"{lead} serves {value:.2f} times as fast as no speculation {_under(at)}"]
        said += [f"{v:.2f} times {_under(p, short=True)}" for p, v in rest]
        made.verdict = [f"{', '.join(said)}."]
        made.figures = [
            Big(f"{v:.2f}{TIMES}", f"{p} in flight" if p.isdecimal() else f"recorded {p}", lead) for p, v in ratios[:3]
        ]
    else:
        found = [row for row in cells if row.ratio is not None]
        top = max(found, key=lambda row: row.ratio.value if row.ratio else 0.0)
        value = top.ratio.value if top.ratio else 0.0
        made.verdict = [f"{top.method} serves {value:.2f} times as fast as no speculation with {top.point} in flight."]
        made.figures = [Big(f"{value:.2f}{TIMES}", top.method, f"{top.point} in flight")]
    made.figures = [
        *made.figures,
        Big(f"{texts - differ:,} of {texts:,}", "texts identical", "to those without speculation"),
    ]
    return made


def _under(point: str, *, short: bool = False) -> str:
    """A load in words."""
    if not point.isdecimal():
        return f"on the recorded {point}"
    return f"with {point}" if short else f"with {point} request{'s' * (point != '1')} in flight"


def _spread(values: Sequence[float]) -> Measure | None:
    return Measure(statistics.median(values), min(values), max(values)) if values else None
