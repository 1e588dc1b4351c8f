"""The JSON of `wager generate`, `wager bench generate`, and `wager lab simulate`, `replay`, `engine` and `versus`."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from wager.report.colours import Palette
from wager.report.figures.choice import choice, shares
from wager.report.figures.lines import cost, regret
from wager.report.figures.load import latency, lengths
from wager.report.figures.speed import speed
from wager.report.scales import TIMES, plural
from wager.report.tokens import token_view
from wager.report.views import MAT, Big, Curve, Figure, Load, Material, Measure, Method, Source

Json = Mapping[str, Any]
OWN = {"off": "wager without speculation", "transformers": "transformers' plain decoding"}
CLAIRVOYANT, FIXED = "clairvoyant", "best fixed"


def generated(held: Json, source: Source, palette: Palette) -> Material:
    """`wager generate --json`: one text, and how it came about."""
    made = Material(source)
    summary, policy, compare = held["summary"], str(held.get("policy") or "wager"), held.get("compare")
    made.cards.append(token_view({policy: held["pieces"]}, palette, source))
    if held.get("explained"):
        made.cards.append(choice(policy, [str(each["arm"]) for each in held["explained"]], palette, source))
    elif summary.get("arms"):
        made.cards.append(shares({policy: summary["arms"]}, "policy", palette, source))
    made.figures = [
        Big(f"{summary['tokens_per_second']:.1f}", "tokens per second", "decoding alone"),
        Big(f"{summary['mat']:.2f}", "tokens per round", MAT),
        Big(f"{summary['tokens']:,}", "tokens"),
    ]
    made.verdict = [f"{policy} wrote {summary['tokens']:,} tokens in {summary['rounds']:,} rounds."]
    if compare and compare.get("speedup"):
        _against_plain(made, policy, compare)
    return made


def _against_plain(made: Material, policy: str, compare: Json) -> None:
    """What `wager generate --compare` measured, added to the text's own figures."""
    ways, repeats, speedup = compare["ways"], compare["repeats"], compare["speedup"]
    plain = ways["transformers"]["tokens_per_second"]
    kinds = {"transformers": "plain", "wager, off": "off", "wager": "policy"}
    methods = [
        Method(name, kinds[name], Measure(way["tokens_per_second"] / plain), {})
        for name, way in sorted(ways.items(), key=lambda item: list(kinds).index(item[0]))
    ]
    over_off = compare.get("speedup_over_off") or speedup
    how = f"Median tokens per second over {plural(repeats, 'run')} of each; {compare['timing']}."
    made.cards.append(speed(methods, "", "", how, made.source))
    big = Big(f"{over_off:.2f}{TIMES}", f"over {OWN['off']}", "median of runs")
    made.figures = [big, Big(f"{speedup:.2f}{TIMES}", "over transformers", "median of runs"), *made.figures]
    same = {True: "the text is identical", False: "the text differs", None: "the text was drawn anew"}
    told = same[compare.get("identical")]
    if compare.get("identical_to") == "wager, off":
        told += f" {'to' if compare['identical'] else 'from'} the seed's without drafts"
    against = f"{over_off:.2f} times as fast as {OWN['off']}, {speedup:.2f} times as fast as transformers"
    made.verdict = [f"{policy} generates this text {against}; {told}."]


def compared(held: Json, source: Source, palette: Palette) -> Material:
    """`wager bench generate`: methods on tasks, as ratios."""
    made, rows, methods = Material(source), held["methods"], []
    for row in rows:
        spread = () if row is rows[0] else map(float, row["quartiles"])
        per = {task: Measure(float(value["speedup"])) for task, value in row["tasks"].items()}
        methods.append(Method(row["method"], row["kind"], Measure(float(row["speedup"]), *spread), per))
    how = (
        "Tokens over seconds of whole calls, all answers together. The whiskers are quartiles of single prompts' "
        "ratios, so a bar may lie outside them; a run of wager bench gives 95 % intervals."
    )
    made.cards.append(speed(methods, "quartiles over prompts", "", how, source))
    played = {row["method"]: row["arms"] for row in rows if row["kind"] == "policy" and row.get("arms")}
    if played:
        made.cards.append(shares(played, "policy", palette, source))
    auto = next((row for row in rows if row["method"] == "auto"), None)
    if auto is not None and any(value.get("arms") for value in auto["tasks"].values()):
        by_task = {task: value["arms"] for task, value in auto["tasks"].items()}
        made.cards.append(shares(by_task, "task (auto)", palette, source))
    made.verdict, made.figures = _judged(methods, rows, held)
    return made


