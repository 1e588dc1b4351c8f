"""What a round takes beside the model: the loop itself, on a target that knows its text beforehand."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from wager.core import OFF, Arm, Context, PromptFeatures, Round
from wager.decoding.loop import Loop
from wager.decoding.prepare import Prepared, Processors
from wager.decoding.sampler import Greedy
from wager.drafters import Drafter
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.models.runner import Runner
from wager.policies import build
from wager.policies.base import Policy

VOCABULARY, PROMPT, LENGTHS = 1000, 200, range(1, 9)
STEP, TOKEN, PROPOSAL = 2e-3, 4e-5, 1e-5  # seconds the policy is told: of a forward, each of its tokens, a proposal
SWEPT = 1 << 25  # bytes of a forward's weights where it is the CPU's own


class ScriptedTarget(Runner):
    """Goes on with a script whatever it is fed; a forward reads ``swept`` bytes, as one does on the CPU."""

    def __init__(self, script: Sequence[int], swept: int = 0) -> None:
        self.states, self.vocabulary, self.hidden, self.depth = {}, VOCABULARY, 1, 0
        self.limit, self.length, self.device = len(script) - 1, 0, torch.device("cpu")
        self._logits = torch.eye(VOCABULARY)[torch.tensor(script)]  # (script, vocabulary)
        self._weights = torch.zeros(swept // 4)

    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        self._weights.sum()
        self.before, self.length = self.length, self.length + len(tokens)
        return self._logits[self.length - keep + 1 : self.length + 1]

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)


class TimedPolicy(Policy):
    """Another policy, timed: seconds of each round's choice, the selection of drafters included, and of learning.

    It is told how long a round would take on some device, so that it decides alike in every run.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.arms)
        self.policy, self.needs = policy, policy.needs
        self.chose: list[float] = []
        self.observed: list[float] = []
        self.inside: list[float] = []  # both, and what timing them takes
        self._selected = self._proposing = 0.0

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        began = perf_counter()
        names = self.policy.select_drafters(context)
        self._selected = perf_counter() - began
        return names

    def choose(self, context: Context) -> Arm:
        entered, selected, self._selected = perf_counter(), self._selected, 0.0
        context = replace(context, proposal_seconds=dict.fromkeys(context.proposal_seconds, PROPOSAL))
        self._proposing = PROPOSAL * len(context.proposal_seconds)
        began = perf_counter()
        arm = self.policy.choose(context)
        ended = perf_counter()
        self.chose.append(ended - began + selected)
        self.inside.append(ended - entered + selected)
        return arm

    def observe(self, round: Round) -> None:
        entered = perf_counter()
        told = replace(round, draft_seconds=self._proposing, verify_seconds=STEP + TOKEN * round.drafted)
        began = perf_counter()
        self.policy.observe(told)
        ended = perf_counter()
        self.observed.append(ended - began)
        self.inside[-1] += ended - entered


@dataclass(frozen=True, slots=True)
class OwnSeconds:
    """Medians over rounds."""

    choose: float
    observe: float
    loop: float  # what is neither the policy's, nor drafting, forward or acceptance; drafters read new tokens in it


def script(tokens: int, seed: int = 0) -> list[int]:
    """A text that repeats itself as prose does: phrases in any order, some tokens changed."""
    draw = random.Random(seed)
    phrases = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(4, 16))] for _ in range(60)]
    text: list[int] = []
    while len(text) < tokens:
        text += [draw.randrange(VOCABULARY) if draw.random() < 0.15 else token for token in draw.choice(phrases)]
    return text[:tokens]


def own_seconds(spec: str, *, tokens: int = 2000, warmup: int = 100, swept: int = 0) -> OwnSeconds:
    """Time a text with four cheap drafters of eight lengths; ``swept``: bytes that each forward reads."""
    made: list[Drafter] = [Suffix(), PromptLookup(), Suffix(name="suffix-text", max_cached_tokens=0)]
    made.append(PromptLookup(name="lookup-1", longest=2, shortest=1))
    drafters = {drafter.name: drafter for drafter in made}
    arms = (OFF, *(Arm(name, length) for name in drafters for length in LENGTHS))
    policy, text = TimedPolicy(build(spec, arms)), script(PROMPT + tokens)
    target = ScriptedTarget(text, swept)
    loop = Loop(target, drafters, policy, arms, policy.needs, lambda ids, seen: PromptFeatures(len(ids), seen))
    request = Prepared(torch.tensor([text[:PROMPT]]), Processors([]), [], None)
    whole = [loop.overhead for piece in loop.run(request, Greedy()) if piece.round is not None]
    rest = [seconds - inside for seconds, inside in zip(whole, policy.inside, strict=True)]
    return OwnSeconds(*(statistics.median(part[warmup:]) for part in (policy.chose, policy.observed, rest)))
