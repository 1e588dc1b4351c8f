"""BanditSpec: tables 1 to 4 and figure 3."""

from collections.abc import Mapping, Sequence

from reproduction import runs
from reproduction.comparison import Comparison
from reproduction.experiment import Check, Checks, Figures, Outcome, experiment, joined
from reproduction.measured import Memory
from reproduction.recorded import STORE, Replayed
from reproduction.simulated import Served
from reproduction.workspace import Result

BENCHMARKS = {  # the paper's four: tasks here that stand for them
    "Spec-Bench": runs.SPEC,
    "Alpaca": ("alpaca",),
    "Code Editor": ("humaneval",),
    "Debug Bench": ("debug_bench",),
}
BANDITS = ("ucbspec", "exp3spec")
DRAFTERS = ("prompt-lookup", STORE, "suffix", "eagle:ofa")
LENGTH = 4
COSTLY = (
    "Accepted tokens are the reward, and here a round of the head takes longer than one of a drafter without weights, "
    "so the arm with most tokens is not the fastest one."
)
SHORT = "One drafter is best nearly throughout here, so every round of exploring another costs."


def replay(quick: bool, cost: str) -> Replayed:
    """The paper's four drafters and both bandits over them, and auto beside."""
    return Replayed(runs.everything(quick), DRAFTERS, (LENGTH,), (*BANDITS, "auto"), cost=cost)


def check_bandits(content: Result, benchmarks: Mapping[str, tuple[str, ...]] = BENCHMARKS) -> Outcome:
    """A bandit is fastest on every benchmark; UCBSpec is the better of both."""
    table = Comparison(content)
    present = {name: [t for t in tasks if t in table.tasks] for name, tasks in benchmarks.items()}
    present = {name: tasks for name, tasks in present.items() if tasks}
    checks = Checks()
    for name, tasks in present.items():
        alone, ours = table.best(table.arms, tasks), table.best(BANDITS, tasks)
        checks.add(
            f"on {name} the faster bandit ({ours}, {table.times(ours, tasks)} times plain decoding) beats every "
            f"drafter alone ({alone}, {table.times(alone, tasks)})",
            table.speed(ours, tasks) >= table.speed(alone, tasks),
            SHORT if alone == table.best(table.arms, tasks, by="mat") else COSTLY,
        )
    better = sum(table.speed("ucbspec", tasks) >= table.speed("exp3spec", tasks) for tasks in present.values())
    says = f"UCBSpec is faster than EXP3Spec on most benchmarks: on {better} of {len(present)}"
    checks.add(says, 2 * better > len(present), SHORT)
    rows = [
        (method, *(f"{table.times(method, tasks)}x, {table.mat(method, tasks):.2f}" for tasks in present.values()))
        for method in table.cells
    ]
    whole = [task for tasks in present.values() for task in tasks]
    best = table.best(table.arms, whole)
    told = ", ".join(f"{m} {table.times(m, whole)}" for m in (*BANDITS, best, "auto") if m in table.cells)
    return Outcome(
        f"times plain decoding: {told}; tokens a round: ucbspec {table.mat('ucbspec', whole):.2f}, {best} "
        f"{table.mat(best, whole):.2f}",
        Figures(("speed, tokens a round", *present), rows),
        checks,
    )


def check_hardware(results: Sequence[Result]) -> Outcome:
    """On both machines a bandit beats every drafter alone on Spec-Bench, and the head alone is behind them."""
    parts = []
    for where, result in zip(("H200", "CPU"), results, strict=True):
        part = check_bandits(result, {"Spec-Bench": runs.SPEC})
        rows = [(f"{where}: {row[0]}", *row[1:]) for row in part.figures.rows]
        checks = [Check(f"{where}: {check.says}", check.holds, check.because) for check in part.checks]
        parts.append(Outcome(f"{where}: {part.headline}", Figures(part.figures.columns, rows), checks))
    return joined(parts)


def memory(quick: bool) -> tuple[Memory, ...]:
    tasks = ("qa", "humaneval") if quick else (*runs.SPEC, "humaneval", "alpaca")
    return (Memory(tasks, 1 if quick else 4, 32, "eagle:ofa:4", ("suffix:4", "prompt-lookup:4"), BANDITS),)


