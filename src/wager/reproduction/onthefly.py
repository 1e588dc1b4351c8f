"""On-the-fly adaptation: tables 1, 2, 3, 7, 9, 10, 12, 13 and figure 3."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from wager.reproduction import runs
from wager.reproduction.analyses import Stopped
from wager.reproduction.base import Check, Experiment, Figures, Longer, Outcome, Result, Run
from wager.reproduction.board import Board
from wager.reproduction.engine import Generated
from wager.reproduction.recorded import Replayed
from wager.reproduction.simulated import Routing

OURS = "analytical"
FIXED = 5  # tokens of speculative decoding as it was: a window that never changes
LENGTHS = (1, 2, 3, 4, 5)
SETS = {"finance-alpaca": "alpaca", "HumanEval": "humaneval", "GSM8K": "math_reasoning", "XSum": "xsum"}
THREE = ("alpaca", "humaneval", "math_reasoning")
TRIED = "Trying every window once costs rounds that a short text does not win back."
ONCE_OFF = "Once it turns itself off it gets no new acceptance data and has no way back."


def window(quick: bool, drafter: str) -> Replayed:
    """One drafter, windows of 1 to 5 tokens, chosen anew in every round of every text; every window alone."""
    labels = tuple(SETS.values())
    return Replayed(runs.everything(quick), (drafter,), LENGTHS, (OURS,), apart=True, off=True, labels=labels)


def judge_window(
    result: Result, drafter: str, sets: Sequence[str]
) -> tuple[list[tuple[str | float, ...]], list[Check]]:
    board = Board(result)
    rows: list[tuple[str | float, ...]] = []
    checks = []
    for name in sets:
        task = SETS[name]
        gain = board.speed(OURS, task) / board.speed(f"{drafter}:{FIXED}", task) - 1
        over = board.speed(OURS, task)
        rows.append((f"{drafter}, {name}", f"{gain:+.1%}", f"{over:.2f}x"))
        checks.append(
            Check(
                f"{drafter} on {name}: the adaptive window is no slower than {FIXED} tokens always ({gain:+.1%})",
                gain >= 0,
                TRIED if over > 1.02 else ONCE_OFF,
            )
        )
        checks.append(
            Check(
                f"{drafter} on {name}: and no slower than plain decoding ({over:.2f}x)",
                over >= 1,
                TRIED,
            )
        )
    return rows, checks


def judge_windows(results: Sequence[Result], drafters: Sequence[str], sets: Sequence[str]) -> Outcome:
    """Over the fixed window and over plain decoding, data set by data set."""
    rows: list[tuple[str | float, ...]] = []
    checks: list[Check] = []
    for result, drafter in zip(results, drafters, strict=True):
        more, judged = judge_window(result, drafter, sets)
        rows += more
        checks += judged
    told = "; ".join(f"{row[0]} {row[1]}, {row[2]}" for row in rows)
    return Outcome(
        f"over a window of {FIXED}, over plain decoding: {told}",
        Figures(("pair and data", "over a fixed window", "over plain decoding"), tuple(rows)),
        tuple(checks),
    )


def selection(quick: bool) -> tuple[Run, ...]:
    count, tokens = (3, 24) if quick else (12, 128)
    single = f"fixed:drafter=draft:ofa,length={FIXED}"
    one = Generated(THREE, count, tokens, ("draft:ofa:1", "draft:ofa:2", "draft:ofa:5"), (OURS, single), alone=())
    every = tuple(f"{name}:{length}" for name in runs.MODELS for length in (1, 2, 5))
    return (one, Generated(THREE, count, tokens, every, ("prompt-router",), alone=()))


def judge_selection(results: Sequence[Result]) -> Outcome:
    """Choosing the drafter by the prompt is at least as fast as one drafter."""
    one, every = Board(results[0]), Board(results[1])
    base = f"fixed:drafter=draft:ofa,length={FIXED}"
    rows, better = [], 0
    for task in THREE:
        without = one.speed(OURS, task) / one.speed(base, task) - 1
        with_it = every.speed("prompt-router", task) / one.speed(base, task) - 1
        better += with_it >= without
        rows.append((task, f"{without:+.1%}", f"{with_it:+.1%}"))
    checks = (
        Check(
            f"with a choice of the drafter it is at least as fast as without on most data: on {better} of {len(THREE)}",
            2 * better > len(THREE),
            "The first prompts are spent on trying all drafters, and of drafters of one size none is quicker "
            "than another.",
        ),
        Check(
            "with a choice of the drafter it is faster than a fixed window on all data",
            all(every.speed("prompt-router", t) >= one.speed(base, t) for t in THREE),
        ),
    )
    told = "; ".join(f"{row[0]} {row[1]} and {row[2]}" for row in rows)
    return Outcome(
        f"over a window of {FIXED}, without and with a choice of the drafter: {told}",
        Figures(("data", "one drafter", "drafter by the prompt"), tuple(rows)),
        checks,
    )


def stopping(quick: bool) -> tuple[Stopped, ...]:
    return tuple(Stopped(runs.everything(quick), drafter, 8, (OURS,)) for drafter in ("draft:ofa", "eagle:ofa"))


def judge_stopping(results: Sequence[Result]) -> Outcome:
    """The window chosen online is at least as fast as a rule that was fitted to texts beforehand."""
    rows, checks = [], []
    for drafter, result in zip(("draft:ofa", "eagle:ofa"), results, strict=True):
        board = Board(result)
        mean = [board.speed(name) for name in ("trained to stop", OURS)]
        rows.append((drafter, f"{mean[0]:.2f}x", f"{mean[1]:.2f}x", f"{result['threshold']:g}"))
        checks.append(
            Check(
                f"{drafter}: the window chosen online ({mean[1]:.2f} times plain decoding) is as fast as a rule fitted "
                f"beforehand ({mean[0]:.2f})",
                mean[1] >= mean[0],
                "A rule that asks the drafter how sure it is knows more about the next token than an average over past "
                "rounds does, and its preparation, a handful of texts here, is not counted.",
            )
        )
    told = "; ".join(f"{row[0]} {row[1]} fitted, {row[2]} online" for row in rows)
    return Outcome(
        f"times plain decoding: {told}",
        Figures(("drafter", "fitted", "online", "threshold"), tuple(rows)),
        tuple(checks),
    )


def sampled(quick: bool) -> tuple[Run, ...]:
    arms = tuple(f"eagle:ofa:{n}" for n in (1, 2, 3, FIXED))
    return (Generated(THREE, 2 if quick else 12, 36 if quick else 128, arms, (OURS,), temperature=1.0),)


def judge_sampled(content: Result) -> Outcome:
    """At temperature 1 the adaptive window beats the longest fixed one, and plain decoding, on every data set."""
    board = Board(content)
    arms = sorted(board.named("eagle:ofa:", "draft:ofa:"), key=lambda arm: int(arm.rpartition(":")[2]))
    if not board.has(OURS) or not arms:
        raise ValueError("the result has neither the analytical policy nor arms of one drafter")
    longest = arms[-1]
    tasks = [task for task in THREE if task in board.tasks] or board.tasks
    gains = {task: board.speed(OURS, task) / board.speed(longest, task) - 1 for task in tasks}
    checks = [
        Check(
            f"{task}: the adaptive window is no slower than {longest} ({gain:+.1%})",
            gain >= 0,
            "Every window is tried first, and sampled texts differ from method to method, so few of them say little.",
        )
        for task, gain in gains.items()
    ]
    checks += [
        Check(
            f"{task}: and no slower than plain decoding ({board.speed(OURS, task):.2f}x)", board.speed(OURS, task) >= 1
        )
        for task in tasks
    ]
    told = "; ".join(f"{task} {gain:+.1%}, {board.speed(OURS, task):.2f}x" for task, gain in gains.items())
    return Outcome(f"over {longest}, over plain decoding: {told}", board.figures(tasks), tuple(checks))


def trees(quick: bool) -> tuple[Run, ...]:
    arms = ("eagle:ofa:2@4x16", "eagle:ofa:4@4x16", "eagle:ofa:6@4x16")
    tasks = ("mt_bench", *THREE)
    return (Generated(tasks, 1 if quick else 6, 40 if quick else 128, arms, (OURS,)),)


def judge_trees(content: Result) -> Outcome:
    """A tree whose depth adapts is faster than the deepest, which is EAGLE-2's, and than plain decoding."""
    board = Board(content)
    arms = [arm for arm in board.arms if "@" in arm]
    if not board.has(OURS) or not arms:
        raise ValueError("the result has neither the analytical policy nor trees among its arms")
    deepest = max(arms, key=lambda arm: int(arm.partition("@")[0].rpartition(":")[2]))
    best = board.best(arms)
    gain, over = board.speed(OURS) / board.speed(deepest) - 1, board.speed(OURS)
    checks = (
        Check(
            f"a depth that adapts is no slower than {deepest} always ({gain:+.1%})",
            gain >= 0,
            "The deepest tree is hardly slower than the best one here, so there is little to win, and every "
            "depth is tried.",
        ),
        Check(
            f"and no slower than plain decoding ({over:.2f}x)",
            over >= 1,
            "On a CPU verifying 17 tokens takes twice the time of one; the trees bring hardly more than twice "
            "the tokens.",
        ),
        Check(
            f"its tokens a round are no fewer ({board.mat(OURS):.2f} against {board.mat(deepest):.2f})",
            board.mat(OURS) >= board.mat(deepest),
            ONCE_OFF
            if board.mat(OURS) < 1.1
            else "A shallower tree of the same size is wider, not longer: it is faster as it drafts in fewer steps.",
        ),
    )
    return Outcome(
        f"{gain:+.1%} over {deepest}, {over:.2f} times plain decoding; the best depth alone, {best}, "
        f"{board.speed(best):.2f}",
        board.figures(),
        checks,
    )


