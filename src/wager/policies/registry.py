"""Policies by name, with parameters: how the command line and the tests build them."""

import inspect
import math
from dataclasses import dataclass
from typing import Any, get_type_hints

from wager.core.require import nearest, require_type
from wager.policies import base
from wager.policies.auto import Auto
from wager.policies.banditspec import EXP3Spec, UCBSpec
from wager.policies.base import Arms, Policy, RewardPolicy, require
from wager.policies.goodput import DSD, Tetris
from wager.policies.halving import PETC, Halving
from wager.policies.hedge import Hedge
from wager.policies.linear import LinTS, LinUCB
from wager.policies.metasd import DiscountedUCB, MetaEXP3, MetaUCB, SlidingUCB
from wager.policies.nightjar import AdaBinGreedy, Nightjar
from wager.policies.onthefly import FSM, Analytical, CachedFSM, QLearning
from wager.policies.plain import Fixed, Off, Random, RoundRobin
from wager.policies.posterior import KLUCB, Thompson
from wager.policies.router import PromptRouter


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy as it is listed."""

    make: type[Policy]
    source: str  # the paper it comes from and where it stands there

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.make) or "").splitlines()[0]

    @property
    def rewards(self) -> tuple[str, ...]:
        """Rewards it can be driven by; none where it has no such choice."""
        return self.make.allowed if "reward" in self.parameters and issubclass(self.make, RewardPolicy) else ()

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters a user may set, with their defaults (``inspect.Parameter.empty``: must be given)."""
        given = inspect.signature(self.make).parameters
        return {name: p.default for name, p in given.items() if p.kind is p.KEYWORD_ONLY and name != "seed"}


POLICIES: dict[str, Entry] = {
    "auto": Entry(Auto, "wager"),
    "off": Entry(Off, "plain"),
    "fixed": Entry(Fixed, "plain"),
    "random": Entry(Random, "plain"),
    "round-robin": Entry(RoundRobin, "plain"),
    "ucbspec": Entry(UCBSpec, "BanditSpec, Alg. 4 and 8"),
    "exp3spec": Entry(EXP3Spec, "BanditSpec, Alg. 5 and 9"),
    "meta-ucb": Entry(MetaUCB, "MetaSD, Alg. 2"),
    "meta-exp3": Entry(MetaEXP3, "MetaSD, Alg. 7"),
    "discounted-ucb": Entry(DiscountedUCB, "MetaSD, Alg. 6"),
    "sliding-ucb": Entry(SlidingUCB, "MetaSD, Alg. 8"),
    "hedge": Entry(Hedge, "HedgeSpec; Chaudhuri et al. 2009"),
    "halving": Entry(Halving, "MetaSD, Alg. 5"),
    "petc": Entry(PETC, "MetaSD, Alg. 4"),
    "analytical": Entry(Analytical, "on-the-fly, eq. 1 and 2"),
    "fsm": Entry(FSM, "on-the-fly, method 2"),
    "cached-fsm": Entry(CachedFSM, "on-the-fly, method 3"),
    "qlearning": Entry(QLearning, "on-the-fly, method 4"),
    "prompt-router": Entry(PromptRouter, "on-the-fly, section 5"),
    "nightjar": Entry(Nightjar, "Nightjar, Alg. 1 and eq. 3"),
    "ada-bingreedy": Entry(AdaBinGreedy, "Luo et al. 2018, in Nightjar"),
    "dsd": Entry(DSD, "Liu et al. 2024, in Nightjar"),
    "tetris": Entry(Tetris, "Wu et al. 2025, in Nightjar"),
    "linucb": Entry(LinUCB, "Li et al. 2010, in Nightjar"),
    "lints": Entry(LinTS, "Agrawal & Goyal 2013, in Nightjar"),
    "kl-ucb": Entry(KLUCB, "Garivier & Cappé 2011"),
    "thompson": Entry(Thompson, "Thompson 1933"),
}

EXPERIMENTS: dict[str, Entry] = {}  # further ones that simulation and replay can name, such as ablations


def build(spec: str, arms: Arms, *, seed: int = 0, **known: Any) -> Policy:
    """The policy a specification such as ``meta-ucb:beta=0.01,reward=be`` describes.

    ``known`` holds values for parameters the caller knows (``tokens``, the length of the text to come); they fill in
    where a policy has such a parameter and the specification does not set it.
    """
    name, given = parse(spec)
    entry = POLICIES.get(name) or EXPERIMENTS[name]
    takes = entry.parameters
    types = get_type_hints(entry.make.__init__)
    values = {key: value for key, value in known.items() if key in takes}
    for key, value in values.items():
        counts = types[key] not in (int, float) or isinstance(value, (int, float))
        require(counts, f"parameter {key!r} of policy {name!r} is a number, not {value!r}")
    values |= {key: _convert(name, key, text, types[key]) for key, text in given.items()}
    missing = [key for key, default in takes.items() if default is inspect.Parameter.empty and key not in values]
    if missing:
        raise ValueError(f"policy {name!r} needs {' and '.join(missing)}, as in {name}:{missing[0]}=…")
    return entry.make(arms, seed=seed, **values)


def resets(spec: str, rule: str) -> bool:
    """Whether the policy a specification describes is started anew with every text under one of ``RESETS``."""
    name, _ = parse(spec)
    return base.resets((POLICIES.get(name) or EXPERIMENTS[name]).make, rule)


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """The name and the parameters of a specification, both known to exist."""
    require_type(isinstance(spec, str), f"a policy is named by a text such as 'meta-ucb:beta=0.01', not {spec!r}")
    name, _, rest = spec.partition(":")
    entry = POLICIES.get(name) or EXPERIMENTS.get(name)
    if entry is None:
        raise ValueError(f"unknown policy {name!r}{nearest(name, POLICIES)}; choose from {', '.join(POLICIES)}")
    takes = entry.parameters
    given: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, text = item.partition("=")
        require(key in takes, f"policy {name!r} has no parameter {key!r}; it takes {', '.join(takes) or 'none'}")
        require(key not in given, f"policy {name!r} is given parameter {key!r} twice: {spec!r}")
        require(bool(equals and text), f"write {key}=VALUE for parameter {key!r} of policy {name!r}, not {item!r}")
        given[key] = text
    return name, given


def _convert(policy: str, key: str, text: str, kind: type) -> int | float | str:
    if kind is str:
        return text
    try:
        value = int(text) if kind is int else float(text)
        if not math.isfinite(value):
            raise ValueError
        return value
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"parameter {key!r} of policy {policy!r} is {wanted}, not {text!r}") from None
