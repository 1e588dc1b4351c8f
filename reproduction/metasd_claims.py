"""MetaSD's claims about choosing among drafters, checked against results."""

from collections.abc import Sequence

from reproduction.claims import HOME, at_home, away_from_home, beats, home, one_for_all, specialists
from reproduction.comparison import Comparison
from reproduction.experiment import Check, Checks, Figures, Outcome
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
ROUTED = "A classifier that knows the tasks pays nothing for exploring, and a wrong specialist costs little here."
FIRST_ON_ALL = (
    "All heads were first trained on everything here, so away from home they are slightly worse, not useless."
)


def ucb_of(table: Comparison) -> str:
    """UCB with block divergence, whatever its parameters."""
    named = [name for name in table.cells if name.startswith("meta-ucb")]
    found = [name for name in named if "reward=" not in name and "window" not in name]
    if not found:
        raise ValueError("the result has no meta-ucb among its methods")
    return found[0]


def why_slower(table: Comparison, other: str, tasks: Sequence[str]) -> str:
    """Why UCB is slower than another method: the tokens its rounds bring, or the time they take."""
    ucb = ucb_of(table)
    slower = table.speed(ucb, tasks) < table.speed(other, tasks)
    return SLOW if slower and table.mat(ucb, tasks) >= 0.98 * table.mat(other, tasks) else NARROW


def tasks_of(table: Comparison) -> list[str]:
    return [task for task in table.tasks if task in FIVE] or table.tasks


def _compared(content: Result, kind: str) -> tuple[Comparison, str, str, list[str]]:
    """The comparison, UCB, the drafter for everything and the tasks."""
    table = Comparison(content)
    return table, ucb_of(table), one_for_all(table, kind), tasks_of(table)


def selection(content: Result, kind: str, others: Result | None = None) -> Outcome:
    """Tables 3 and 4: specialists at home, UCB over the drafter for everything and over the other bandits."""
    table, ucb, ofa, tasks = _compared(content, kind)
    rivals = [name for name in table.cells if name.startswith((EXP3, "halving", RANDOM, "exp3spec"))]
    checks = at_home(table, kind)
    checks += [beats(table, ucb, rival, tasks, why_slower(table, rival, tasks)) for rival in (ofa, *rivals)]
    lookup = Comparison(others) if others is not None else None
    extra = f"; prompt lookup {lookup.times(lookup.arms[0], tasks)}" if lookup is not None else ""
    best = table.best(table.named(f"{kind}:"), tasks)
    told = ", ".join(f"{name} {table.times(name, tasks)}" for name in (ucb, ofa, *rivals))
    return Outcome(
        f"times plain decoding over {len(tasks)} tasks: {told}, the best drafter alone, {best}, "
        f"{table.times(best, tasks)}{extra}; tokens a round: UCB {table.mat(ucb, tasks):.2f}, {ofa} "
        f"{table.mat(ofa, tasks):.2f}",
        table.figures(tasks),
        checks,
    )


def draft_all(results: Sequence[Result]) -> Outcome:
    """Table 5: UCB over EXP3 and over drafters away from home; all drafting at once is slower than plain decoding."""
    table, everyone = Comparison(results[0]), Comparison(results[-1])
    together = next((n for n in everyone.cells if n == "all drafters" or n.startswith("together:")), None)
    if together is None:
        raise ValueError("the result has no method that lets all drafters draft at once")
    tasks = [task for tasks in HOME.values() for task in tasks if task in table.tasks and task != "xsum"]
    best = table.best(specialists(table, "draft").values(), tasks)
    slow, ours = everyone.speed(together, tasks), table.speed(UCB, tasks)
    says = f"all drafting at once is slower than plain decoding ({slow:.2f}x) and than UCB ({ours:.2f}x)"
    checks = (
        beats(table, UCB, EXP3, tasks, FEW),
        away_from_home(table, UCB, "draft", "drafters", tasks, why_slower(table, best, tasks)),
        Check(says, slow < 1 and slow < ours),
    )
    return Outcome(
        f"times plain decoding: UCB {ours:.2f}, EXP3 {table.times(EXP3, tasks)}, all drafting {slow:.2f} (with "
        f"{everyone.mat(together, tasks):.2f} tokens a round)",
        table.figures(tasks),
        checks,
    )


