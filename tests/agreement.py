"""Streams of contexts and rounds on which a policy and its slow reference are compared."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from reference import REFERENCES
from reference.history import Reference

from wager.core import OFF, Arm, Context, Hint, PromptFeatures, Round
from wager.core.round import Accepted
from wager.policies import build

SEED = 11
TIE = 1e-9  # relative; two indices this close may be told apart by rounding alone


@dataclass(frozen=True)
class Scenario:
    """A kind of stream; everything in it comes from one seeded generator."""

    arms: tuple[Arm, ...]
    acceptance: Mapping[str, float]  # of one token, per drafter
    rounds: int = 300
    subsets: bool = False  # random subsets of the arms are available, in any order
    batches: tuple[int, ...] = (1,)  # changes in stretches
    requests: int = 0  # rounds of a request, on average; 0: no request is ever announced
    tfidf: tuple[int, ...] = (2,)  # how many TF-IDF scores a prompt has; the first number is the first prompt's
    alike: bool = False  # every prompt's vector is a multiple of the first one's
    overridden: float = 0.0  # share of rounds where the engine plays an arm of its own
    unasked: float = 0.0  # share of rounds that are followed by one nobody was asked about, of another batch
    clock: bool = True


def arms_of(text: str) -> tuple[Arm, ...]:
    return tuple(Arm.parse(word) for word in text.split())


MIXED = Scenario(
    arms_of("beta:2 alpha:1 alpha:3 off alpha:5 beta:4 gamma:3 alpha:5@2x9 gamma:6 beta:1"),
    {"alpha": 0.75, "beta": 0.6, "gamma": 0.85},
    subsets=True, requests=40, tfidf=(2, 2, 2, 0, 5), overridden=0.05,
)  # fmt: skip
SCENARIOS = {
    "drafters": Scenario(
        arms_of("alpha:3 beta:3 gamma:3 delta:3 epsilon:3"),
        {"alpha": 0.6, "beta": 0.65, "gamma": 0.3, "delta": 0.7, "epsilon": 0.55},
    ),
    "mixed": MIXED,
    "batched": Scenario(
        arms_of("off alpha:1 alpha:2 alpha:3 alpha:4 alpha:5"), {"alpha": 0.7},
        batches=(1, 2, 3, 5, 8, 8, 13, 24, 40), overridden=0.02,
    ),
    "many": Scenario(
        (*(Arm(name, length) for name in ("beta", "alpha", "gamma") for length in range(1, 7)), OFF),
        {"alpha": 0.7, "beta": 0.8, "gamma": 0.9},
        batches=(1, 4, 16), requests=60, tfidf=(1,), overridden=0.01,
    ),
    "hopeless": Scenario(
        arms_of("beta:2 alpha:3 off beta:4"), {"alpha": 0.0, "beta": 0.0}, subsets=True, requests=20, tfidf=(0,)
    ),
    "overruled": Scenario(
        arms_of("alpha:3 off beta:2 alpha:5"), {"alpha": 0.4, "beta": 0.9},
        subsets=True, batches=(1, 2, 3), overridden=0.5, unasked=0.1,
    ),
    "clockless": Scenario(
        arms_of("alpha:3 gamma:2 off gamma:4"), {"alpha": 0.6, "gamma": 0.8},
        subsets=True, requests=15, tfidf=(0,), alike=True, clock=False,
    ),
}  # fmt: skip


class Stream:
    """Contexts, and for any arm a round that could have come of it."""

    def __init__(self, scenario: Scenario, seed: int = SEED) -> None:
        self.scenario = scenario
        self.rng = np.random.default_rng(seed)
        self.told = np.random.default_rng([seed, 1])
        self.drafters = sorted(scenario.acceptance)
        self.behind = dict.fromkeys(self.drafters, 0)  # tokens each drafter has not read yet
        self.previous: Arm | None = None
        self.tokens = 0
        self.batch = 1
        self.prompt: PromptFeatures | None = None
        self.kind = -1  # of the request: which feature stands out, and whom it suits
        self.number = 0

    def integer(self, low: int, high: int) -> int:
        """Any of low..high."""
        return int(self.rng.integers(low, high + 1))

    def context(self) -> Context:
        scenario, rng = self.scenario, self.rng
        prompt = None
        if scenario.requests and (self.number == 0 or rng.random() < 1 / scenario.requests):
            prompt = self.new_prompt()
        if rng.random() < 1 / 12:
            self.batch = int(rng.choice(scenario.batches))
        arms = list(scenario.arms)
        if scenario.subsets:
            count = self.integer(1, len(arms))
            arms = [arms[int(i)] for i in rng.permutation(len(arms))[:count]]
        hints = {
            drafter: Hint(confidence=tuple(float(c) for c in rng.random(self.integer(0, 7)) ** 0.3))
            for drafter in self.drafters
            if rng.random() < 0.5
        }
        self.number += 1
        lag = {drafter: lag for drafter, lag in self.behind.items() if lag > 0 or rng.random() < 0.5}
        return Context(tuple(arms), self.batch, self.tokens, self.previous, lag, hints, prompt=prompt)

    def new_prompt(self) -> PromptFeatures:
        rng = self.rng
        self.kind = (self.kind + 1) % 4 if self.number < 200 else self.integer(0, 3)
        self.tokens = 0
        self.previous = None if rng.random() < 0.5 else self.previous
        if self.scenario.alike and self.prompt is not None:
            factor = self.integer(1, 5)
            return PromptFeatures(self.prompt.length * factor, self.prompt.perplexity * factor, self.prompt.tfidf)
        values = 1 + 5 * rng.random(8)
        values[self.kind] += 40
        scores = int(rng.choice(self.scenario.tfidf)) if self.prompt is not None else self.scenario.tfidf[0]
        tfidf = tuple(float(score) for score in values[2 : 2 + scores])
        self.prompt = PromptFeatures(int(values[0]), float(values[1]), tfidf)
        return self.prompt

    def played(self, arm: Arm) -> Round:
        """A legal round of the arm, random but plausible."""
        rng, batch = self.rng, self.batch
        accepted = drafted = rejected = 0
        p = self.scenario.acceptance.get(arm.drafter, 0.0) * (1 + 0.2 * math.sin(self.number / 90))
        speed = 1 + self.drafters.index(arm.drafter) if arm.length else 0
        if arm.length and self.kind >= 0 and (self.kind + speed) % 3 == 0:
            p = 0.5 * p
        for _ in range(batch):
            if arm.length == 0 or rng.random() < 0.05:  # nothing to propose
                continue
            depth = arm.length if arm.tree or rng.random() < 0.9 else self.integer(1, arm.length)
            run = 0
            while run < depth and rng.random() < p:
                run += 1
            accepted += run
            drafted += arm.budget if arm.tree else depth
            rejected += run < depth
        emitted = accepted + batch
        if rng.random() < 0.03:
            emitted = max(1, emitted - self.integer(0, accepted))
        lag = self.behind.get(arm.drafter, 0)
        overlap = tuple(float(p * u) for u in rng.random(arm.length)) if p < 1 and rng.random() < 0.7 else ()
        clock = float(self.scenario.clock) * (rng.random() > 0.01)
        played = Round(
            arm, drafted, accepted, emitted, batch, rejected if rng.random() < 0.5 else -1,
            draft_seconds=clock * speed * 0.002 * drafted / batch * (0.8 + 0.4 * rng.random()),
            verify_seconds=clock * (0.02 + 0.0004 * (drafted + batch)) * (0.9 + 0.2 * rng.random()),
            lag_seconds=clock * (0.004 * lag * (1 + batch / 20)) * (0.5 + rng.random()) if lag else 0.0,
            repeated=None if rng.random() < 0.2 else self.integer(0, min(2, emitted)), lag=lag, overlap=overlap,
            others=self.others(arm, emitted),
        )  # fmt: skip
        for drafter in self.behind:
            self.behind[drafter] = 0 if drafter == arm.drafter else self.behind[drafter] + -(-emitted // batch)
        self.previous = arm
        self.tokens += emitted
        return played

    def others(self, arm: Arm, emitted: int) -> dict[str, Accepted]:
        """What drafters would have had accepted: most tell it token by token, now and then one of a proposal."""
        found: dict[str, Accepted] = {}
        for drafter, p in self.scenario.acceptance.items():
            draw = self.told.random()
            if drafter != arm.drafter and draw < 0.1:
                found[drafter] = int(self.told.integers(0, emitted + 1))
            elif draw < (0.3 if drafter == arm.drafter else 0.8):
                found[drafter] = tuple(float(u < p) for u in self.told.random(1 + int(self.told.integers(4))))
        return found


@dataclass
class Outcome:
    """How far two policies went together."""

    rounds: int = 0
    ties: int = 0  # rounds where both indices were equal but for rounding
    disagreement: str = ""  # empty: none


def params_of(spec: str) -> tuple[str, dict[str, Any]]:
    """A policy's name and its parameters, as its spec writes them."""
    name, _, rest = spec.partition(":")
    params: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        params[key] = int(value) if value.isdecimal() else value if value.isalpha() else float(value)
    return name, params


