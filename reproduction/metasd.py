"""MetaSD: tables 2 to 17 and 19, figures 2, 3 and 6."""

from reproduction import metasd_claims as claims
from reproduction import metasd_rewards as rewards
from reproduction import runs
from reproduction.analyses import Batched, BestShare, DraftAll, Rewards, Routed
from reproduction.engine import Generated
from reproduction.experiment import Experiment, Longer, experiment
from reproduction.recorded import Replayed
from reproduction.runs import BE, EXP3, FIVE, HALVING, MODELS, RANDOM, UCB
from reproduction.workspace import Run

LENGTH = 5  # MetaSD's N_max
BLACK, WHITE = "metasd-black-h200.json", "metasd-white-h200.json"


def models(quick: bool, *policies: str, drafters: tuple[str, ...] = MODELS, apart: bool = False) -> Replayed:
    """The small models and prompt lookup, each alone, and policies over the models."""
    return Replayed(runs.everything(quick), drafters, (LENGTH,), policies, cost="h200", apart=apart)


def sampled(quick: bool, names: tuple[str, ...], temperature: float) -> Generated:
    """Drafters alone and MetaSD over them on the five tasks, sampled."""
    return Generated(FIVE, 1 if quick else 6, 32 if quick else 128, runs.arms(names), (UCB,), temperature=temperature)


SOME = ("eagle:ofa", "eagle:code", "eagle:math", "eagle:translation")


def mixed(quick: bool) -> tuple[Run, ...]:
    tasks = ("math_then_code", "translation_then_math")
    arms = runs.arms(SOME)
    return (Generated(tasks, 2 if quick else 8, 72 if quick else 192, arms, (UCB, "discounted-ucb")),)


def long_and_short(quick: bool) -> tuple[Run, ...]:
    count, words, prompt = (2, 120, 512) if quick else (8, 240, 1024)
    arms, tokens = runs.arms(SOME), (80, 40) if quick else (256, 128)
    long = Generated(("translation",), count, tokens[0], arms, (UCB,), prompt=prompt, words=words)
    return (long, Generated(("translation",), count, tokens[1], arms, (UCB,), prompt=prompt))


def lengths(quick: bool) -> tuple[Run, ...]:
    return tuple(
        Replayed(runs.everything(quick), MODELS, (n,), (UCB,), labels=("humaneval", "debug_bench"))
        for n in (1, 2, 3, 5, 8)
    )


def heads(quick: bool) -> tuple[Run, ...]:
    return (runs.heads(quick),)


def windowed(quick: bool) -> tuple[Run, ...]:
    count, tokens = (1, 40) if quick else (6, 192)
    arms = runs.arms(("eagle:ofa", "eagle:code", "eagle:math"))
    return (Generated(FIVE, count, tokens, arms, (UCB,), window=64, alone=()),)


def shares(quick: bool) -> tuple[Run, ...]:
    labels = ("humaneval", "debug_bench", "math_reasoning")
    own = BestShare(runs.everything(quick), MODELS, LENGTH, (UCB, BE, EXP3, HALVING), labels, seeds=5)
    return (own, runs.heads(quick))


def at_temperature(name: str, drafters: tuple[str, ...], kind: str, temperature: float) -> Experiment:
    runs_of, longer = (lambda quick: (sampled(quick, drafters, temperature),)), f"temperature-{temperature}-h200.json"
    return experiment(name, runs_of, lambda results: claims.sampled(results[0], kind), longer)


EXPERIMENTS = (
    experiment(
        "metasd-table2",
        lambda quick: tuple(
            Rewards(runs.everything(quick), MODELS, LENGTH, labels)
            for labels in (("humaneval", "debug_bench"), ("math_reasoning",))
        ),
        rewards.rewards,
    ),
    experiment(
        "metasd-table3",
        lambda quick: (models(quick, UCB, EXP3, HALVING, RANDOM), models(quick, drafters=("prompt-lookup",))),
        lambda results: claims.selection(results[0], "draft", *results[1:]),
        BLACK,
    ),
    experiment("metasd-table4", heads, lambda results: claims.selection(results[0], "eagle"), WHITE),
    experiment(
        "metasd-table5",
        lambda quick: (models(quick, UCB, EXP3), DraftAll(runs.everything(quick), MODELS, LENGTH, "h200")),
        claims.draft_all,
        BLACK,
    ),
    experiment(
        "metasd-table6",
        lambda quick: (
            Routed(runs.everything(quick), MODELS, "draft:ofa", LENGTH, (UCB,), "h200"),
            Routed(runs.reworded(quick), MODELS, "draft:ofa", LENGTH, (UCB,), "h200"),
            runs.heads_routed(quick),
            runs.heads_reworded(quick),
        ),
        claims.routing,
    ),
    experiment(
        "metasd-table7",
        lambda quick: (models(quick, UCB, BE), runs.heads(quick)),
        rewards.two_rewards,
        Longer((BLACK, WHITE)),
    ),
    experiment(
        "metasd-table8",
        lambda quick: (runs.heads_reworded(quick), runs.heads(quick)),
        lambda results: claims.reworded(results, "eagle"),
    ),
    experiment(
        "metasd-table9",
        heads,
        lambda results: claims.matrix(results[0]),
        Longer(("drafters.json",), lambda contents: claims.matrix_of_tokens(contents[0])),
    ),
    experiment("metasd-table10", long_and_short, claims.long_texts),
    experiment(
        "metasd-table11", lambda quick: (models(quick, UCB), runs.heads(quick)), claims.abroad, Longer((BLACK, WHITE))
    ),
    experiment(
        "metasd-table12",
        lambda quick: (Replayed(runs.reworded(quick), MODELS, (LENGTH,), (UCB,), cost="h200"), models(quick, UCB)),
        lambda results: claims.reworded(results, "draft"),
    ),
    experiment("metasd-table13", windowed, rewards.windows),
    at_temperature("metasd-table14", MODELS, "draft", 0.7),
    at_temperature("metasd-table15", MODELS, "draft", 1.0),
    at_temperature("metasd-table16", SOME, "eagle", 1.0),
    experiment(
        "metasd-table17",
        lambda quick: (
            models(quick, UCB),
            Batched(runs.everything(quick), MODELS, "draft:ofa", LENGTH, (1, 2, 4), UCB, FIVE),
        ),
        rewards.batches,
    ),
    experiment("metasd-table19", mixed, lambda results: claims.mixed(results[0]), "mixed-h200.json"),
    experiment("metasd-figure2", lengths, rewards.by_length),
    experiment("metasd-figure3", shares, rewards.best_share),
    experiment(
        "metasd-figure6", lambda quick: (Rewards(runs.everything(quick), MODELS, LENGTH, ()),), rewards.stationary
    ),
)
