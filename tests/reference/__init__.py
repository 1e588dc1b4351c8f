"""Slow, obvious references of every policy, written from the papers' pseudo-code alone.

Each keeps the whole history and works its decision out anew; none shares code with the package's policies.
"""

from reference.banditspec import EXP3Spec, UCBSpec
from reference.hedge import Hedge
from reference.history import Reference
from reference.metasd import PETC, DiscountedUCB, Halving, MetaEXP3, MetaUCB, SlidingUCB
from reference.nightjar import BinGreedy, Nightjar
from reference.onthefly import FSM, Analytical, CachedFSM, PromptRouter, QLearning
from reference.plain import Fixed, Off, Random, RoundRobin
from reference.serving import DSD, LinTS, LinUCB, Tetris
from reference.stronger import KLUCB, Thompson

REFERENCES: dict[str, type[Reference]] = {
    "off": Off,
    "fixed": Fixed,
    "random": Random,
    "round-robin": RoundRobin,
    "ucbspec": UCBSpec,
    "exp3spec": EXP3Spec,
    "meta-ucb": MetaUCB,
    "discounted-ucb": DiscountedUCB,
    "sliding-ucb": SlidingUCB,
    "meta-exp3": MetaEXP3,
    "hedge": Hedge,
    "halving": Halving,
    "petc": PETC,
    "analytical": Analytical,
    "fsm": FSM,
    "cached-fsm": CachedFSM,
    "qlearning": QLearning,
    "prompt-router": PromptRouter,
    "ada-bingreedy": BinGreedy,
    "nightjar": Nightjar,
    "dsd": DSD,
    "tetris": Tetris,
    "linucb": LinUCB,
    "lints": LinTS,
    "kl-ucb": KLUCB,
    "thompson": Thompson,
}