HISTORIES, LIMITS = (5, 6, 7), (5, 6, 7, 8)


def histories(quick: bool) -> tuple[Run, ...]:
    policies = tuple(f"{OURS}:history={h}" for h in HISTORIES)
    return tuple(
        Replayed(
            runs.everything(quick),
            ("eagle:ofa",),
            tuple(range(1, n + 1)),
            policies,
            apart=True,
            off=True,
            alone=False,
            labels=THREE,
        )
        for n in LIMITS
    )


def judge_histories(results: Sequence[Result]) -> Outcome:
    """Speeds by history and by longest window differ little, and no history is the best throughout."""
    boards = dict(zip(LIMITS, map(Board, results), strict=True))
    rows: list[tuple[str | float, ...]] = []
    checks, winners = [], set()
    for task in THREE:
        speeds = {(h, n): boards[n].speed(f"{OURS}:history={h}", task) for h in HISTORIES for n in LIMITS}
        spread = max(speeds.values()) / min(speeds.values()) - 1
        winners |= {max(HISTORIES, key=lambda h: speeds[h, n]) for n in LIMITS}
        rows += [(f"{task}, history {h}", *(speeds[h, n] for n in LIMITS)) for h in HISTORIES]
        checks.append(
            Check(
                f"{task}: the slowest and the fastest setting differ by no more than the paper's 6 % ({spread:.1%})",
                spread <= 0.06,
                f"{TRIED} The longer the longest window, the more there are to try.",
            )
        )
    checks.append(Check(f"no history is best everywhere: best are {sorted(winners)}", len(winners) > 1))
    spreads = [max(r[1:]) / min(r[1:]) - 1 for r in rows]  # type: ignore[operator]
    return Outcome(
        f"speeds over plain decoding differ by {statistics.median(spreads):.1%} in the median between windows "
        "of 5 to 8",
        Figures(("data", *(f"window {n}" for n in LIMITS)), tuple(rows)),
        tuple(checks),
    )