def tied(index: Mapping[Arm, float], one: Arm, other: Arm) -> bool:
    return one in index and other in index and math.isclose(index[one], index[other], rel_tol=TIE)


def play_together(fast: Any, slow: Reference, scenario: Scenario) -> Outcome:
    """Show both the same stream until they disagree or it ends."""
    stream, outcome = Stream(scenario), Outcome()
    for number in range(scenario.rounds):
        context = stream.context()
        chosen, expected = fast.choose(context), slow.choose(context)
        assert chosen in context.arms, f"round {number}: {chosen} is not available"
        if chosen != expected:
            if not tied(slow.last_index, chosen, expected):
                shown = {str(arm): value for arm, value in slow.last_index.items()}
                outcome.disagreement = f"round {number}: {chosen}, the reference {expected}; its indices {shown}"
                return outcome
            outcome.ties += 1
        played = chosen
        if stream.rng.random() < scenario.overridden:
            played = scenario.arms[int(stream.rng.integers(len(scenario.arms)))]
        came_back = [stream.played(played)]
        if stream.rng.random() < scenario.unasked:
            stream.batch = int(stream.rng.choice(scenario.batches))
            came_back.append(stream.played(scenario.arms[int(stream.rng.integers(len(scenario.arms)))]))
        for observed in came_back:
            fast.observe(observed)
            slow.observe(observed)
        outcome.rounds += 1
    return outcome


def disagreement_of(spec: str, scenario: str, reference: type[Reference] | None = None) -> Outcome:
    name, params = params_of(spec)
    arms = SCENARIOS[scenario].arms
    slow = (reference or REFERENCES[name])(arms, seed=SEED, **params)
    return play_together(build(spec, arms, seed=SEED), slow, SCENARIOS[scenario])