def _judged(methods: Sequence[Method], rows: Sequence[Json], held: Json) -> tuple[list[str], list[Big]]:
    """The verdict and the big figures: of auto, else the best policy, else the fastest method."""
    base, policies = methods[0].name, [m for m in methods if m.kind == "policy"] or methods
    lead = max(policies, key=lambda m: (m.name == "auto", m.overall.value))
    row, value = rows[[m.name for m in methods].index(lead.name)], lead.overall.value
    off = next((m.overall.value for m in methods if m.kind == "off"), None)
    engine = "off" if off and lead.kind in ("arm", "policy") else base  # the same engine without speculation
    over = value / off if off and engine == "off" else value
    prompts = plural(int(held["prompts"]), "prompt")
    verdict = f"{lead.name} is {over:.2f} times as fast as {OWN.get(engine, engine)}"
    big = [Big(f"{over:.2f}{TIMES}", f"{lead.name} over {OWN.get(engine, engine)}", prompts)]
    if row.get("tokens_per_second"):
        plain = f"{base}: {rows[0]['tokens_per_second']:,.1f}"
        big.append(Big(f"{row['tokens_per_second']:,.1f}", "tokens per second", plain))
    fixed = [m for m in methods if m.kind in ("arm", "off")]
    if fixed and lead not in fixed:
        best = max(fixed, key=lambda m: m.overall.value)
        reached = best.overall.value * over / value
        verdict += f"; the best fixed arm, {best.name}, known only afterwards, reaches {reached:.2f}"
        share = f"{value / best.overall.value:.0%}"
        big.append(Big(share, "of the best fixed arm", f"{best.name}, known only afterwards"))
    if differ := held.get("differences"):
        same = differ["answers"] - differ["texts"]
        explained = differ["texts"] and not differ.get("unexplained", 1)  # of sampled texts it is not looked into
        ties = f"the other {differ['texts']:,} differ at ties" if explained else ""
        big.append(Big(f"{same:,} of {differ['answers']:,}", "texts identical", ties))
    also = f"Relative to {OWN.get(base, base)} it is {value:.2f} times as fast."
    return [f"{verdict}.", *([also] if engine != base else [])], big


def engine(held: Json, source: Source, palette: Palette) -> Material:
    """`wager lab engine`: what one forward costs by its width."""
    made = Material(source)
    lines: dict[str, dict[int, Measure]] = {"wager": {}}
    for row in held["widths"]:
        for name, s in row["seconds"].items():
            lines.setdefault(name, {})[int(row["width"])] = Measure(s["median"], s["low"], s["high"])
    own, off, step = held["own_seconds_per_round"]["median"], held["off_to_plain"]["median"], lines["wager"]
    made.cards.append(cost(lines, f"One forward with {held['context']:,} tokens in the cache; medians.", source))
    broad, one = max(step), step[min(step)].value
    made.verdict = [
        f"Verifying {broad} tokens at once takes {step[broad].value / one:.2f} times as long as one, "
        f"and without drafts wager is {off:.2f} times as fast as transformers."
    ]
    made.figures = [
        Big(f"{off:.2f}{TIMES}", "wager without drafts", "over transformers"),
        Big(f"{one * 1e3:.2f} ms", "one token", str(held.get("device", ""))),
        Big(f"{step[broad].value * 1e3:.2f} ms", f"{broad} tokens at once"),
        Big(f"{own * 1e3:.3f} ms", "wager's own Python", "per round"),
    ]
    return made


def simulated(held: Json, source: Source, palette: Palette) -> Material:
    """`wager lab simulate`: regret over tokens, and who played what."""
    made, curves = Material(source), []
    marks, best = [float(mark) for mark in held["marks"]], str(held["best_fixed_arm"])
    for p in held["policies"]:
        mean, half = ([float(e[key] or 0.0) for e in p["regret_curve"]] for key in ("mean", "half_width_95"))
        curves.append(Curve(str(p["policy"]), marks, mean, half))
    bounds = (held.get("bounds") or {}).items()
    curves += [Curve(name, marks, [float(v) for v in y], reference=True) for name, y in bounds]
    rows = sorted(held["policies"], key=lambda p: (p["policy"] != "auto", -p["speed"]["mean"]))
    first, how = rows[0], f"Environment {held['environment']!r}; means over runs, bands are 95 % intervals."
    lost = first["regret_seconds"]["mean"]
    if lost != first["regret_rounds"]["mean"]:
        how += f" Not all rounds take as long here: in seconds the regret of {first['policy']} is {lost:,.1f}."
    made.cards += [regret(best, "rounds", curves, how, source), *_pulls(rows, palette, source)]
    speed = f"{first['speed']['mean']:.1%}"
    made.verdict = [
        f"{first['policy']} reaches {speed} of the speed of the best fixed arm, {best}, which is known only afterwards."
    ]
    made.figures = [
        Big(speed, "of the best fixed arm's speed", str(first["policy"])),
        Big(f"{first['regret_rounds']['mean']:,.0f}", "rounds of regret", f"after {marks[-1]:,.0f} tokens"),
        Big(f"{first['tokens_per_round']['mean']:.2f}", "tokens per round"),
        Big(f"{first['best_share']:.1%}", "of rounds with the best arm"),
    ]
    return made


def _pulls(rows: Sequence[Json], palette: Palette, source: Source) -> list[Figure]:
    """The share of each arm in the rounds of each policy, where they are known."""
    played = {}
    for row in rows:
        pulls = row.get("pulls") or {}
        if (total := sum(pulls.values())) > 0:
            played[str(row["policy"])] = {arm: count / total for arm, count in pulls.items()}
    return [shares(played, "policy", palette, source)] if played else []


