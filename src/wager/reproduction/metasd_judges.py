"""How MetaSD's claims are judged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from wager.reproduction.analyses import halves
from wager.reproduction.base import Check, Figures, Outcome, Result
from wager.reproduction.board import Board
from wager.reproduction.claims import HOME, at_home, beats, home, one_for_all, specialists
from wager.reproduction.runs import BE, EXP3, FIVE, HALVING, RANDOM, UCB

NARROW = (
    "The drafters here differ little from each other, so there is little for a choice among them to win, and "
    "every round of "
    "exploring plays a worse one."
)
SLOW = (
    "Its rounds bring as many tokens and take longer: the divergence needs both models' whole distributions at "
    "every drafted "
    "position, and a drafter that was not played has to catch up."
)
FEW = "A few prompts a task leave the order of near equals to chance."


def _ucb(board: Board) -> str:
    """UCB with block divergence, whatever its parameters."""
    found = [
        name for name in board.cells if name.startswith("meta-ucb") and "reward=" not in name and "window" not in name
    ]
    if not found:
        raise ValueError("the result has no meta-ucb among its methods")
    return found[0]


def _loses(board: Board, other: str, tasks: Sequence[str]) -> str:
    """Why UCB is slower than another method: the tokens its rounds bring, or the time they take."""
    ucb = _ucb(board)
    if board.mat(ucb, tasks) >= 0.98 * board.mat(other, tasks) and board.speed(ucb, tasks) < board.speed(other, tasks):
        return SLOW
    return NARROW


def _tasks(board: Board) -> list[str]:
    return [task for task in board.tasks if task in FIVE] or board.tasks


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


def selection(content: Result, kind: str, others: Result | None = None) -> Outcome:
    """Tables 3 and 4: specialists at home, UCB over the drafter for everything and over the other bandits."""
    board = Board(content)
    ucb, ofa, tasks = _ucb(board), one_for_all(board, kind), _tasks(board)
    checks = at_home(board, kind)
    checks.append(beats(board, ucb, ofa, tasks, because=_loses(board, ofa, tasks)))
    rivals = [name for name in board.cells if name.startswith((EXP3, "halving", RANDOM, "exp3spec"))]
    checks += [beats(board, ucb, rival, tasks, because=_loses(board, rival, tasks)) for rival in rivals]
    extra = ""
    if others is not None:
        extra = f"; prompt lookup {Board(others).speed(Board(others).arms[0], tasks):.2f}"
    best = board.best(board.named(f"{kind}:"), tasks)
    told = ", ".join(f"{name} {board.speed(name, tasks):.2f}" for name in (ucb, ofa, *rivals))
    return Outcome(
        f"times plain decoding over {len(tasks)} tasks: {told}, the best drafter alone, {best}, "
        f"{board.speed(best, tasks):.2f}{extra}; tokens a round: UCB {board.mat(ucb, tasks):.2f}, {ofa} "
        f"{board.mat(ofa, tasks):.2f}",
        board.figures(tasks),
        tuple(checks),
    )


def draft_all(results: Sequence[Result]) -> Outcome:
    """Table 5: UCB over EXP3 and over drafters away from home; all drafting at once is slower than plain decoding."""
    board, everyone = Board(results[0]), Board(results[-1])
    together = next((n for n in everyone.cells if n == "all drafters" or n.startswith("together:")), None)
    if together is None:
        raise ValueError("the result has no method that lets all drafters draft at once")
    tasks = [task for tasks in HOME.values() for task in tasks if task in board.tasks and task != "xsum"]
    own = specialists(board, "draft")
    slow = everyone.speed(together, tasks)
    away = [(arm, t) for domain, arm in own.items() for t in tasks if t not in HOME[domain]]
    won = sum(board.speed(UCB, t) >= board.speed(arm, t) for arm, t in away)
    checks = (
        beats(board, UCB, EXP3, tasks, because=FEW),
        Check(
            f"UCB beats drafters away from home: {won} of {len(away)} times",
            2 * won > len(away),
            _loses(board, board.best(list(own.values()), tasks), tasks),
        ),
        Check(
            f"all drafting at once is slower than plain decoding ({slow:.2f}x) and than UCB "
            f"({board.speed(UCB, tasks):.2f}x)",
            slow < 1 and slow < board.speed(UCB, tasks),
        ),
    )
    return Outcome(
        f"times plain decoding: UCB {board.speed(UCB, tasks):.2f}, EXP3 {board.speed(EXP3, tasks):.2f}, all "
        f"drafting {slow:.2f} "
        f"(with {everyone.mat(together, tasks):.2f} tokens a round)",
        board.figures(tasks),
        checks,
    )


def routing(results: Sequence[Result]) -> Outcome:
    """Table 6: the router against UCB at home, on rephrased prompts and abroad, small models and heads."""
    black, black_reworded, white, white_reworded = map(Board, results)
    abroad: list[str] = [task for task in ("rag", "alpaca") if task in black.tasks and task in white.tasks]
    cases: dict[str, tuple[Board, list[str]]] = {
        "small models, at home": (black, list(FIVE)),
        "small models, rephrased": (black_reworded, list(FIVE)),
        "small models, abroad": (black, abroad),
        "heads, at home": (white, list(FIVE)),
        "heads, rephrased": (white_reworded, list(FIVE)),
        "heads, abroad": (white, abroad),
    }
    rows, checks = [], []
    for name, (board, tasks) in cases.items():
        router, ours = board.speed("router", tasks), board.speed(UCB, tasks)
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


def one_reward(content: Result, kind: str) -> Outcome:
    """Table 7 for one kind of drafter."""
    board = Board(content)
    ucb = _ucb(board)
    be = next((name for name in board.cells if name.startswith("meta-ucb") and "reward=be" in name), None)
    if be is None:
        raise ValueError("the result has no meta-ucb with reward=be among its methods")
    tasks = _tasks(board)
    reason = SLOW if _loses(board, be, tasks) == SLOW else FEW
    check = beats(board, ucb, be, tasks)
    speeds = f"divergence {board.speed(ucb, tasks):.2f}, efficiency {board.speed(be, tasks):.2f}"
    told = f"{kind}: {speeds} times plain decoding"
    rows = tuple((f"{kind}, {task}", board.speed(be, task), board.speed(ucb, task)) for task in tasks)
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


def reworded(results: Sequence[Result], kind: str) -> Outcome:
    """Tables 8 and 12: UCB over the drafter for everything on rephrased prompts, and what it loses to that."""
    board, before = Board(results[0]), Board(results[1])
    ucb, ofa, tasks = _ucb(board), one_for_all(board, kind), _tasks(board)
    kept = board.mat(ucb, tasks) / before.mat(_ucb(before), tasks)
    checks = (
        beats(board, ucb, ofa, tasks, because=NARROW),
        Check(
            f"UCB keeps at least nine tenths of its tokens a round when prompts are rephrased ({kept:.2f})",
            kept >= 0.9,
            FEW,
        ),
    )
    return Outcome(
        f"times plain decoding, rephrased: UCB {board.speed(ucb, tasks):.2f}, {ofa} "
        f"{board.speed(ofa, tasks):.2f}; tokens a round: "
        f"UCB {board.mat(ucb, tasks):.2f}, {before.mat(_ucb(before), tasks):.2f} before",
        board.figures(tasks),
        checks,
    )


def matrix(content: Result) -> Outcome:
    """Table 9: every specialist is best at home."""
    board = Board(content)
    own = specialists(board, "eagle")
    checks = at_home(board, "eagle", by="mat")
    homes = {domain: home(board, domain) for domain in own}
    told = ", ".join(
        f"{domain} {board.mat(own[domain], task):.2f} on {task}" for domain, task in homes.items() if task is not None
    )
    return Outcome(f"tokens a round at home: {told}", board.figures(_tasks(board), [*own.values()]), tuple(checks))


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
                f"{cells[best][task]:.2f} tokens "
                "a round",
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
    board, short = Board(results[0]), Board(results[1])
    task = "translation"
    best = board.best(board.arms, task)
    ratio = board.speed(UCB, task) / board.speed(best, task)
    before = short.speed(UCB, task) / short.speed(short.best(short.arms, task), task)
    checks = (
        Check(
            f"on long texts UCB is within 5 % of the best head, {best} ({board.speed(UCB, task):.2f} of "
            f"{board.speed(best, task):.2f} times plain decoding)",
            ratio >= 0.95,
            FEW,
        ),
        Check(f"and closer to it than on short ones ({ratio:.2f} against {before:.2f})", ratio >= before, FEW),
    )
    return Outcome(
        f"UCB {board.speed(UCB, task):.2f}, the best head alone, {best}, {board.speed(best, task):.2f} times "
        "plain decoding",
        board.figures([task]),
        checks,
    )


def abroad(results: Sequence[Result]) -> Outcome:
    """Table 11: out of domain, UCB over the drafter for everything and over most specialists."""
    rows: list[tuple[str, str, float, float, float]] = []
    checks = []
    for result, kind in zip(results, ("draft", "eagle"), strict=True):
        board = Board(result)
        if not board.named(f"{kind}:ofa:"):
            continue
        ucb, ofa = _ucb(board), one_for_all(board, kind)
        own = list(specialists(board, kind).values())
        for task in [t for t in ("rag", "alpaca") if t in board.tasks]:
            ours = board.speed(ucb, task)
            won = sum(ours >= board.speed(arm, task) for arm in own)
            rows.append((kind, task, ours, board.speed(ofa, task), max(board.speed(arm, task) for arm in own)))
            checks += [
                Check(
                    f"{kind}, {task}: UCB ({ours:.2f}) beats {ofa} ({board.speed(ofa, task):.2f} times plain decoding)",
                    ours >= board.speed(ofa, task),
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


def windows(results: Sequence[Result]) -> Outcome:
    """Table 13: a window over the head's cache changes little."""
    board = Board(results[0])
    name = f"{UCB} window"
    ratios = {task: board.mat(name, task) / board.mat(UCB, task) for task in board.tasks}
    whole = board.speed(name) / board.speed(UCB)
    checks = [
        Check(f"with the window it is within 6 % of the speed without ({whole:.2f})", abs(whole - 1) <= 0.06, FEW),
        *(
            Check(f"{task}: tokens a round within 10 % ({ratio:.2f})", abs(ratio - 1) <= 0.1, FEW)
            for task, ratio in ratios.items()
        ),
    ]
    return Outcome(
        f"times plain decoding: {board.speed(UCB):.2f} with the whole cache, {board.speed(name):.2f} with a "
        "window of 64 entries",
        board.figures(),
        tuple(checks),
    )