SIZES = (4, 8, 10, 12, 16)


def judge_sizes(results: Sequence[Result]) -> Outcome:
    """Throughput hardly depends on the length of the prompt's vector; the longest is best."""
    found = results[0]["sizes"]
    speeds = {size: found[str(size)]["prompt-router"] for size in SIZES}
    spread = max(speeds.values()) / min(speeds.values()) - 1
    checks = (
        Check(
            f"throughput differs by no more than 5 % between lengths ({spread:.1%})",
            spread <= 0.05,
            "The longer the vector, the more prompts of different kinds there are here, and the more of them go to "
            "trying all drafters.",
        ),
        Check(
            f"the longest vector is best ({speeds[16]:.1f} tokens/s, the best {max(speeds.values()):.1f})",
            speeds[16] >= 0.999 * max(speeds.values()),
            "A vector of r numbers takes r prompts to warm up on; here every vector tells the kinds of prompts "
            "apart, so a "
            "longer one only takes longer.",
        ),
    )
    rows = tuple((str(n), speeds[n], found[str(n)]["analytical"]) for n in SIZES)
    return Outcome(
        "tokens a second: " + ", ".join(f"{n} numbers {speeds[n]:.1f}" for n in SIZES),
        Figures(("numbers a prompt", "drafter by the prompt", "no choice by the prompt"), rows),
        checks,
    )


