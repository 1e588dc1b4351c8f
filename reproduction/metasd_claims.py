"""MetaSD's claims about choosing among drafters, checked against results."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.claims import HOME, at_home, beats, home, one_for_all, specialists
from reproduction.comparison import Comparison
from reproduction.experiment import Check, Figures, Outcome
from reproduction.runs import EXP3, FIVE, RANDOM, UCB
from reproduction.workspace import Result

NARROW = (
    "The drafters here differ little from each other, so there is little for a choice among them to win, and every "
    "round of exploring plays a worse one."
)
SLOW = (
    "Its rounds bring as many tokens and take longer: the divergence needs both models' whole distributions at every "
    "drafted position, and a drafter that was not played has to catch up."
)
FEW = "A few prompts a task leave the order of near equals to chance."


def ucb_of(table: Comparison) -> str:
    """UCB with block divergence, whatever its parameters."""
    found = [
        name for name in table.cells if name.startswith("meta-ucb") and "reward=" not in name and "window" not in name
    ]
    if not found:
        raise ValueError("the result has no meta-ucb among its methods")
    return found[0]


def why_slower(table: Comparison, other: str, tasks: Sequence[str]) -> str:
    """Why UCB is slower than another method: the tokens its rounds bring, or the time they take."""
    ucb = ucb_of(table)
    if table.mat(ucb, tasks) >= 0.98 * table.mat(other, tasks) and table.speed(ucb, tasks) < table.speed(other, tasks):
        return SLOW
    return NARROW


def tasks_of(table: Comparison) -> list[str]:
    return [task for task in table.tasks if task in FIVE] or table.tasks


def selection(content: Result, kind: str, others: Result | None = None) -> Outcome:
    """Tables 3 and 4: specialists at home, UCB over the drafter for everything and over the other bandits."""
    table = Comparison(content)
    ucb, ofa, tasks = ucb_of(table), one_for_all(table, kind), tasks_of(table)
    checks = at_home(table, kind)
    checks.append(beats(table, ucb, ofa, tasks, because=why_slower(table, ofa, tasks)))
    rivals = [name for name in table.cells if name.startswith((EXP3, "halving", RANDOM, "exp3spec"))]
    checks += [beats(table, ucb, rival, tasks, because=why_slower(table, rival, tasks)) for rival in rivals]
    extra = ""
    if others is not None:
        extra = f"; prompt lookup {Comparison(others).speed(Comparison(others).arms[0], tasks):.2f}"
    best = table.best(table.named(f"{kind}:"), tasks)
    told = ", ".join(f"{name} {table.speed(name, tasks):.2f}" for name in (ucb, ofa, *rivals))
    return Outcome(
        f"times plain decoding over {len(tasks)} tasks: {told}, the best drafter alone, {best}, "
        f"{table.speed(best, tasks):.2f}{extra}; tokens a round: UCB {table.mat(ucb, tasks):.2f}, {ofa} "
        f"{table.mat(ofa, tasks):.2f}",
        table.figures(tasks),
        tuple(checks),
    )


def draft_all(results: Sequence[Result]) -> Outcome:
    """Table 5: UCB over EXP3 and over drafters away from home; all drafting at once is slower than plain decoding."""
    table, everyone = Comparison(results[0]), Comparison(results[-1])
    together = next((n for n in everyone.cells if n == "all drafters" or n.startswith("together:")), None)
    if together is None:
        raise ValueError("the result has no method that lets all drafters draft at once")
    tasks = [task for tasks in HOME.values() for task in tasks if task in table.tasks and task != "xsum"]
    own = specialists(table, "draft")
    slow = everyone.speed(together, tasks)
    away = [(arm, t) for domain, arm in own.items() for t in tasks if t not in HOME[domain]]
    won = sum(table.speed(UCB, t) >= table.speed(arm, t) for arm, t in away)
    checks = (
        beats(table, UCB, EXP3, tasks, because=FEW),
        Check(
            f"UCB beats drafters away from home: {won} of {len(away)} times",
            2 * won > len(away),
            why_slower(table, table.best(list(own.values()), tasks), tasks),
        ),
        Check(
            f"all drafting at once is slower than plain decoding ({slow:.2f}x) and than UCB "
            f"({table.speed(UCB, tasks):.2f}x)",
            slow < 1 and slow < table.speed(UCB, tasks),
        ),
    )
    return Outcome(
        f"times plain decoding: UCB {table.speed(UCB, tasks):.2f}, EXP3 {table.speed(EXP3, tasks):.2f}, all drafting "
        f"{slow:.2f} (with {everyone.mat(together, tasks):.2f} tokens a round)",
        table.figures(tasks),
        checks,
    )


def routing(results: Sequence[Result]) -> Outcome:
    """Table 6: the router against UCB at home, on rephrased prompts and abroad, small models and heads."""
    black, black_reworded, white, white_reworded = map(Comparison, results)
    abroad: list[str] = [task for task in ("rag", "alpaca") if task in black.tasks and task in white.tasks]
    cases: dict[str, tuple[Comparison, list[str]]] = {
        "small models, at home": (black, list(FIVE)),
        "small models, rephrased": (black_reworded, list(FIVE)),
        "small models, abroad": (black, abroad),
        "heads, at home": (white, list(FIVE)),
        "heads, rephrased": (white_reworded, list(FIVE)),
        "heads, abroad": (white, abroad),
    }
    rows, checks = [], []
    for name, (table, tasks) in cases.items():
        router, ours = table.speed("router", tasks), table.speed(UCB, tasks)
        rows.append((name, router, ours))
        checks.append(
            Check(
                f"{name}: UCB ({ours:.2f} times plain decoding) is at least as fast as the router ({router:.2f})",
                ours >= router,
                "A classifier that knows the tasks pays nothing for exploring, and a wrong specialist costs "
                "little here.",
            )
        )
    return Outcome(
        "router and UCB, times plain decoding: " + "; ".join(f"{n} {r:.2f}, {o:.2f}" for n, r, o in rows),
        Figures(("prompts", "router", "UCB"), tuple(rows)),
        tuple(checks),
    )


def reworded(results: Sequence[Result], kind: str) -> Outcome:
    """Tables 8 and 12: UCB over the drafter for everything on rephrased prompts, and what it loses to that."""
    table, before = Comparison(results[0]), Comparison(results[1])
    ucb, ofa, tasks = ucb_of(table), one_for_all(table, kind), tasks_of(table)
    kept = table.mat(ucb, tasks) / before.mat(ucb_of(before), tasks)
    checks = (
        beats(table, ucb, ofa, tasks, because=NARROW),
        Check(
            f"UCB keeps at least nine tenths of its tokens a round when prompts are rephrased ({kept:.2f})",
            kept >= 0.9,
            FEW,
        ),
    )
    return Outcome(
        f"times plain decoding, rephrased: UCB {table.speed(ucb, tasks):.2f}, {ofa} {table.speed(ofa, tasks):.2f}; "
        f"tokens a round: UCB {table.mat(ucb, tasks):.2f}, {before.mat(ucb_of(before), tasks):.2f} before",
        table.figures(tasks),
        checks,
    )


def matrix(content: Result) -> Outcome:
    """Table 9: every specialist is best at home."""
    table = Comparison(content)
    own = specialists(table, "eagle")
    checks = at_home(table, "eagle", by="mat")
    homes = {domain: home(table, domain) for domain in own}
    told = ", ".join(
        f"{domain} {table.mat(own[domain], task):.2f} on {task}" for domain, task in homes.items() if task is not None
    )
    return Outcome(f"tokens a round at home: {told}", table.figures(tasks_of(table), [*own.values()]), tuple(checks))


def matrix_of_tokens(content: Result) -> Outcome:
    """Table 9 from `wager train evaluate`: tokens a round of every drafter on every task."""
    cells = {
        name.replace("-", ":", 1): {task: own["mat"]["4"] for task, own in tasks.items()}
        for name, tasks in content["drafters"].items()
    }
    heads = [name for name in cells if name.startswith("eagle:")]
    tasks = list(next(iter(cells.values())))
    checks = []
    for name in heads:
        domain = name.partition(":")[2]
        task = next((t for t in HOME.get(domain, ()) if t in tasks), None)
        if task is None:
            continue
        best = max(heads, key=lambda other: cells[other][task])
        checks.append(
            Check(
                f"{name} is the best head on {task}: {cells[name][task]:.2f}, the best, {best}, "
                f"{cells[best][task]:.2f} tokens a round",
                best == name,
            )
        )
        rest = [cells[name][t] / max(cells[o][t] for o in heads) for t in tasks if t not in HOME[domain]]
        least = min(rest)
        checks.append(
            Check(
                f"{name} falls to two thirds of the best or less somewhere else ({least:.2f} of it)",
                least <= 0.67,
                "All heads were first trained on everything here, so away from home they are slightly worse, "
                "not useless.",
            )
        )
    told = ", ".join(
        f"{name.partition(':')[2]} {cells[name][t]:.2f} on {t}"
        for name in heads
        for t in HOME.get(name.partition(":")[2], ())[:1]
    )
    rows = tuple((name, *(cells[name][t] for t in tasks)) for name in heads)
    return Outcome(f"tokens a round at home: {told}", Figures(("drafter", *tasks), rows), tuple(checks))


def long_texts(results: Sequence[Result]) -> Outcome:
    """Table 10: UCB beside the best head on long texts, and on short ones."""
    table, short = Comparison(results[0]), Comparison(results[1])
    task = "translation"
    best = table.best(table.arms, task)
    ratio = table.speed(UCB, task) / table.speed(best, task)
    before = short.speed(UCB, task) / short.speed(short.best(short.arms, task), task)
    checks = (
        Check(
            f"on long texts UCB is within 5 % of the best head, {best} ({table.speed(UCB, task):.2f} of "
            f"{table.speed(best, task):.2f} times plain decoding)",
            ratio >= 0.95,
            FEW,
        ),
        Check(f"and closer to it than on short ones ({ratio:.2f} against {before:.2f})", ratio >= before, FEW),
    )
    return Outcome(
        f"UCB {table.speed(UCB, task):.2f}, the best head alone, {best}, {table.speed(best, task):.2f} times "
        "plain decoding",
        table.figures([task]),
        checks,
    )


def abroad(results: Sequence[Result]) -> Outcome:
    """Table 11: out of domain, UCB over the drafter for everything and over most specialists."""
    rows: list[tuple[str, str, float, float, float]] = []
    checks = []
    for result, kind in zip(results, ("draft", "eagle"), strict=True):
        table = Comparison(result)
        if not table.named(f"{kind}:ofa:"):
            continue
        ucb, ofa = ucb_of(table), one_for_all(table, kind)
        own = list(specialists(table, kind).values())
        for task in [t for t in ("rag", "alpaca") if t in table.tasks]:
            ours = table.speed(ucb, task)
            won = sum(ours >= table.speed(arm, task) for arm in own)
            rows.append((kind, task, ours, table.speed(ofa, task), max(table.speed(arm, task) for arm in own)))
            checks += [
                Check(
                    f"{kind}, {task}: UCB ({ours:.2f}) beats {ofa} ({table.speed(ofa, task):.2f} times plain decoding)",
                    ours >= table.speed(ofa, task),
                    NARROW,
                ),
                Check(f"{kind}, {task}: and most specialists ({won} of {len(own)})", 2 * won > len(own), NARROW),
            ]
    told = "; ".join(f"{k} {t} {u:.2f} against {o:.2f}" for k, t, u, o, _ in rows)
    return Outcome(
        f"UCB and the drafter for everything, times plain decoding: {told}",
        Figures(("kind", "task", "UCB", "for everything", "best specialist"), tuple(rows)),
        tuple(checks),
    )


def sampled(content: Result, kind: str) -> Outcome:
    """Tables 14 to 16: sampled texts."""
    table = Comparison(content)
    ucb, ofa, tasks = ucb_of(table), one_for_all(table, kind), tasks_of(table)
    own = specialists(table, kind)
    checks = at_home(table, kind)
    checks.append(beats(table, ucb, ofa, tasks, because=why_slower(table, ofa, tasks)))
    away = [(arm, t) for domain, arm in own.items() for t in tasks if t not in HOME.get(domain, ())]
    won = sum(table.speed(ucb, t) >= table.speed(arm, t) for arm, t in away)
    checks.append(
        Check(f"UCB beats specialists away from home: {won} of {len(away)} times", 2 * won > len(away), NARROW)
    )
    return Outcome(
        f"times plain decoding: UCB {table.speed(ucb, tasks):.2f}, {ofa} {table.speed(ofa, tasks):.2f}; tokens a "
        f"round: {table.mat(ucb, tasks):.2f} and {table.mat(ofa, tasks):.2f}",
        table.figures(tasks),
        tuple(checks),
    )


def mixed(content: Result) -> Outcome:
    """Table 19: UCB over the best single drafter where the best changes half-way."""
    table = Comparison(content)
    ucb = ucb_of(table)
    best = table.best(table.arms)
    checks = [
        Check(
            f"UCB ({table.speed(ucb):.2f} times plain decoding) beats the best single drafter ({best}, "
            f"{table.speed(best):.2f})",
            table.speed(ucb) > table.speed(best),
            why_slower(table, best, table.tasks),
        ),
        Check(
            f"and in tokens a round ({table.mat(ucb):.2f} against {table.mat(table.best(table.arms, by='mat')):.2f})",
            table.mat(ucb) > table.mat(table.best(table.arms, by="mat")),
            NARROW,
        ),
    ]
    return Outcome(
        f"UCB {table.speed(ucb):.2f}, the best drafter alone, {best}, {table.speed(best):.2f} times plain decoding",
        table.figures(),
        tuple(checks),
    )