def sampled(content: Result, kind: str) -> Outcome:
    """Tables 14 to 16: sampled texts."""
    board = Board(content)
    ucb, ofa, tasks = _ucb(board), one_for_all(board, kind), _tasks(board)
    own = specialists(board, kind)
    checks = at_home(board, kind)
    checks.append(beats(board, ucb, ofa, tasks, because=_loses(board, ofa, tasks)))
    away = [(arm, t) for domain, arm in own.items() for t in tasks if t not in HOME.get(domain, ())]
    won = sum(board.speed(ucb, t) >= board.speed(arm, t) for arm, t in away)
    checks.append(
        Check(f"UCB beats specialists away from home: {won} of {len(away)} times", 2 * won > len(away), NARROW)
    )
    return Outcome(
        f"times plain decoding: UCB {board.speed(ucb, tasks):.2f}, {ofa} {board.speed(ofa, tasks):.2f}; tokens "
        "a round: "
        f"{board.mat(ucb, tasks):.2f} and {board.mat(ofa, tasks):.2f}",
        board.figures(tasks),
        tuple(checks),
    )


def batches(results: Sequence[Result]) -> Outcome:
    """Table 17."""
    board, found = Board(results[0]), results[1]["batches"]
    tasks = [t for t in ("mt_bench", "rag", "alpaca") if t in board.tasks]
    ofa = one_for_all(board, "draft")
    sizes = sorted(found, key=int)
    last = found[sizes[-1]]
    gaps = [found[n]["mixed tasks"] / found[n]["one for all"] for n in sizes]
    checks = (
        beats(board, UCB, ofa, tasks, because=NARROW),
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
        f"foreign tasks: UCB {board.speed(UCB, tasks):.2f}, {ofa} {board.speed(ofa, tasks):.2f} times plain "
        "decoding; batches of "
        f"{sizes[-1]}: one for all {last['one for all']:.2f}, UCB {last['one task']:.2f} of one task, "
        f"{last['mixed tasks']:.2f} mixed",
        Figures(("times plain decoding", "one for all", "UCB, one task", "UCB, mixed tasks"), rows),
        checks,
    )


