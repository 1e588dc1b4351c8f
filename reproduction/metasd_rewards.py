"""MetaSD's claims about rewards, draft lengths, windows and batches, checked against results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from reproduction.analyses import halves
from reproduction.claims import beats, one_for_all
from reproduction.comparison import Comparison
from reproduction.experiment import Check, Figures, Outcome
from reproduction.metasd_claims import FEW, NARROW, SLOW, tasks_of, ucb_of, why_slower
from reproduction.runs import BE, EXP3, HALVING, UCB
from reproduction.workspace import Result


def rewards(results: Sequence[Result]) -> Outcome:
    """Table 2: on each task the home drafter's rewards beside the others'."""
    homes = ("draft:code", "draft:math")
    rows, checks = [], []
    for best, result in zip(homes, results, strict=True):
        own = result["drafters"]
        for name, cell in own.items():
            values = (cell["be"]["mean"], cell["bd"]["mean"], cell["be"]["variance"], cell["bd"]["variance"])
            rows.append((f"{name} on {best.partition(':')[2]}", *values, cell["be"]["zeros"]))
        others = [name for name in own if name != best]
        gaps = {kind: min(own[best][kind]["mean"] - own[o][kind]["mean"] for o in others) for kind in ("be", "bd")}
        where = best.partition(":")[2]
        checks += [
            Check(
                f"{where}: divergence has the wider gap ({gaps['bd']:.3f} against {gaps['be']:.3f})",
                gaps["bd"] > gaps["be"],
            ),
            Check(
                f"{where}: divergence varies less for every drafter",
                all(cell["bd"]["variance"] <= cell["be"]["variance"] for cell in own.values()),
                "Where hardly a token is accepted, efficiency is nearly always zero and so hardly varies.",
            ),
            Check(f"{where}: divergence is never zero", all(cell["bd"]["zeros"] == 0 for cell in own.values())),
            Check(
                f"{where}: efficiency is zero in at least half of the rounds of the drafters away from home",
                all(own[o]["be"]["zeros"] >= 0.5 for o in others),
            ),
        ]
    code = results[0]["drafters"]
    told = "; ".join(f"{n} BE {c['be']['mean']:.2f}, BD {c['bd']['mean']:.2f}" for n, c in code.items())
    columns = ("drafter", "BE mean", "BD mean", "BE variance", "BD variance", "BE zeros")
    return Outcome(f"on code: {told}", Figures(columns, tuple(rows)), tuple(checks))


def one_reward(content: Result, kind: str) -> Outcome:
    """Table 7 for one kind of drafter."""
    table = Comparison(content)
    ucb = ucb_of(table)
    be = next((name for name in table.cells if name.startswith("meta-ucb") and "reward=be" in name), None)
    if be is None:
        raise ValueError("the result has no meta-ucb with reward=be among its methods")
    tasks = tasks_of(table)
    reason = SLOW if why_slower(table, be, tasks) == SLOW else FEW
    check = beats(table, ucb, be, tasks)
    speeds = f"divergence {table.speed(ucb, tasks):.2f}, efficiency {table.speed(be, tasks):.2f}"
    told = f"{kind}: {speeds} times plain decoding"
    rows = tuple((f"{kind}, {task}", table.speed(be, task), table.speed(ucb, task)) for task in tasks)
    return Outcome(
        told,
        Figures(("drafters and task", "efficiency", "divergence"), rows),
        (Check(f"{kind}: {check.says}", check.holds, reason),),
    )


def two_rewards(results: Sequence[Result]) -> Outcome:
    """Table 7: divergence at least as fast as efficiency on most tasks, for small models and heads."""
    parts = [one_reward(result, kind) for result, kind in zip(results, ("small models", "heads"), strict=True)]
    rows = tuple(row for part in parts for row in part.figures.rows)
    return Outcome(
        "; ".join(part.headline for part in parts),
        Figures(parts[0].figures.columns, rows),
        tuple(check for part in parts for check in part.checks),
    )


def windows(results: Sequence[Result]) -> Outcome:
    """Table 13: a window over the head's cache changes little."""
    table = Comparison(results[0])
    name = f"{UCB} window"
    ratios = {task: table.mat(name, task) / table.mat(UCB, task) for task in table.tasks}
    whole = table.speed(name) / table.speed(UCB)
    checks = [
        Check(f"with the window it is within 6 % of the speed without ({whole:.2f})", abs(whole - 1) <= 0.06, FEW),
        *(
            Check(f"{task}: tokens a round within 10 % ({ratio:.2f})", abs(ratio - 1) <= 0.1, FEW)
            for task, ratio in ratios.items()
        ),
    ]
    return Outcome(
        f"times plain decoding: {table.speed(UCB):.2f} with the whole cache, {table.speed(name):.2f} with a "
        "window of 64 entries",
        table.figures(),
        tuple(checks),
    )