def replayed(held: Json, source: Source, palette: Palette) -> Material:
    """`wager lab replay`: speed-ups over plain decoding by task, and who played what."""
    made, rows, tasks, methods = Material(source), held["rows"], held["tasks"], []
    for name, overall in ((row["policy"], _measure(row["to_off"])) for row in rows):
        by_task = {}
        for task in tasks:
            known = {"off": {"mean": 1.0}, "bound": task["clairvoyant"], "arm": task["best_fixed"]}
            by_task[str(task["label"])] = _measure(known.get(_kind(name)) or task["policies"][name])
        methods.append(Method(name, _kind(name), overall, by_task))
    kinds = ("off", "arm", "policy", "bound")
    methods.sort(key=lambda m: (kinds.index(m.kind), m.name != "auto", -m.overall.value))
    interval = f"95 % intervals over {held['runs']} runs" if held["runs"] > 1 else ""
    how = (
        f"Replayed on {held['texts']:,} recorded texts with the costs of {held['cost']}; no model ran. "
        "The best fixed arm of a single task is that task's own."
    )
    made.cards.append(speed(methods, interval, interval, how, source))
    policies = [row for row in rows if _kind(row["policy"]) == "policy"]
    policies.sort(key=lambda row: (row["policy"] != "auto", -row["to_off"]["mean"]))
    made.cards += _pulls(policies, palette, source)
    lead, arm = policies[0], held["best_fixed_arm"]
    ours, best = (row["to_off"]["mean"] for row in (lead, next(r for r in rows if _kind(r["policy"]) == "arm")))
    made.verdict = [
        f"{lead['policy']} is {ours:.2f} times as fast as plain decoding on recorded texts; "
        f"the best fixed arm, {arm}, reaches {best:.2f}."
    ]
    made.figures = [
        Big(f"{ours:.2f}{TIMES}", f"{lead['policy']} over plain decoding", f"{held['texts']:,} texts"),
        Big(f"{lead['to_best_fixed']['mean']:.1%}", "of the best fixed arm", f"{arm}"),
        Big(f"{lead['to_clairvoyant']['mean']:.1%}", "of the clairvoyant choice", "which nobody can have"),
        Big(f"{lead['tokens_per_round']['mean']:.2f}", "tokens per round", MAT),
    ]
    return made


def _kind(name: str) -> str:
    return {"off": "off", CLAIRVOYANT: "bound"}.get(name) or ("arm" if name.startswith(FIXED) else "policy")


def _measure(estimate: Json) -> Measure:
    mean, half = float(estimate["mean"]), estimate.get("half_width_95")
    return Measure(mean, mean - half, mean + half) if half else Measure(mean)


def served(held: Json, source: Source, palette: Palette) -> Material:
    """`wager lab versus` and `drafters`: methods under loads."""
    made, rows = Material(source), held["compared"]
    points = list(dict.fromkeys(str(r["point"]) for r in rows))
    points.sort(key=lambda p: (not p.isdecimal(), int(p) if p.isdecimal() else 0))
    methods = list(dict.fromkeys(str(r["method"]) for r in rows))
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in held["turns"]:
        if turn.get("latency_seconds"):
            taken.setdefault((turn["method"], turn["point"]), []).append(turn["latency_seconds"]["mean"])
    seconds = {key: Measure(statistics.median(own), min(own), max(own)) for key, own in taken.items()}
    found = [(r, r["throughput_ratios"]) for r in rows if r.get("throughput_ratio")]
    beside = {(r["method"], r["point"]): Measure(r["throughput_ratio"], min(x), max(x)) for r, x in found}
    differ, texts = sum(r["texts_that_differ"] for r in rows), sum(r["texts"] for r in rows)
    load = Load(points, methods, seconds, beside, held.get("vllm_table") or (), differ, texts)
    made.cards += filter(None, (latency(load, source), lengths(load, source)))
    lead = next((m for m in ("auto", "together") if m in methods), "")
    ratios = [(p, ratio) for p in points if (ratio := load.ratio(lead, p))]
    if not ratios:
        lead, top = max(((m, p) for p in points for m in methods), key=lambda key: load.ratio(*key))
        ratios = [(top, load.ratio(lead, top))]
    said = []
    for i, (p, v) in enumerate(ratios):
        flight = "" if i else f" request{'s' * (p != '1')} in flight"
        where = f"with {p}{flight}" if p.isdecimal() else f"on the recorded {p}"
        said.append(f"{v:.2f} times {where}" if i else f"{lead} serves {v:.2f} times as fast as no speculation {where}")
    made.verdict = [f"{', '.join(said)}."]
    flights = [(f"{p} in flight" if p.isdecimal() else f"recorded {p}", v) for p, v in ratios[:3]]
    same = Big(f"{texts - differ:,} of {texts:,}", "texts identical", "to those without speculation")
    made.figures = [*(Big(f"{v:.2f}{TIMES}", point, lead) for point, v in flights), same]
    return made
