"""BanditSpec: tables 1 to 4 and figure 3."""

from collections.abc import Mapping, Sequence

import numpy as np

from reproduction import runs
from reproduction.experiment import Figures, Outcome, Part, decided_within, experiment, not_recorded
from reproduction.inference import Sample, interval
from reproduction.measured import Memory
from reproduction.recorded import Replayed
from reproduction.recordings import TARGET, Wanted
from reproduction.simulated import Served
from reproduction.units import Table, best_of, share
from reproduction.workspace import Result

BENCHMARKS = {  # the paper's four: tasks here that stand for them
    "Spec-Bench": runs.SPEC,
    "Alpaca": ("alpaca",),
    "Code Editor": ("humaneval",),
    "Debug Bench": ("debug_bench",),
}
BANDITS = ("ucbspec", "exp3spec")
DRAFTERS = ("prompt-lookup", "retrieval", "suffix", "eagle:ofa")
LENGTH = 4
HEAD = f"eagle:ofa:{LENGTH}"
COSTLY = (
    "Accepted tokens are the reward. Where a round of the head takes longer than one of a drafter without weights, the "
    "arm with most tokens is not the fastest; and every round of exploring another drafter costs."
)


def replay(cost: str, labels: tuple[str, ...] = (), target: str = TARGET) -> Replayed:
    """The paper's four drafters and both bandits over them, begun anew for every prompt."""
    return Replayed(Wanted(DRAFTERS, target=target), (LENGTH,), BANDITS, cost=cost, labels=labels)


def _groups(table: Table) -> dict[str, tuple[str, ...]]:
    """The benchmarks of which every task was run."""
    return {name: tasks for name, tasks in BENCHMARKS.items() if set(tasks) <= set(table.tasks)}


def _headline(table: Table) -> str:
    arms = [name for name in table.methods if name not in ("off", *BANDITS)]
    best = max(arms, key=table.speed)
    speeds = ", ".join(f"{name} {table.speed(name):.2f}" for name in (*BANDITS, best))
    tokens = ", ".join(f"{name} {table.mat(name):.2f}" for name in ("ucbspec", best))
    return f"times plain decoding: {speeds}; tokens a round: {tokens}"


def check_bandits(results: Sequence[Result]) -> Outcome:
    """Table 1: a bandit is faster than every drafter alone on every benchmark, and UCBSpec than EXP3Spec."""
    table = Table.of(results[0])
    groups, arms = _groups(table), [name for name in table.methods if name not in ("off", *BANDITS)]
    parts: list[Part] = []
    for where, tasks in groups.items():
        each = [table.beats_all(bandit, arms, tasks, where=where, whom="every drafter alone") for bandit in BANDITS]
        parts.append(best_of(each, "{}, or the other bandit is"))
        parts.append(table.beats(*BANDITS, tasks, where=where))
    parts += _absent(groups)
    return Outcome(_headline(table), table.figures(groups), parts, because=COSTLY)


def _absent(groups: Mapping[str, Sequence[str]]) -> list[Part]:
    """A benchmark of which a task is not recorded is part of the claim, and undecided."""
    return [part for name in BENCHMARKS if name not in groups for part in not_recorded(name, len(BANDITS))]


def check_head(results: Sequence[Result]) -> Outcome:
    """Table 3: both bandits are faster than EAGLE-2 alone on every benchmark."""
    table = Table.of(results[0])
    groups = _groups(table)
    parts = [table.beats(b, HEAD, tasks, where=where) for where, tasks in groups.items() for b in BANDITS]
    parts += _absent(groups)
    return Outcome(_headline(table), table.figures(groups), parts, because=COSTLY)


def check_hardware(results: Sequence[Result]) -> Outcome:
    """Table 4: the same on Spec-Bench under the costs of two machines."""
    parts: list[Part] = []
    rows, told = [], []
    for where, result in zip(("H200", "CPU"), results, strict=True):
        table = Table.of(result)
        if "Spec-Bench" in _groups(table):
            parts += [table.beats(bandit, HEAD, runs.SPEC, where=where) for bandit in BANDITS]
        else:
            parts += not_recorded(f"{where}, Spec-Bench", len(BANDITS))
        rows += [(f"{where}: {name}", f"{table.speed(name):.2f}x", table.mat(name)) for name in table.methods]
        told.append(f"{where}: {_headline(table)}")
    return Outcome("; ".join(told), Figures(("method", "speed", "tokens a round"), rows), parts, because=COSTLY)


def memory() -> tuple[Memory, ...]:
    tasks = (*runs.SPEC, "humaneval", "alpaca")
    return (Memory(tasks, 3, 48, HEAD, ("suffix:4", "prompt-lookup:4"), BANDITS),)


