"""The runs that experiments share."""

from reproduction.recorded import EVERY_SET, Replayed
from reproduction.recordings import Wanted
from reproduction.simulated import SD, Served
from reproduction.turned import Turned
from wager.simulation import Costs

FIVE = ("humaneval", "translation", "summarization", "qa", "math_reasoning")  # MetaSD's five tasks
FOREIGN = ("rag", "alpaca")  # that no specialist was made for
SPEC = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")  # Spec-Bench's six
HEADS = ("eagle:code", "eagle:translation", "eagle:summarization", "eagle:chat", "eagle:math")
MODELS = ("draft:code", "draft:math")
SPECIALISTS = {"eagle": HEADS, "draft": MODELS}
# Trained on all domains, with the recipe of the specialists.
FOR_ALL = {"eagle": "eagle:mixed", "draft": "draft:ofa"}
UCB, BE, EXP3, HALVING, RANDOM = "meta-ucb", "meta-ucb:reward=be", "meta-exp3", "halving:budget=1", "random"
LENGTH = 5  # MetaSD's N_max
ANALYTICAL = "analytical"


def pool(
    kind: str, *, lengths: tuple[int, ...] = (LENGTH,), temperature: float = 0.0, prompts: str = "tasks"
) -> Replayed:
    """MetaSD: each drafter of a kind alone, and every bandit over the specialists, begun anew for every prompt."""
    own = SPECIALISTS[kind]
    wanted = Wanted((*own, FOR_ALL[kind]), overlap=True, temperature=temperature, prompts=prompts)
    return Replayed(wanted, lengths, (UCB, BE, EXP3, HALVING, RANDOM), pool=own)


def lookup() -> Replayed:
    """Prompt lookup alone."""
    return Replayed(Wanted(("prompt-lookup",)), (LENGTH,), ())


def window(drafter: str, cost: str, policies: tuple[str, ...], lengths: tuple[int, ...], **how: object) -> Replayed:
    """On-the-fly adaptation: one drafter, its length chosen in every round; what is learned is kept in a data set.

    Windows begin at 1: one of 0 brings no new estimate of acceptance, so with it among them the analytical model stays
    off for good once it is off, which is not what the paper's tables show.
    """
    target = str(how.pop("target", "smollm2-135m"))
    temperature = float(str(how.pop("temperature", 0.0)))
    wanted = Wanted((drafter,), target=target, temperature=temperature)
    return Replayed(wanted, lengths, policies, cost=cost, reset=EVERY_SET, **how)  # type: ignore[arg-type]


NAMES = {  # as Nightjar calls them
    "nightjar": "Nightjar",
    "ucbspec:reward=goodput": "BanditSpec",
    "dsd": "DSD",
    "tetris": "TETRIS",
    "ada-bingreedy": "ADA-BINGREEDY",
    "linucb": "LinUCB",
    "lints": "LinTS",
    SD: "SD",
    "draft:4": "SD",  # the length nearest to the paper's 3 that was run
    "off": "w/o SD",
}
LOADS = (1, 8, 32, 128)


def loads() -> tuple[Turned, ...]:
    """One load after the other, kept up on an engine: lengths alone, and every policy."""
    return tuple(Turned(load) for load in LOADS)


# Stated costs of Nightjar's two pairs of models. On the small GPU the drafter is a fourteenth of its target and
# arithmetic soon is dear; on the large one the drafter costs next to nothing and many tokens fit beside the weights.
PAIRS = {"7B": Costs(draft_step=0.003), "13B": Costs(floor=0.030, per_token=0.0004, draft_step=0.0006, wake=0.02)}
SETS = {"Alpaca": 0.6, "ShareGPT": 0.7, "SpecBench": 0.75}  # stated acceptance
ARRIVALS = 60  # seeds: latencies under one trace differ more than speeds do
TRACED = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", SD, "off")


def traced() -> tuple[Served, ...]:
    """Arrivals of a real trace, for both pairs and three acceptances."""
    return tuple(
        Served((), 40000, TRACED, alone=False, acceptance=(p,), costs=costs, speed=0.5, seeds=ARRIVALS)
        for costs in PAIRS.values()
        for p in SETS.values()
    )


def changing() -> Served:
    """Few requests, many, few, many; as many tokens as results/load-changes-600000.json has, and the paper's 5 runs."""
    return Served((2, 48, 2, 48), 600000, TRACED, alone=False)