def mixed(content: Result) -> Outcome:
    """Table 19: UCB over the best single drafter where the best changes half-way."""
    board = Board(content)
    ucb = _ucb(board)
    best = board.best(board.arms)
    checks = [
        Check(
            f"UCB ({board.speed(ucb):.2f} times plain decoding) beats the best single drafter ({best}, "
            f"{board.speed(best):.2f})",
            board.speed(ucb) > board.speed(best),
            _loses(board, best, board.tasks),
        ),
        Check(
            f"and in tokens a round ({board.mat(ucb):.2f} against {board.mat(board.best(board.arms, by='mat')):.2f})",
            board.mat(ucb) > board.mat(board.best(board.arms, by="mat")),
            NARROW,
        ),
    ]
    return Outcome(
        f"UCB {board.speed(ucb):.2f}, the best drafter alone, {best}, {board.speed(best):.2f} times plain decoding",
        board.figures(),
        tuple(checks),
    )


def by_length(results: Sequence[Result]) -> Outcome:
    """Figure 2."""
    sizes = (1, 2, 3, 5, 8)
    boards = dict(zip(sizes, map(Board, results), strict=True))
    best = {n: board.best(board.arms, by="mat") for n, board in boards.items()}
    mats = {n: boards[n].mat(best[n]) for n in sizes}
    speeds = {n: boards[n].speed(best[n]) for n in sizes}
    ours = {n: boards[n].speed(UCB) for n in sizes}
    top = max(ours, key=lambda n: ours[n])
    rising = all(mats[b] >= 0.99 * mats[a] for a, b in pairwise(sizes))
    late = mats[8] - mats[5], mats[2] - mats[1]
    checks = (
        Check(f"longer drafts bring no fewer tokens a round ({', '.join(f'{mats[n]:.2f}' for n in sizes)})", rising),
        Check(f"and less and less more ({late[1]:+.2f} from 1 to 2, {late[0]:+.2f} from 5 to 8)", late[0] < late[1]),
        Check(f"speed peaks before the longest draft: UCB at {top}", top < 8),
    )
    rows = tuple((str(n), mats[n], speeds[n], boards[n].mat(UCB), ours[n]) for n in sizes)
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
        f"{own[BE]:.0%}, EXP3 "
        f"{own[EXP3]:.0%}, halving {own[HALVING]:.0%} (small models); {heads[UCB]:.0%}, {heads[BE]:.0%}, "
        f"{heads[EXP3]:.0%}, "
        f"{heads[HALVING]:.0%} (heads)",
        Figures(("drafters and bandit", "share"), tuple(rows)),
        tuple(checks),
    )


def _shares(content: Result) -> dict[str, float]:
    """Of real rounds: the share of each task's best head, in the later half of all rounds."""
    board = Board(content)
    best = {task: board.best(board.arms, task, by="mat") for task in board.tasks}
    found = {}
    for name in (UCB, BE, EXP3, HALVING):
        played = [
            float(r[0] == best[answer["task"]])
            for answer in content["rounds"][f"wager {name}"]
            for r in answer["rounds"]
        ]
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
                f"({moved:.2f} "
                f"against {within:.2f})",
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