def check_memory(results: Sequence[Result]) -> Outcome:
    """Table 2: neither bandit holds or reads more than the head alone, give or take the paper's 5 %."""
    found, parts, rows = results[0]["units"], [], []
    sample = Sample(prompts=len(results[0]["labels"]), seeds=int(results[0]["seeds"]))
    for name, own in found.items():
        ratios = {c: np.log(np.array(own[c]) / np.array(found[HEAD][c])) for c in ("bytes", "read")}
        rows.append((name, *(float(np.exp(x.mean())) for x in ratios.values())))
        if name != HEAD:
            says = f"{name} holds as much memory as the head alone, within 5 %"
            parts.append(decided_within(says, interval(ratios["bytes"]), sample, 0.05))
            says = f"{name} reads as many weights a token as the head alone, within 5 %"
            parts.append(decided_within(says, interval(ratios["read"]), sample, 0.05))
    headline = "memory and weights read a token, the head alone being 1: " + ", ".join(
        f"{name} {held:.3f} and {read:.2f}" for name, held, read in rows[1:]
    )
    return Outcome(headline, Figures(("method", "memory", "weights read a token"), rows), parts)


LATE = "Its radius explores lengths that lose much on a busy machine, and a sample ends before that is paid back."
UCB = "ucbspec:reward=goodput"
SAMPLES = 64  # a share of them is known within an eighth; the paper has 500
STEPS = 1500  # about, of a sample


def settings() -> list[tuple[int, float]]:
    """Batch size and acceptance of every sample, drawn as the paper draws prompts: any batch from 1 to 50."""
    rng = np.random.default_rng(0)
    return [(int(rng.integers(1, 51)), round(float(rng.uniform(0.5, 0.8)), 2)) for _ in range(SAMPLES)]


def batches() -> tuple[Served, ...]:
    """Batches of 1 to 50 requests that are easy or hard to guess."""
    return tuple(
        Served((load,), 2 * STEPS * load, (UCB,), lengths=(1, 2, 3, 4), acceptance=(p,), seed=100 * i)
        for i, (load, p) in enumerate(settings())
    )


def check_batches(results: Sequence[Result]) -> Outcome:
    """Figure 3: the best length changes, the longest loses to none somewhere, and UCBSpec is near the best."""
    rows: list[list[float]] = []  # times no speculation: lengths 1 to 4, UCBSpec
    near, above, worse, best_lengths = [], [], [], set()
    for result in results:
        table = Table.of(result)
        own = {name: float(np.mean(1 / cell["seconds"])) for name, cell in table.methods.items()}
        lengths = sorted((f"draft:{n}" for n in (1, 2, 3, 4)), key=lambda name: -own[name])
        near.append(own[UCB] / max(own["off"], own[lengths[0]]))
        above.append(float(own[UCB] >= own[lengths[1]]))
        worse.append(table.beats("off", "draft:4").verdict == "holds")
        best_lengths.add(max((name for name in own if name != UCB), key=lambda name: own[name]))
        rows.append([*(own[f"draft:{n}"] / own["off"] for n in (1, 2, 3, 4)), own[UCB] / own["off"]])
    sample = Sample(prompts=len(results), seeds=int(results[0]["seeds"]))
    several, lost = [float(len(best_lengths))] * len(results), [float(sum(worse))] * len(results)
    parts = [
        share(f"more than one length is best somewhere: {', '.join(sorted(best_lengths))}", several, sample, 1),
        share(f"4 tokens always are slower than none in some samples: in {sum(worse)}", lost, sample, 0.5),
        share("UCBSpec is faster than the second-best length in most samples (share)", above, sample),
        share("UCBSpec reaches 95 % of the best length on the mean of the samples (share reached)", near, sample, 0.95),
    ]  # fmt: skip
    mean = float(np.mean([row[4] for row in rows]))
    headline = (
        f"UCBSpec {mean:.2f} times no speculation on the mean of {len(rows)} samples, {np.mean(near):.2f} of the best "
        f"length, above the second best in {sum(above):.0f}; 4 tokens always lose to none in {sum(worse)}"
    )
    figures = Figures(("samples, by the gain of the best length", "1", "2", "3", "4", "UCBSpec"), _groups_of(rows, 12))
    return Outcome(headline, figures, parts, because=LATE)


def _groups_of(rows: Sequence[Sequence[float]], size: int) -> list[tuple[str | float, ...]]:
    """Samples in the order of the paper's figure, the means of so many at a time."""
    ordered = np.array(sorted(rows, key=lambda row: max(row[:4])))
    groups = {f"{i + 1} to {i + len(own)}": own for i in range(0, len(rows), size) if len(own := ordered[i : i + size])}
    return [(name, *own.mean(axis=0).tolist()) for name, own in groups.items()]


EXPERIMENTS = (
    experiment("banditspec-table1", lambda: (replay("h200"),), check_bandits, "banditspec-h200.json"),
    experiment("banditspec-table2", memory, check_memory),
    experiment("banditspec-table3", lambda: (replay("1b", target="other"),), check_head),
    experiment("banditspec-table4", lambda: (replay("h200", runs.SPEC), replay("cpu", runs.SPEC)), check_hardware),
    experiment("banditspec-figure3", batches, check_batches),
)
