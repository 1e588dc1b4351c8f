"""MetaSD's claims about rewards, draft lengths, windows and batches, checked against results."""

from collections.abc import Sequence
from itertools import pairwise

from reproduction.analyses import halves
from reproduction.claims import beats, one_for_all
from reproduction.comparison import Comparison
from reproduction.experiment import Check, Checks, Figures, Outcome, joined
from reproduction.metasd_claims import FEW, NARROW, SLOW, tasks_of, ucb_of, why_slower
from reproduction.runs import BE, EXP3, HALVING, UCB
from reproduction.workspace import Result

SELDOM = "Where hardly a token is accepted, efficiency is nearly always zero and so hardly varies."
EACH_EXPLORES = "In a batch every request explores for itself, and every drafter that one of them plays takes a pass."


def rewards(results: Sequence[Result]) -> Outcome:
    """Table 2: on each task the home drafter's rewards beside the others'."""
    rows, checks = [], Checks()
    for where, result in zip(("code", "math"), results, strict=True):
        own, best = result["drafters"], result["drafters"][f"draft:{where}"]
        for name, cell in own.items():
            values = (cell["be"]["mean"], cell["bd"]["mean"], cell["be"]["variance"], cell["bd"]["variance"])
            rows.append((f"{name} on {where}", *values, cell["be"]["zeros"]))
        others = [cell for name, cell in own.items() if name != f"draft:{where}"]
        be, bd = (min(best[kind]["mean"] - other[kind]["mean"] for other in others) for kind in ("be", "bd"))
        steadier = all(cell["bd"]["variance"] <= cell["be"]["variance"] for cell in own.values())
        checks.add(f"{where}: divergence has the wider gap ({bd:.3f} against {be:.3f})", bd > be)
        checks.add(f"{where}: divergence varies less for every drafter", steadier, SELDOM)
        checks.add(f"{where}: divergence is never zero", all(cell["bd"]["zeros"] == 0 for cell in own.values()))
        says = f"{where}: efficiency is zero in at least half of the rounds of the drafters away from home"
        checks.add(says, all(other["be"]["zeros"] >= 0.5 for other in others))
    code = results[0]["drafters"]
    told = "; ".join(f"{n} BE {c['be']['mean']:.2f}, BD {c['bd']['mean']:.2f}" for n, c in code.items())
    columns = ("drafter", "BE mean", "BD mean", "BE variance", "BD variance", "BE zeros")
    return Outcome(f"on code: {told}", Figures(columns, rows), checks)


def one_reward(content: Result, kind: str) -> Outcome:
    """Table 7 for one kind of drafter."""
    table = Comparison(content)
    ucb, tasks = ucb_of(table), tasks_of(table)
    be = next((name for name in table.cells if name.startswith("meta-ucb") and "reward=be" in name), None)
    if be is None:
        raise ValueError("the result has no meta-ucb with reward=be among its methods")
    check = beats(table, ucb, be, tasks)
    rows = [(f"{kind}, {task}", table.speed(be, task), table.speed(ucb, task)) for task in tasks]
    return Outcome(
        f"{kind}: divergence {table.times(ucb, tasks)}, efficiency {table.times(be, tasks)} times plain decoding",
        Figures(("drafters and task", "efficiency", "divergence"), rows),
        [Check(f"{kind}: {check.says}", check.holds, SLOW if why_slower(table, be, tasks) == SLOW else FEW)],
    )


def two_rewards(results: Sequence[Result]) -> Outcome:
    """Table 7: divergence at least as fast as efficiency on most tasks, for small models and heads."""
    return joined([one_reward(result, kind) for result, kind in zip(results, ("small models", "heads"), strict=True)])


def windows(results: Sequence[Result]) -> Outcome:
    """Table 13: a window over the head's cache changes little."""
    table, name, checks = Comparison(results[0]), f"{UCB} window", Checks()
    whole = table.speed(name) / table.speed(UCB)
    checks.add(f"with the window it is within 6 % of the speed without ({whole:.2f})", abs(whole - 1) <= 0.06, FEW)
    for task in table.tasks:
        ratio = table.mat(name, task) / table.mat(UCB, task)
        checks.add(f"{task}: tokens a round within 10 % ({ratio:.2f})", abs(ratio - 1) <= 0.1, FEW)
    speeds = f"{table.times(UCB)} with the whole cache, {table.times(name)} with a window of 64 entries"
    return Outcome(f"times plain decoding: {speeds}", table.figures(), checks)