def batches(results: Sequence[Result]) -> Outcome:
    """Table 17."""
    table, found = Comparison(results[0]), results[1]["batches"]
    tasks = [t for t in ("mt_bench", "rag", "alpaca") if t in table.tasks]
    ofa = one_for_all(table, "draft")
    sizes = sorted(found, key=int)
    last = found[sizes[-1]]
    gaps = [found[n]["mixed tasks"] / found[n]["one for all"] for n in sizes]
    checks = (
        beats(table, UCB, ofa, tasks, because=NARROW),
        Check(
            f"in batches of one task UCB stays ahead of one drafter for all ({last['one task']:.2f} against "
            f"{last['one for all']:.2f} with {sizes[-1]})",
            last["one task"] >= last["one for all"],
            "In a batch every request explores for itself, and every drafter that one of them plays takes a pass.",
        ),
        Check(
            f"in mixed batches it falls behind as the batch grows ({gaps[0]:.2f} to {gaps[-1]:.2f} of one for all)",
            gaps[-1] < gaps[0] and gaps[-1] < 1,
        ),
    )
    rows = tuple((f"batch {n}", *found[n].values()) for n in sizes)
    return Outcome(
        f"foreign tasks: UCB {table.speed(UCB, tasks):.2f}, {ofa} {table.speed(ofa, tasks):.2f} times plain decoding; "
        f"batches of {sizes[-1]}: one for all {last['one for all']:.2f}, UCB {last['one task']:.2f} of one task, "
        f"{last['mixed tasks']:.2f} mixed",
        Figures(("times plain decoding", "one for all", "UCB, one task", "UCB, mixed tasks"), rows),
        checks,
    )


def by_length(results: Sequence[Result]) -> Outcome:
    """Figure 2."""
    sizes = (1, 2, 3, 5, 8)
    tables = dict(zip(sizes, map(Comparison, results), strict=True))
    best = {n: table.best(table.arms, by="mat") for n, table in tables.items()}
    mats = {n: tables[n].mat(best[n]) for n in sizes}
    speeds = {n: tables[n].speed(best[n]) for n in sizes}
    ours = {n: tables[n].speed(UCB) for n in sizes}
    top = max(ours, key=lambda n: ours[n])
    rising = all(mats[b] >= 0.99 * mats[a] for a, b in pairwise(sizes))
    late = mats[8] - mats[5], mats[2] - mats[1]
    checks = (
        Check(f"longer drafts bring no fewer tokens a round ({', '.join(f'{mats[n]:.2f}' for n in sizes)})", rising),
        Check(f"and less and less more ({late[1]:+.2f} from 1 to 2, {late[0]:+.2f} from 5 to 8)", late[0] < late[1]),
        Check(f"speed peaks before the longest draft: UCB at {top}", top < 8),
    )
    rows = tuple((str(n), mats[n], speeds[n], tables[n].mat(UCB), ours[n]) for n in sizes)
    return Outcome(
        "UCB, times plain decoding by length: " + ", ".join(f"{n}: {ours[n]:.2f}" for n in sizes),
        Figures(("draft length", "best drafter, tokens", "its speed", "UCB, tokens", "its speed "), rows),
        checks,
    )


def best_share(results: Sequence[Result]) -> Outcome:
    """Figure 3: how often the best drafter is played, small models by replay and heads by real rounds."""
    own = {name: cell["late"] for name, cell in results[0]["policies"].items()}
    heads = _shares(results[1])
    rows, checks = [], []
    for kind, found in (("small models", own), ("heads", heads)):
        checks += [
            Check(
                f"{kind}: UCB plays the best drafter more often than {rival} "
                f"({found[UCB]:.0%} against {found[rival]:.0%})",
                found[UCB] > found[rival],
                FEW,
            )
            for rival in (EXP3, HALVING)
        ]
        checks.append(
            Check(
                f"{kind}: and more often with divergence than with efficiency ({found[UCB]:.0%} against "
                f"{found[BE]:.0%})",
                found[UCB] > found[BE],
                FEW,
            )
        )
        rows += [(f"{kind}, {name}", share) for name, share in found.items()]
    return Outcome(
        f"share of the best drafter in the later half of the rounds: UCB {own[UCB]:.0%}, with efficiency "
        f"{own[BE]:.0%}, EXP3 {own[EXP3]:.0%}, halving {own[HALVING]:.0%} (small models); {heads[UCB]:.0%}, "
        f"{heads[BE]:.0%}, {heads[EXP3]:.0%}, {heads[HALVING]:.0%} (heads)",
        Figures(("drafters and bandit", "share"), tuple(rows)),
        tuple(checks),
    )


def _shares(content: Result) -> dict[str, float]:
    """Of real rounds: the share of each task's best head, in the later half of all rounds."""
    table = Comparison(content)
    best = {task: table.best(table.arms, task, by="mat") for task in table.tasks}
    found = {}
    for name in (UCB, BE, EXP3, HALVING):
        played = [float(r[0] == best[answer["task"]]) for answer in content["rounds"][name] for r in answer["rounds"]]
        found[name] = halves([played])["late"]
    return found


def stationary(results: Sequence[Result]) -> Outcome:
    """Figure 6: the mean of divergence moves less from round to round than it spreads within one."""
    rows, checks = [], []
    for name, cell in results[0]["drafters"].items():
        rounds = cell["rounds"]
        means, spreads = [r[0] for r in rounds], [r[1] for r in rounds]
        moved, within = max(means) - min(means), sum(spreads) / len(spreads)
        rows.append((name, *means))
        checks.append(
            Check(
                f"{name}: means of the first {len(means)} rounds lie within one standard deviation of a round "
                f"({moved:.2f} against {within:.2f})",
                moved <= within,
                "The first rounds of an answer are easier to guess than later ones.",
            )
        )
    cell = results[0]["drafters"]["draft:ofa"]["rounds"]
    return Outcome(
        "draft:ofa, mean divergence by round: " + ", ".join(f"{r[0]:.2f}" for r in cell),
        Figures(("drafter", *(str(i + 1) for i in range(len(cell)))), tuple(row[: len(cell) + 1] for row in rows)),
        tuple(checks),
    )
