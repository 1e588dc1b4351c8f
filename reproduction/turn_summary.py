"""What is made of the turns of reproduction.turns: ratios, latencies, stalls and tests, as rows and as lines."""

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from reproduction.turn_plans import Order
from reproduction.turn_samples import compared, merged

Row = dict[str, Any]
TIE = 0.13  # nats: logits of about 16 to 32 in bfloat16 are 0.125 apart


def _grouped(rows: Iterable[Order], *keys: str) -> dict[tuple[Any, ...], list[Order]]:
    groups: dict[tuple[Any, ...], list[Order]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def closed(plan: str, rows: Iterable[Order]) -> list[Row]:
    """Tokens a second of every engine and policy over those of the plain engines in the same round of turns.

    expected: the same with as many draft tokens accepted as synthetic acceptance accepts in the mean, without the
    chance of short turns; where acceptance is not synthetic, the ratio itself. full_speed: over the turns alone at
    whose start and end the processor was about as fast as it ever was, medians of both; None where there are none.
    """
    rows = [{**row, "rate": row["tokens"] / row["took"], "share": expected_share(row)} for row in rows]
    fastest = min((ms for row in rows for ms in row["processor_ms"]), default=0.0)
    counted = [{**row, "engine": row["engine"].removesuffix(" again")} for row in rows if row["turn"] >= 0]
    loads = ("profile", "kind", "batch")
    plain = _grouped((row for row in counted if row["policy"] == "none"), *loads)

    def at_full_speed(own: list[Order]) -> list[float]:
        return [row["rate"] for row in own if max(row["processor_ms"]) < 1.3 * fastest]

    made = []
    for (*load, name, policy), own in _grouped(counted, *loads, "engine", "policy").items():
        beside = plain.get(tuple(load), [])
        by_turn = {row["turn"]: [other["rate"] for other in beside if other["turn"] == row["turn"]] for row in own}
        pairs = [(row["rate"], statistics.fmean(by_turn[row["turn"]]), row) for row in own if by_turn[row["turn"]]]
        ratios = sorted(rate / other for rate, other, _ in pairs)
        if not ratios:  # so far: the round is not over
            continue
        fast, plain_fast = at_full_speed(own), at_full_speed(beside)
        made.append({
            "plan": plan, **dict(zip(loads, load, strict=True)), "engine": name, "policy": policy, "turns": len(own),
            "ratio": statistics.median(ratios), "least": ratios[0], "most": ratios[-1],
            "expected": statistics.median(rate * row["share"] / other for rate, other, row in pairs),
            "full_speed": statistics.median(fast) / statistics.median(plain_fast) if fast and plain_fast else None,
            "full_speed_turns": (len(fast), len(plain_fast)),
            "step_ms": statistics.median(row["step_ms"] for row in own),
            "tokens_a_step": statistics.median(row["tokens"] / row["steps"] / row["batch"] for row in own),
            "slowest_ms": max(row["slowest_ms"] for row in own),
        })  # fmt: skip
    return made


def expected_share(row: Order) -> float:
    """Tokens of a turn had as many drafts been accepted as in the mean, over those that there were."""
    more = row.get("expected_accepted", 0.0) - row.get("accepted", 0)
    return float((row["tokens"] + more) / max(1, row["tokens"]))


def against(table: Iterable[Row]) -> list[Row]:
    """Of every load with `auto` and fixed lengths: auto over the best of them (expected), and over stock vLLM's."""
    made = []
    for (profile, kind, batch), own in _grouped(table, "profile", "kind", "batch").items():
        ratio = {row["policy"]: row["ratio"] for row in own}
        fixed = {row["policy"]: row["expected"] for row in own if row["policy"].isdigit() or row["policy"] == "off"}
        auto = next((row["expected"] for row in own if row["policy"] == "auto"), 0.0)
        if "auto" not in ratio or len(fixed) < 2:
            continue
        best = max(fixed, key=lambda policy: fixed[policy])
        beside = ("none", "adaptive", "table", "ngram", "stock")
        others = {policy: ratio[policy] for policy in beside if policy in ratio}
        made.append({
            "profile": profile, "kind": kind, "batch": batch, "auto": ratio["auto"], "off": ratio.get("off"),
            "best": best, "over_best": auto / fixed[best],
            **{f"over_{policy}": ratio["auto"] / each for policy, each in others.items()},
        })  # fmt: skip
    return made


def open_loop(plan: str, rows: Iterable[Order]) -> list[Row]:
    """Throughput and latencies by load: medians over the rounds."""
    made = []
    loads = _grouped((row for row in rows if row["do"] == "open"), "rate", "engine", "policy")
    for (rate, name, policy), own in loads.items():
        times = {
            f"{what}_{q}": statistics.median(values)
            for what in ("ttft_ms", "tpot_ms")
            for q in ("p50", "p99")
            if (values := [row[what][q] for row in own if row[what]])
        }
        speed = sorted(row["tokens"] / max(1e-9, row["took"]) for row in own)
        made.append({
            "plan": plan, "load": f"{rate:g}/s" if rate else "azure", "engine": name, "policy": policy,
            "turns": len(own), "tokens_per_second": statistics.median(speed), "least": speed[0], "most": speed[-1],
            **times, **{key: sum(row[key] for row in own) for key in ("arrived", "unfinished", "waiting")},
            "stalls": sum(len(row["stalls"]) for row in own),
        })  # fmt: skip
    return made


def stress(plan: str, rows: Iterable[Order]) -> list[Row]:
    """Steps, requests, stalls and errors of every engine, and of all."""
    made = []
    for (policy,), group in _grouped(rows, "policy").items():
        every = [(row["engine"], [row]) for row in group] + [("all", group)]
        for name, own in every:
            counts = {key: sum(row.get(key, 0) for row in own) for key in ("steps", "finished", "aborted", "tokens")}
            made.append({
                "plan": plan, "engine": name, "policy": policy, **counts,
                "took": max(row.get("took", 0.0) for row in own),
                "stalls": sum(len(row.get("stalls", ())) for row in own),
                "slowest_ms": max(row.get("slowest_ms", 0.0) for row in own),
                "errors": [row["error"] for row in own if row.get("error")],
            })  # fmt: skip
    return made


def sampled(plan: str, rows: Iterable[Order]) -> list[Row]:
    """Every engine's samples beside those of the engines without speculation.

    Two checks of the test itself: two engines without speculation must not differ, and samples at another temperature
    must.
    """
    made = []
    for (prompt,), group in _grouped(rows, "prompt").items():
        plain = [row for row in group if row["policy"] == "none"]
        for row in group:
            others = [other["texts"] for other in plain if other["engine"] != row["engine"]]
            if not others or row["engine"] == "plain":
                continue
            made.append({
                "plan": plan, "prompt": prompt, "engine": row["engine"], "policy": row["policy"],
                "tokens_a_step": row["tokens"] / max(1, row["steps"]), "accepted": row["accepted"] / row["tokens"],
                "must_differ": row["policy"] == "planted", **compared(merged(others), row["texts"]),
            })  # fmt: skip
    return made


def texts(plan: str, rows: Iterable[Order]) -> list[Row]:
    """Greedy texts beside those without speculation: equal, different at a tie, different elsewhere.

    A tie: the token without speculation leads the second by no more than ``TIE``. The gap of a text is that lead where
    it parts from the other.
    """
    rows = list(rows)
    reference = next((row for row in rows if row["leads"] and any(row["leads"])), None)
    made = []
    for row in rows if reference else ():
        if reference is None or row is reference:
            continue
        gaps = []
        for own, true, leads in zip(row["written"], reference["written"], reference["leads"], strict=False):
            parted = next((n for n, (one, other) in enumerate(zip(own, true, strict=False)) if one != other), None)
            gaps += [] if parted is None else [leads[parted]]
        made.append({
            "plan": plan, "engine": row["engine"], "policy": row["policy"], "texts": len(row["written"]),
            "equal": len(row["written"]) - len(gaps), "ties": sum(gap <= TIE for gap in gaps),
            "gaps": sorted(gaps), "accepted": row["accepted"] / max(1, row["tokens"]),
        })  # fmt: skip
    return made


def summary(plan: str, rows: Iterable[Order]) -> list[Row]:
    """What a plan shows so far."""
    own = [row for row in rows if row["plan"] == plan]
    if plan == "stress":
        return stress(plan, own)
    sound = [row for row in own if not row.get("error")]
    if plan in ("sampled", "texts"):
        return sampled(plan, sound) if plan == "sampled" else texts(plan, sound)
    if plan.endswith("rates"):
        return open_loop(plan, sound)
    return closed(plan, sound)


def lines(plan: str, table: list[Row]) -> Iterator[str]:
    """The same, to be read."""
    if plan == "stress":
        for row in table:
            said = f"{row['engine']:18}{row['policy']:7}{row['steps']:7} steps {row['finished']:6} requests finished"
            said += f" {row['aborted']:6} aborted  {len(row['errors'])} errors  {row['stalls']} stalls"
            yield f"{said}, slowest step {row['slowest_ms']:.0f} ms, {row['took']:.0f} s"
    elif plan == "sampled":
        for row in table:
            ends = "differ" if row["differ"] else "one distribution"
            said = f"prompt {row['prompt']}  {row['engine']:18}{row['policy']:8} p {row['p']:.2g}: {ends}"
            yield said + f" ({row['samples'][1]} samples, {100 * row['accepted']:.0f} % of the tokens drafted)"
    elif plan == "texts":
        for row in table:
            most = f", largest gap {row['gaps'][-1]:.2g} nats" if row["gaps"] else ""
            said = (
                f"{row['engine']:18}{row['policy']:8}{row['equal']} of {row['texts']} texts equal, {row['ties']} ties"
            )
            yield f"{said}, {row['texts'] - row['equal'] - row['ties']} others{most}"
    elif plan.endswith("rates"):
        for row in table:
            times = "  ".join(f"{key} {row[key]:8.1f}" for key in row if key.startswith(("ttft", "tpot")))
            said = (
                f"{row['load']:7}{row['engine']:10}{row['policy']:14}{row['tokens_per_second']:8.0f} tokens/s  {times}"
            )
            yield f"{said}  {row['unfinished']} of {row['arrived']} unfinished"
    else:
        for row in table:
            full = f"{row['full_speed']:.2f}x" if row["full_speed"] else "-"
            spread = f"{row['ratio']:6.2f}x [{row['least']:.2f}, {row['most']:.2f}] {row['expected']:5.2f}x {full:>6}"
            what = f"{row['profile']:5}{row['kind']:5}{row['batch']:4}  {row['engine']:18}{row['policy']:9}"
            yield f"{what}{spread}  {row['step_ms']:6.2f} ms  {row['tokens_a_step']:5.2f} tokens"
        for row in against(table):
            over = "  ".join(f"{key.replace('_', ' ')} {row[key]:.2f}" for key in row if key.startswith("over_"))
            what = f"{row['profile']:5}{row['kind']:5}{row['batch']:4}  auto {row['auto']:.2f}"
            yield f"{what} (best {row['best']}): {over}"