def routing(results: Sequence[Result]) -> Outcome:
    """Table 6: the router against UCB at home, on rephrased prompts and abroad, small models and heads."""
    tables = list(map(Comparison, results))
    foreign = [task for task in ("rag", "alpaca") if task in tables[0].tasks and task in tables[2].tasks]
    cases: list[tuple[str, Comparison, Sequence[str]]] = []
    for kind, table, rephrased in (("small models", tables[0], tables[1]), ("heads", tables[2], tables[3])):
        cases += [(f"{kind}, at home", table, FIVE), (f"{kind}, rephrased", rephrased, FIVE)]
        cases.append((f"{kind}, abroad", table, foreign))
    rows = [(name, table.speed("router", tasks), table.speed(UCB, tasks)) for name, table, tasks in cases]
    checks = Checks()
    for name, router, ours in rows:
        says = f"{name}: UCB ({ours:.2f} times plain decoding) is at least as fast as the router ({router:.2f})"
        checks.add(says, ours >= router, ROUTED)
    told = "; ".join(f"{name} {router:.2f}, {ours:.2f}" for name, router, ours in rows)
    return Outcome(f"router and UCB, times plain decoding: {told}", Figures(("prompts", "router", "UCB"), rows), checks)


def reworded(results: Sequence[Result], kind: str) -> Outcome:
    """Tables 8 and 12: UCB over the drafter for everything on rephrased prompts, and what it loses to that."""
    table, ucb, ofa, tasks = _compared(results[0], kind)
    before = Comparison(results[1])
    ours, then = table.mat(ucb, tasks), before.mat(ucb_of(before), tasks)
    says = f"UCB keeps at least nine tenths of its tokens a round when prompts are rephrased ({ours / then:.2f})"
    return Outcome(
        f"times plain decoding, rephrased: UCB {table.times(ucb, tasks)}, {ofa} {table.times(ofa, tasks)}; tokens a "
        f"round: UCB {ours:.2f}, {then:.2f} before",
        table.figures(tasks),
        (beats(table, ucb, ofa, tasks, NARROW), Check(says, ours / then >= 0.9, FEW)),
    )


def matrix(content: Result) -> Outcome:
    """Table 9: every specialist is best at home."""
    table = Comparison(content)
    own = specialists(table, "eagle")
    homes = [(domain, arm, task) for domain, arm in own.items() if (task := home(table.tasks, domain)) is not None]
    told = ", ".join(f"{domain} {table.mat(arm, task):.2f} on {task}" for domain, arm, task in homes)
    figures = table.figures(tasks_of(table), own.values())
    return Outcome(f"tokens a round at home: {told}", figures, at_home(table, "eagle", by="mat"))


def matrix_of_tokens(content: Result) -> Outcome:
    """Table 9 from `wager train evaluate`: tokens a round of every drafter on every task."""
    cells = {
        name.replace("-", ":", 1): {task: own["mat"]["4"] for task, own in tasks.items()}
        for name, tasks in content["drafters"].items()
    }
    heads = {name: name.partition(":")[2] for name in cells if name.startswith("eagle:")}
    tasks = list(next(iter(cells.values())))
    checks = Checks()
    for name, domain in heads.items():
        if (task := home(tasks, domain)) is None:
            continue
        best = max(heads, key=lambda other: cells[other][task])
        figures = f"{cells[name][task]:.2f}, the best, {best}, {cells[best][task]:.2f} tokens a round"
        checks.add(f"{name} is the best head on {task}: {figures}", best == name)
        least = min(cells[name][t] / max(cells[o][t] for o in heads) for t in tasks if t not in HOME[domain])
        says = f"{name} falls to two thirds of the best or less somewhere else ({least:.2f} of it)"
        checks.add(says, least <= 0.67, FIRST_ON_ALL)
    homes = [(name, domain, task) for name, domain in heads.items() for task in HOME.get(domain, ())[:1]]
    told = ", ".join(f"{domain} {cells[name][task]:.2f} on {task}" for name, domain, task in homes)
    rows = [(name, *(cells[name][t] for t in tasks)) for name in heads]
    return Outcome(f"tokens a round at home: {told}", Figures(("drafter", *tasks), rows), checks)


