"""MetaSD: tables 2 to 17 and 19, figures 2 to 7."""

from reproduction import metasd_claims as claims
from reproduction import metasd_rewards as rewards
from reproduction import runs
from reproduction.analyses import Batched, DraftAll, Rewards
from reproduction.asked import Domains
from reproduction.engine import Generated
from reproduction.experiment import Experiment, experiment
from reproduction.recorded import Replayed
from reproduction.recordings import Wanted
from reproduction.runs import FIVE, FOREIGN, HEADS, LENGTH, MODELS, UCB, lookup, pool
from reproduction.workspace import Run

BLACK, WHITE = "metasd-black-h200.json", "metasd-white-h200.json"
KINDS = ("draft", "eagle")
CHANGING = f"{UCB}:beta=0.1"  # as the paper has it where the best drafter changes within a text
SPECIALISED = {"draft:code": ("humaneval",), "draft:math": ("math_reasoning",)}
BATCHES = (1, 2, 4)
ABROAD = ("mt_bench", *FOREIGN)


def both() -> tuple[Run, ...]:
    return tuple(pool(kind) for kind in KINDS)


def measured(temperature: float = 0.0) -> tuple[Run, ...]:
    """Rewards of the small specialists, at home and away from it."""
    wanted = Wanted(MODELS, overlap=True, temperature=temperature)
    return tuple(Rewards(wanted, LENGTH, tasks) for tasks in SPECIALISED.values())


def everywhere(temperature: float) -> tuple[Run, ...]:
    return (Rewards(Wanted(MODELS, overlap=True, temperature=temperature), LENGTH, ()),)


def lengths() -> tuple[Run, ...]:
    wanted = Wanted(MODELS, overlap=True)
    labels = ("humaneval", "debug_bench")
    return tuple(Replayed(wanted, (n,), (UCB,), labels=labels) for n in rewards.SIZES)


def routed() -> tuple[Run, ...]:
    """UCB on prompts as they are and rephrased, for each kind of drafter, and what a router takes the prompts for."""
    return (*(pool(kind, prompts=prompts) for kind in KINDS for prompts in ("tasks", "rephrased")), Domains())


def windowed() -> tuple[Run, ...]:
    arms = tuple(f"{name}:{LENGTH}" for name in HEADS)
    return (Generated(FIVE, 24, 192, arms, (UCB,), prompt=640, window=64, alone=()),)


def mixed() -> tuple[Run, ...]:
    """Two recorded texts one after the other as one: the best drafter changes half-way."""
    pairs = (("math_reasoning", "humaneval"), ("translation", "math_reasoning"))
    wanted = Wanted(HEADS, overlap=True)
    labels = tuple(dict.fromkeys(t for pair in pairs for t in pair))
    return Replayed(wanted, (LENGTH,), (CHANGING,), labels=labels, pairs=pairs), pool("eagle")


def batched(kind: str) -> tuple[Run, ...]:
    own, single = runs.SPECIALISTS[kind], runs.FOR_ALL[kind]
    wanted = Wanted((*own, single), overlap=True)
    every = tuple(Batched(wanted, own, single, LENGTH, n, UCB, FIVE) for n in BATCHES)
    return (pool(kind), *every)


def at_temperature(name: str, kind: str, temperature: float, *older: str) -> Experiment:
    return experiment(
        name, lambda: (pool(kind, temperature=temperature),), lambda found: claims.sampled(found, kind), *older
    )


HOMES = tuple(SPECIALISED)
EXPERIMENTS = (
    experiment("metasd-table2", lambda: (*measured(), pool("draft")), lambda found: rewards.rewards(found, HOMES)),
    experiment("metasd-table3", lambda: (pool("draft"),), lambda found: claims.selection(found, "draft"), BLACK),
    experiment("metasd-table4", lambda: (pool("eagle"),), lambda found: claims.selection(found, "eagle"), WHITE),
    experiment(
        "metasd-table5",
        lambda: (pool("draft"), DraftAll(Wanted(MODELS), LENGTH, "h200", ())),
        lambda found: claims.draft_all(found, "draft"),
        BLACK,
    ),
    experiment("metasd-table6", routed, lambda found: claims.routing(found, KINDS)),
    experiment("metasd-table7", both, lambda found: claims.two_rewards(found, KINDS), BLACK, WHITE),
    experiment(
        "metasd-table8", lambda: (pool("eagle", prompts="rephrased"),), lambda found: claims.reworded(found, "eagle")
    ),
    experiment("metasd-table9", both, lambda found: claims.matrix(found, KINDS), "drafters.json"),
    experiment(
        "metasd-table10", lambda: (pool("eagle", prompts="long"),), lambda found: claims.long_texts(found, "eagle")
    ),
    experiment("metasd-table11", both, lambda found: claims.abroad(found, KINDS), BLACK, WHITE),
    experiment(
        "metasd-table12", lambda: (pool("draft", prompts="rephrased"),), lambda found: claims.reworded(found, "draft")
    ),
    experiment("metasd-table13", windowed, rewards.windows),
    at_temperature("metasd-table14", "draft", 0.7),
    at_temperature("metasd-table15", "draft", 1.0),
    at_temperature("metasd-table16", "eagle", 1.0, "temperature-1.0-h200.json"),
    experiment(
        "metasd-table17", lambda: batched("eagle"), lambda found: rewards.batches(found, "eagle", BATCHES, ABROAD)
    ),
    experiment("metasd-table19", mixed, lambda found: claims.mixed(found, CHANGING), "mixed-h200.json"),
    experiment("metasd-figure2", lengths, rewards.by_length),
    experiment("metasd-figure3", both, lambda found: rewards.best_share(found, KINDS)),
    experiment(
        "metasd-figure4",
        lambda: (pool("draft"), lookup(), pool("eagle"), lookup()),
        lambda found: claims.average(found, KINDS),
    ),
    experiment("metasd-figure5", measured, lambda found: rewards.spreads(found, HOMES)),
    experiment("metasd-figure6", lambda: everywhere(0.0), rewards.stationary),
    experiment("metasd-figure7", lambda: everywhere(1.0), rewards.stationary),
)
