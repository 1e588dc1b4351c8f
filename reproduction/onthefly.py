"""On-the-fly adaptation: tables 1, 2, 3, 7, 9, 10, 12, 13 and figure 3."""

from __future__ import annotations

from reproduction import onthefly_claims as claims
from reproduction import runs
from reproduction.analyses import Stopped
from reproduction.engine import Generated
from reproduction.experiment import Experiment, Longer
from reproduction.onthefly_claims import FIXED, HISTORIES, LIMITS, OURS, SETS, SIZES, THREE, WAYS
from reproduction.recorded import Replayed
from reproduction.simulated import Routing
from reproduction.workspace import Run

LENGTHS = (1, 2, 3, 4, 5)


def window(quick: bool, drafter: str) -> Replayed:
    """One drafter, windows of 1 to 5 tokens, chosen anew in every round of every text; every window alone."""
    labels = tuple(SETS.values())
    return Replayed(runs.everything(quick), (drafter,), LENGTHS, (OURS,), apart=True, off=True, labels=labels)


def selection(quick: bool) -> tuple[Run, ...]:
    count, tokens = (3, 24) if quick else (12, 128)
    single = f"fixed:drafter=draft:ofa,length={FIXED}"
    one = Generated(THREE, count, tokens, ("draft:ofa:1", "draft:ofa:2", "draft:ofa:5"), (OURS, single), alone=())
    every = tuple(f"{name}:{length}" for name in runs.MODELS for length in (1, 2, 5))
    return (one, Generated(THREE, count, tokens, every, ("prompt-router",), alone=()))


def stopping(quick: bool) -> tuple[Stopped, ...]:
    return tuple(Stopped(runs.everything(quick), drafter, 8, (OURS,)) for drafter in ("draft:ofa", "eagle:ofa"))


def sampled(quick: bool) -> tuple[Run, ...]:
    arms = tuple(f"eagle:ofa:{n}" for n in (1, 2, 3, FIXED))
    return (Generated(THREE, 2 if quick else 12, 36 if quick else 128, arms, (OURS,), temperature=1.0),)


def trees(quick: bool) -> tuple[Run, ...]:
    arms = ("eagle:ofa:2@4x16", "eagle:ofa:4@4x16", "eagle:ofa:6@4x16")
    tasks = ("mt_bench", *THREE)
    return (Generated(tasks, 1 if quick else 6, 40 if quick else 128, arms, (OURS,)),)


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


def ways(quick: bool) -> tuple[Run, ...]:
    arms = tuple(f"eagle:ofa:{n}" for n in (1, 2, 3, 4, 5))
    policies = (*WAYS, f"fixed:drafter=eagle:ofa,length={FIXED}")
    return (Generated(THREE, 2 if quick else 12, 40 if quick else 128, arms, policies, alone=()),)


SMALL = "SmolLM2-135M with the small draft model and the EAGLE head shipped for it, in place of pairs from 7B to 70B; "
EXPERIMENTS = (
    Experiment(
        "onthefly-table1",
        "throughput of the adaptive window over the fixed one and over plain decoding, six pairs, four data "
        "sets, three GPUs",
        "The window that adapts beats a fixed one on every pair, data set and GPU, most where drafts are poor, and is "
        "never slower than plain decoding.",
        SMALL + "Alpaca for finance-alpaca; recorded texts replayed under the CPU's costs.",
        lambda quick: tuple(window(quick, drafter) for drafter in ("draft:ofa", "eagle:ofa")),
        lambda results: claims.check_windows(results, ("draft:ofa", "eagle:ofa"), tuple(SETS)),
    ),
    Experiment(
        "onthefly-table2",
        "throughput with and without a choice of the draft model by the prompt",
        "Choosing the draft model for each prompt adds to what the adaptive window brings, or at least costs nothing.",
        SMALL + "the drafters to choose from are of one size and differ in what they were trained on.",
        selection,
        claims.check_selection,
    ),
    Experiment(
        "onthefly-table3",
        "speed beside SpecDec++, which trains a network to stop drafts",
        "With no preparation at all the adaptive window is faster than a stopping rule that took hundreds of "
        "GPU hours.",
        SMALL
        + "SpecDec++'s network cannot be had; a threshold on the drafter's own probability, fitted on half of the "
        "texts and tested on the other, stands for it.",
        stopping,
        claims.check_stopping,
    ),
    Experiment(
        "onthefly-table7",
        "the adaptive window with another family of models (Qwen 7B with 0.5B)",
        "The gains over the fixed window and over plain decoding carry over to another pair of models.",
        SMALL + "the other pair is the target with its EAGLE head.",
        lambda quick: (window(quick, "eagle:ofa"),),
        lambda results: claims.check_windows(results, ("eagle:ofa",), ("finance-alpaca", "HumanEval", "GSM8K")),
    ),
    Experiment(
        "onthefly-table9",
        "the adaptive window at temperature 1",
        "It keeps its gains when texts are sampled.",
        SMALL + "the EAGLE head drafts, real rounds at temperature 1.",
        sampled,
        lambda results: claims.check_sampled(results[0]),
        (Longer(("temperature-1.0-h200.json",), lambda contents: claims.check_sampled(contents[0])),),
    ),
    Experiment(
        "onthefly-table10",
        "trees of EAGLE-2 whose depth adapts, MT-Bench and three more",
        "Letting the depth of the tree adapt is faster than the fixed tree by a few per cent, and draws more "
        "accepted tokens.",
        SMALL + "trees of 16 nodes, 2, 4 or 6 deep.",
        trees,
        lambda results: claims.check_trees(results[0]),
        (Longer(("depth-h200.json",), lambda contents: claims.check_trees(contents[0])),),
    ),
    Experiment(
        "onthefly-table12",
        "throughput by history of 5 to 7 rounds and longest window of 5 to 8 tokens",
        "Throughput hardly depends on either, and no history is best throughout.",
        SMALL + "the EAGLE head, recorded texts replayed under the CPU's costs.",
        histories,
        claims.check_histories,
    ),
    Experiment(
        "onthefly-table13",
        "throughput by the length of the prompt's vector, 4 to 16 numbers",
        "A few numbers a prompt suffice; 16 are slightly best.",
        "Simulated: a quick drafter and a slow one, prompts of as many kinds as the vector tells apart.",
        lambda quick: (Routing(SIZES, 200 if quick else 2000, 150, runs=3),),
        claims.check_sizes,
    ),
    Experiment(
        "onthefly-figure3",
        "throughput and share accepted of the four ways to adapt",
        "The analytical model is fastest overall; RL has more of its drafts accepted yet is slower; state machines do "
        "better where prompts are long.",
        SMALL + "the EAGLE head, windows of 1 to 5. Longer: trees of 1 to 6 levels on an H200.",
        ways,
        claims.check_ways,
        (Longer(("depth-h200.json",), claims.check_ways),),
    ),
)