WAYS = {OURS: "analytical model", "fsm": "state machine", "cached-fsm": "state machine with cache", "qlearning": "RL"}


def ways(quick: bool) -> tuple[Run, ...]:
    arms = tuple(f"eagle:ofa:{n}" for n in (1, 2, 3, 4, 5))
    policies = (*WAYS, f"fixed:drafter=eagle:ofa,length={FIXED}")
    return (Generated(THREE, 2 if quick else 12, 40 if quick else 128, arms, policies, alone=()),)


def judge_ways(results: Sequence[Result]) -> Outcome:
    """The analytical model has the best throughput, Q-learning the best acceptance but not the best throughput."""
    board = Board(results[0])
    if not board.has(*WAYS):
        raise ValueError(f"the result lacks one of {', '.join(WAYS)} among its methods")
    speeds = {policy: board.speed(policy) for policy in WAYS}
    best = max(speeds, key=lambda p: speeds[p])
    checks = [
        Check(
            f"the analytical model is fastest ({speeds[OURS]:.2f}; best {WAYS[best]} {speeds[best]:.2f} times plain "
            "decoding)",
            speeds[OURS] >= speeds[best],
            "Trying every window first weighs more than what is learned, and lengths here differ little around "
            "the best.",
        ),
        Check(f"RL is not the fastest ({speeds['qlearning']:.2f})", speeds["qlearning"] < speeds[best]),
    ]
    accepted = _accepted(results[0])
    if accepted:
        sure = max(accepted, key=lambda p: accepted[p])
        checks.append(
            Check(
                f"RL has the highest share accepted ({accepted['qlearning']:.2f}; highest {WAYS[sure]} "
                f"{accepted[sure]:.2f})",
                sure == "qlearning",
                "The paper lets it practise on 25 prompts first; here it begins with nothing.",
            )
        )
    if {"humaneval", "alpaca"} <= set(board.tasks):
        gains = {p: board.speed(p, "humaneval") / board.speed(OURS, "humaneval") for p in ("fsm", "cached-fsm")}
        short = {p: board.speed(p, "alpaca") / board.speed(OURS, "alpaca") for p in gains}
        checks.append(
            Check(
                "both state machines come closer to the analytical model on HumanEval than on Alpaca "
                f"({', '.join(f'{p} {gains[p]:.2f} against {short[p]:.2f}' for p in gains)})",
                all(gains[p] >= short[p] for p in gains),
                "A few prompts a data set do not show it.",
            )
        )
    rows = tuple((WAYS[p], f"{speeds[p]:.2f}x", accepted.get(p), board.mat(p)) for p in WAYS)
    return Outcome(
        "times plain decoding: " + ", ".join(f"{WAYS[p]} {speeds[p]:.2f}" for p in WAYS),
        Figures(("way", "speed", "share accepted", "tokens a round"), rows),
        tuple(checks),
    )


def _accepted(content: Result) -> dict[str, float]:
    """Share of the drafted tokens that were accepted, where rounds were kept."""
    found = {}
    for policy in WAYS if "rounds" in content else ():
        rounds = [r for answer in content["rounds"][f"wager {policy}"] for r in answer["rounds"]]
        found[policy] = sum(r[2] for r in rounds) / max(1, sum(r[1] for r in rounds))
    return found