def batches(results: Sequence[Result]) -> Outcome:
    """Table 17."""
    table, found = Comparison(results[0]), results[1]["batches"]
    tasks = [t for t in ("mt_bench", "rag", "alpaca") if t in table.tasks]
    ofa, sizes = one_for_all(table, "draft"), sorted(found, key=int)
    single, alike, mixed = (found[sizes[-1]][kind] for kind in ("one for all", "one task", "mixed tasks"))
    gaps = [found[n]["mixed tasks"] / found[n]["one for all"] for n in sizes]
    against = f"{alike:.2f} against {single:.2f} with {sizes[-1]}"
    says = f"in batches of one task UCB stays ahead of one drafter for all ({against})"
    then = f"in mixed batches it falls behind as the batch grows ({gaps[0]:.2f} to {gaps[-1]:.2f} of one for all)"
    checks = (
        beats(table, UCB, ofa, tasks, NARROW),
        Check(says, alike >= single, EACH_EXPLORES),
        Check(then, gaps[-1] < gaps[0] and gaps[-1] < 1),
    )
    return Outcome(
        f"foreign tasks: UCB {table.times(UCB, tasks)}, {ofa} {table.times(ofa, tasks)} times plain decoding; batches "
        f"of {sizes[-1]}: one for all {single:.2f}, UCB {alike:.2f} of one task, {mixed:.2f} mixed",
        Figures(
            ("times plain decoding", "one for all", "UCB, one task", "UCB, mixed tasks"),
            [(f"batch {n}", *found[n].values()) for n in sizes],
        ),
        checks,
    )


def by_length(results: Sequence[Result]) -> Outcome:
    """Figure 2."""
    sizes = (1, 2, 3, 5, 8)
    tables = dict(zip(sizes, map(Comparison, results), strict=True))
    best = {n: table.best(table.arms, by="mat") for n, table in tables.items()}
    mats = {n: tables[n].mat(best[n]) for n in sizes}
    ours = {n: tables[n].speed(UCB) for n in sizes}
    top = max(ours, key=lambda n: ours[n])
    rising = all(mats[b] >= 0.99 * mats[a] for a, b in pairwise(sizes))
    early, late = mats[2] - mats[1], mats[8] - mats[5]
    checks = (
        Check(f"longer drafts bring no fewer tokens a round ({', '.join(f'{mats[n]:.2f}' for n in sizes)})", rising),
        Check(f"and less and less more ({early:+.2f} from 1 to 2, {late:+.2f} from 5 to 8)", late < early),
        Check(f"speed peaks before the longest draft: UCB at {top}", top < 8),
    )
    rows = [(str(n), mats[n], tables[n].speed(best[n]), tables[n].mat(UCB), ours[n]) for n in sizes]
    headline = "UCB, times plain decoding by length: " + ", ".join(f"{n}: {ours[n]:.2f}" for n in sizes)
    figures = Figures(("draft length", "best drafter, tokens", "its speed", "UCB, tokens", "its speed "), rows)
    return Outcome(headline, figures, checks)


def best_share(results: Sequence[Result]) -> Outcome:
    """Figure 3: how often the best drafter is played, small models by replay and heads by real rounds."""
    models = {name: cell["late"] for name, cell in results[0]["policies"].items()}
    heads = _shares(results[1])
    rows, checks = [], Checks()
    for kind, found in (("small models", models), ("heads", heads)):
        for rival, whom in ((EXP3, EXP3), (HALVING, HALVING), (BE, "")):
            says = f"UCB plays the best drafter more often than {whom}"
            says = says if whom else "and more often with divergence than with efficiency"
            shares = f"{found[UCB]:.0%} against {found[rival]:.0%}"
            checks.add(f"{kind}: {says} ({shares})", found[UCB] > found[rival], FEW)
        rows += [(f"{kind}, {name}", share) for name, share in found.items()]
    ucb, be, exp3, halving = (f"{models[name]:.0%}" for name in (UCB, BE, EXP3, HALVING))
    return Outcome(
        f"share of the best drafter in the later half of the rounds: UCB {ucb}, with efficiency {be}, EXP3 {exp3}, "
        f"halving {halving} (small models); {', '.join(f'{heads[name]:.0%}' for name in (UCB, BE, EXP3, HALVING))} "
        "(heads)",
        Figures(("drafters and bandit", "share"), rows),
        checks,
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
    rows, checks = [], Checks()
    means = {name: [r[0] for r in cell["rounds"]] for name, cell in results[0]["drafters"].items()}
    for name, cell in results[0]["drafters"].items():
        moved = max(means[name]) - min(means[name])
        within = sum(r[1] for r in cell["rounds"]) / len(cell["rounds"])
        rows.append((name, *means[name]))
        checks.add(
            f"{name}: means of the first {len(means[name])} rounds lie within one standard deviation of a round "
            f"({moved:.2f} against {within:.2f})",
            moved <= within,
            "The first rounds of an answer are easier to guess than later ones.",
        )
    ofa = means["draft:ofa"]
    figures = Figures(("drafter", *(str(i + 1) for i in range(len(ofa)))), [row[: len(ofa) + 1] for row in rows])
    return Outcome("draft:ofa, mean divergence by round: " + ", ".join(f"{mean:.2f}" for mean in ofa), figures, checks)