def long_texts(results: Sequence[Result]) -> Outcome:
    """Table 10: UCB beside the best head on long texts, and on short ones."""
    table, short = Comparison(results[0]), Comparison(results[1])
    task = "translation"
    best = table.best(table.arms, task)
    ratio = table.speed(UCB, task) / table.speed(best, task)
    before = short.speed(UCB, task) / short.speed(short.best(short.arms, task), task)
    speeds = f"{table.times(UCB, task)} of {table.times(best, task)} times plain decoding"
    checks = (
        Check(f"on long texts UCB is within 5 % of the best head, {best} ({speeds})", ratio >= 0.95, FEW),
        Check(f"and closer to it than on short ones ({ratio:.2f} against {before:.2f})", ratio >= before, FEW),
    )
    told = f"UCB {table.times(UCB, task)}, the best head alone, {best}, {table.times(best, task)} times plain decoding"
    return Outcome(told, table.figures([task]), checks)


def abroad(results: Sequence[Result]) -> Outcome:
    """Table 11: out of domain, UCB over the drafter for everything and over most specialists."""
    rows: list[tuple[str, str, float, float, float]] = []
    checks = Checks()
    for result, kind in zip(results, ("draft", "eagle"), strict=True):
        if not Comparison(result).named(f"{kind}:ofa:"):
            continue
        table, ucb, ofa, _ = _compared(result, kind)
        for task in [t for t in ("rag", "alpaca") if t in table.tasks]:
            ours, theirs = table.speed(ucb, task), table.speed(ofa, task)
            own = [table.speed(arm, task) for arm in specialists(table, kind).values()]
            won = sum(ours >= other for other in own)
            rows.append((kind, task, ours, theirs, max(own)))
            says = f"{kind}, {task}: UCB ({ours:.2f}) beats {ofa} ({theirs:.2f} times plain decoding)"
            checks.add(says, ours >= theirs, NARROW)
            checks.add(f"{kind}, {task}: and most specialists ({won} of {len(own)})", 2 * won > len(own), NARROW)
    told = "; ".join(f"{kind} {task} {ours:.2f} against {ofa:.2f}" for kind, task, ours, ofa, _ in rows)
    headline = f"UCB and the drafter for everything, times plain decoding: {told}"
    return Outcome(headline, Figures(("kind", "task", "UCB", "for everything", "best specialist"), rows), checks)


def sampled(content: Result, kind: str) -> Outcome:
    """Tables 14 to 16: sampled texts."""
    table, ucb, ofa, tasks = _compared(content, kind)
    checks = at_home(table, kind)
    checks.append(beats(table, ucb, ofa, tasks, why_slower(table, ofa, tasks)))
    checks.append(away_from_home(table, ucb, kind, "specialists", tasks, NARROW))
    return Outcome(
        f"times plain decoding: UCB {table.times(ucb, tasks)}, {ofa} {table.times(ofa, tasks)}; tokens a round: "
        f"{table.mat(ucb, tasks):.2f} and {table.mat(ofa, tasks):.2f}",
        table.figures(tasks),
        checks,
    )


def mixed(content: Result) -> Outcome:
    """Table 19: UCB over the best single drafter where the best changes half-way."""
    table = Comparison(content)
    ucb = ucb_of(table)
    best, longest = table.best(table.arms), table.best(table.arms, by="mat")
    says = f"UCB ({table.times(ucb)} times plain decoding) beats the best single drafter ({best}, {table.times(best)})"
    then = f"and in tokens a round ({table.mat(ucb):.2f} against {table.mat(longest):.2f})"
    checks = (
        Check(says, table.speed(ucb) > table.speed(best), why_slower(table, best, table.tasks)),
        Check(then, table.mat(ucb) > table.mat(longest), NARROW),
    )
    told = f"UCB {table.times(ucb)}, the best drafter alone, {best}, {table.times(best)} times plain decoding"
    return Outcome(told, table.figures(), checks)