SMALL = "SmolLM2-135M with the small draft model and the EAGLE head shipped for it, in place of pairs from 7B to 70B; "

EXPERIMENTS = (
    Experiment(
        "onthefly-table1",
        "throughput of the adaptive window over the fixed one and over plain decoding, six pairs, four data "
        "sets, three GPUs",
        "The window that adapts beats a fixed one on every pair, data set and GPU, most where drafts are poor, "
        "and is never "
        "slower than plain decoding.",
        SMALL + "Alpaca for finance-alpaca; recorded texts replayed under the CPU's costs.",
        lambda quick: tuple(window(quick, drafter) for drafter in ("draft:ofa", "eagle:ofa")),
        lambda results: judge_windows(results, ("draft:ofa", "eagle:ofa"), tuple(SETS)),
    ),
    Experiment(
        "onthefly-table2",
        "throughput with and without a choice of the draft model by the prompt",
        "Choosing the draft model for each prompt adds to what the adaptive window brings, or at least costs nothing.",
        SMALL + "the drafters to choose from are of one size and differ in what they were trained on.",
        selection,
        judge_selection,
    ),
    Experiment(
        "onthefly-table3",
        "speed beside SpecDec++, which trains a network to stop drafts",
        "With no preparation at all the adaptive window is faster than a stopping rule that took hundreds of "
        "GPU hours.",
        SMALL
        + "SpecDec++'s network cannot be had; a threshold on the drafter's own probability, fitted on half of the "
        "texts and judged on the other, stands for it.",
        stopping,
        judge_stopping,
    ),
    Experiment(
        "onthefly-table7",
        "the adaptive window with another family of models (Qwen 7B with 0.5B)",
        "The gains over the fixed window and over plain decoding carry over to another pair of models.",
        SMALL + "the other pair is the target with its EAGLE head.",
        lambda quick: (window(quick, "eagle:ofa"),),
        lambda results: judge_windows(results, ("eagle:ofa",), ("finance-alpaca", "HumanEval", "GSM8K")),
    ),
    Experiment(
        "onthefly-table9",
        "the adaptive window at temperature 1",
        "It keeps its gains when texts are sampled.",
        SMALL + "the EAGLE head drafts, real rounds at temperature 1.",
        sampled,
        lambda results: judge_sampled(results[0]),
        (Longer(("temperature-1.0-h200.json",), lambda contents: judge_sampled(contents[0])),),
    ),
    Experiment(
        "onthefly-table10",
        "trees of EAGLE-2 whose depth adapts, MT-Bench and three more",
        "Letting the depth of the tree adapt is faster than the fixed tree by a few per cent, and draws more "
        "accepted tokens.",
        SMALL + "trees of 16 nodes, 2, 4 or 6 deep.",
        trees,
        lambda results: judge_trees(results[0]),
        (Longer(("depth-h200.json",), lambda contents: judge_trees(contents[0])),),
    ),
    Experiment(
        "onthefly-table12",
        "throughput by history of 5 to 7 rounds and longest window of 5 to 8 tokens",
        "Throughput hardly depends on either, and no history is best throughout.",
        SMALL + "the EAGLE head, recorded texts replayed under the CPU's costs.",
        histories,
        judge_histories,
    ),
    Experiment(
        "onthefly-table13",
        "throughput by the length of the prompt's vector, 4 to 16 numbers",
        "A few numbers a prompt suffice; 16 are slightly best.",
        "Simulated: a quick drafter and a slow one, prompts of as many kinds as the vector tells apart.",
        lambda quick: (Routing(SIZES, 200 if quick else 2000, 150, runs=3),),
        judge_sizes,
    ),
    Experiment(
        "onthefly-figure3",
        "throughput and share accepted of the four ways to adapt",
        "The analytical model is fastest overall; RL has more of its drafts accepted yet is slower; state "
        "machines do better "
        "where prompts are long.",
        SMALL + "the EAGLE head, windows of 1 to 5. Longer: trees of 1 to 6 levels on an H200.",
        ways,
        judge_ways,
        (Longer(("depth-h200.json",), judge_ways),),
    ),
)
