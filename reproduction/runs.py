"""The runs that experiments share, in their quick and their full form."""

from reproduction.engine import Generated
from reproduction.recorded import STORE, Recorded
from reproduction.simulated import SD, Served
from wager.simulation import Costs

FIVE = ("humaneval", "translation", "summarization", "qa", "math_reasoning")  # MetaSD's five tasks
SPEC = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")  # Spec-Bench's six
HEADS = ("eagle:ofa", "eagle:code", "eagle:translation", "eagle:summarization", "eagle:chat", "eagle:math")
MODELS = ("draft:ofa", "draft:code", "draft:math")
UCB, BE, EXP3, HALVING, RANDOM = "meta-ucb", "meta-ucb:reward=be", "meta-exp3", "halving:budget=64", "random"


def everything(quick: bool) -> Recorded:
    """Ten tasks with every kind of drafter: what most experiments replay."""
    tasks = (*SPEC, "humaneval", "debug_bench", "alpaca", "xsum")
    drafters = ("suffix", "prompt-lookup", STORE, *MODELS, "eagle:ofa")
    count, tokens, prompt = (2, 40, 192) if quick else (8, 128, 1024)
    return Recorded(tasks, count, tokens, drafters, prompt=prompt, route=True)


def reworded(quick: bool) -> Recorded:
    """MetaSD's five tasks, every prompt in other words, with the small draft models."""
    count, tokens, prompt = (2, 40, 192) if quick else (8, 128, 1024)
    return Recorded(FIVE, count, tokens, MODELS, longest=5, prompt=prompt, rephrase=True, route=True)


def arms(names: tuple[str, ...], length: int = 4) -> tuple[str, ...]:
    """Each drafter with one length."""
    return tuple(f"{name}:{length}" for name in names)


def heads(quick: bool) -> Generated:
    """Every EAGLE head alone and MetaSD's ways to choose among them, at home and on tasks that are nobody's."""
    tasks = (*FIVE, "rag") if quick else (*FIVE, "rag", "alpaca")
    count, tokens, prompt = (1, 24, 96) if quick else (6, 128, 1024)
    return Generated(tasks, count, tokens, arms(HEADS), (UCB, BE, EXP3, HALVING, RANDOM), prompt=prompt)


def heads_reworded(quick: bool) -> Generated:
    """The same heads on prompts in other words, and a router."""
    count, tokens, prompt = (1, 24, 96) if quick else (6, 128, 1024)
    alone = ("eagle:ofa:4",) if quick else None
    return Generated(FIVE, count, tokens, arms(HEADS), (UCB,), prompt=prompt, rephrase=True, route=True, alone=alone)


def heads_routed(quick: bool) -> Generated:
    """The router beside MetaSD on prompts as they are, at home and abroad."""
    tasks = (*FIVE, "rag") if quick else (*FIVE, "rag", "alpaca")
    count, tokens, prompt = (1, 24, 96) if quick else (6, 128, 1024)
    return Generated(tasks, count, tokens, arms(HEADS), (UCB,), prompt=prompt, route=True, alone=())


RIVALS = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", "ada-bingreedy", "linucb", "lints")
NAMES = {  # as Nightjar calls them
    "nightjar": "Nightjar",
    "ucbspec:reward=goodput": "BanditSpec",
    "dsd": "DSD",
    "tetris": "TETRIS",
    "ada-bingreedy": "ADA-BINGREEDY",
    "linucb": "LinUCB",
    "lints": "LinTS",
    SD: "SD",
    "draft:3": "SD",
    "off": "w/o SD",
}
LOADS = (1, 4, 16, 48)


def loads(quick: bool) -> tuple[Served, ...]:
    """One load after the other, kept up: every length alone, and every policy."""
    return tuple(
        Served((load,), (30000 if quick else 200000) * load, RIVALS, warmup=(15000 if quick else 100000) * load)
        for load in LOADS
    )


# Stated costs of Nightjar's two pairs of models. On the small GPU the drafter is a fourteenth of its target and
# arithmetic soon is dear; on the large one the drafter costs next to nothing and many tokens fit beside the weights.
PAIRS = {"7B": Costs(draft_step=0.003), "13B": Costs(floor=0.030, per_token=0.0004, draft_step=0.0006, wake=0.02)}
SETS = {"Alpaca": 0.6, "ShareGPT": 0.7, "SpecBench": 0.75}  # stated acceptance
TRACED = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", SD, "off")


def traced(quick: bool) -> tuple[Served, ...]:
    """Arrivals of a real trace, for both pairs and three acceptances."""
    return tuple(
        Served((), 40000 if quick else 400000, TRACED, alone=False, acceptance=(p,), costs=costs, speed=0.5)
        for costs in PAIRS.values()
        for p in SETS.values()
    )


def changing(quick: bool) -> Served:
    """Few requests, many, few, many."""
    return Served((2, 48, 2, 48), 120000 if quick else 600000, TRACED, alone=False)
