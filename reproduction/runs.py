"""The runs that experiments share."""

from dataclasses import replace
from typing import Any

from reproduction.fitted import BAND, FITTED
from reproduction.opened import Opened
from reproduction.recorded import EVERY_SET, Replayed
from reproduction.recordings import Wanted
from reproduction.simulated import SD, Served
from reproduction.turn_plans import AZURE_SPEED
from reproduction.turned import Turned
from reproduction.workspace import Run
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
TRACED = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", SD, "off")
ON_ENGINE = ("nightjar", "dsd", "draft:4", "off")  # of those, what was run under the trace on an engine
MEASURED = 128  # requests that steps were measured up to
# Seeds: latencies under one trace differ more than speeds do. The band asks for the sign of a mean only.
ARRIVALS, STATED, BANDED = 30, 20, 6


def traced() -> tuple[Run, ...]:
    """Arrivals of a real trace, three acceptances: fitted costs, the band around them, stated costs of both pairs.

    With fitted costs the trace is as fast as on the engine, where it was run too; with stated ones half as fast as
    recorded, which is about as much of what the servers can do.
    """
    fit = {"speed": AZURE_SPEED, "max_batch": MEASURED}
    return (
        *(_trace(p, 60000, fitted=FITTED, seeds=ARRIVALS, **fit) for p in SETS.values()),
        *(_trace(p, 60000, fitted=b, seeds=BANDED, beside=True, **fit) for b in BAND for p in SETS.values()),
        *(
            _trace(p, 40000, costs=costs, speed=0.5, seeds=STATED, beside=True)
            for costs in PAIRS.values()
            for p in SETS.values()
        ),
        Opened(ON_ENGINE),
    )


def _trace(acceptance: float, tokens: int, **how: Any) -> Served:
    return Served((), tokens, TRACED, alone=False, acceptance=(acceptance,), **how)


def changing() -> tuple[Served, ...]:
    """Few requests, many, few, many: fitted costs, and the band around them.

    As many tokens as results/load-changes-600000.json has, and the paper's 5 runs. The loads are those that steps were
    measured at; on that GPU it takes about eight times as many requests as with the stated costs to be busy.
    """
    fit = Served((8, MEASURED, 8, MEASURED), 600000, TRACED, alone=False, fitted=FITTED, max_batch=MEASURED)
    return (fit, *(replace(fit, fitted=name, seeds=2, beside=True) for name in BAND))