def check_memory(results: Sequence[Result]) -> Outcome:
    """Neither bandit holds or reads noticeably more than the head alone."""
    found = results[0]["methods"]
    base = found["eagle:ofa:4"]
    rows = [(name, own["bytes"] / base["bytes"], own["read"] / base["read"]) for name, own in found.items()]
    checks = Checks()
    for name, held, read in rows:
        if name != "eagle:ofa:4":
            checks.add(f"{name} holds {held:.3f} of the memory of the head alone (at most 1.05)", held <= 1.05)
            checks.add(
                f"{name} reads {read:.2f} of the weights that the head alone reads for a token (at most 1.05)",
                read <= 1.05,
                "Rounds of drafters without weights bring fewer tokens, so the target is read more often.",
            )
    told = ", ".join(f"{name} {held:.3f} and {read:.2f}" for name, held, read in rows[1:])
    headline = f"memory and weights read a token, the head alone being 1: {told}"
    return Outcome(headline, Figures(("method", "memory", "weights read a token"), rows), checks)


LATE = "Its radius explores lengths that lose much on a busy machine, and a sample ends before that is paid back."
LOADS = (1, 2, 4, 8, 16, 24, 32, 50)
ACCEPTANCES = (0.5, 0.65, 0.8)
UCB = "ucbspec:reward=goodput"


def batches(quick: bool) -> tuple[Served, ...]:
    """Batches from 1 to 50 of requests that are easy or hard to guess."""
    steps = 4000 if quick else 30000
    return tuple(
        Served((load,), 2 * steps * load, (UCB,), lengths=(1, 2, 3, 4), acceptance=(p,), seed=load)
        for load in LOADS
        for p in ACCEPTANCES
    )


def check_batches(results: Sequence[Result]) -> Outcome:
    """The best length changes, the longest loses to none somewhere, and UCBSpec is near the best everywhere."""
    settings = [(load, p) for load in LOADS for p in ACCEPTANCES]
    rows: list[tuple[str, float, float, float, float, float, str]] = []
    close = above = worse = 0
    for (load, p), result in zip(settings, results, strict=True):
        own = {name: cell["goodput"] for name, cell in result["methods"].items()}
        ranked = sorted((name for name in own if name != UCB), key=lambda name: -own[name])
        worse += own["draft:4"] < own["off"]
        close += own[UCB] >= 0.95 * own[ranked[0]]
        above += own[UCB] >= own[ranked[1]]
        one, two, three, four, ucb = (own[name] / own["off"] for name in (*(f"draft:{n}" for n in (1, 2, 3, 4)), UCB))
        rows.append((f"{load} x {p}", one, two, three, four, ucb, ranked[0]))
    best_lengths = {row[-1] for row in rows}
    n = len(settings)
    says = f"UCBSpec beats the second-best length in most samples: in {above} of {n}"
    checks = (
        Check(f"the best length differs between samples: {', '.join(sorted(best_lengths))}", len(best_lengths) > 1),
        Check(f"4 tokens always is slower than no speculation in some samples: {worse} of {n}", worse > 0),
        Check(says, 2 * above > n, LATE),
        Check(f"UCBSpec comes within 5 % of the best length in most samples: in {close} of {n}", 2 * close > n),
    )
    mean = sum(row[5] for row in rows) / n
    return Outcome(
        f"UCBSpec {mean:.2f} times no speculation on average over {n} samples, within 5 % of the best length in "
        f"{close}, above the second best in {above}; 4 tokens always lose to none in {worse}",
        Figures(("batch x acceptance", "1", "2", "3", "4", "UCBSpec", "best"), rows),
        checks,
    )


EXPERIMENTS = (
    experiment(
        "banditspec-table1",
        lambda quick: (replay(quick, "cpu"),),
        lambda results: check_bandits(results[0]),
        "banditspec-h200.json",
        "spec-h200.json",
    ),
    experiment("banditspec-table2", memory, check_memory),
    experiment("banditspec-table3", lambda quick: (replay(quick, "larger"),), lambda found: check_bandits(found[0])),
    experiment("banditspec-table4", lambda quick: (replay(quick, "h200"), replay(quick, "cpu")), check_hardware),
    experiment("banditspec-figure3", batches, check_batches),
)
