"""What is known before a round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from wager.core.arm import Arm
from wager.core.require import require


class Signal(Enum):
    """What an engine measures only for policies that need it, because it takes time."""

    HINTS = "hints"  # Context.hints, agreement and proposal_seconds: cheap drafters propose before the choice
    OTHERS = "others"  # Round.others, of cheap drafters
    READ = "read"  # and of models, at tokens that they missed and have read since
    OVERLAP = "overlap"  # Round.overlap
    PROMPT = "prompt"  # Context.prompt
    KINDS = "kinds"  # Context.kinds
    REPEATS = "repeats"  # Round.repeated
    COSTS = "costs"  # Policy.calibrate: seconds of rounds are timed before the first one


@dataclass(frozen=True, slots=True)
class Hint:
    """What a drafter says of its own next proposal."""

    match: int = 0  # tokens of context its proposal was found by
    confidence: tuple[float, ...] = ()  # its own probability of each token it would draft
    size: int = 0  # tokens it would draft; at least as many as have a confidence

    def __post_init__(self) -> None:
        if self.match < 0:
            raise ValueError(f"a match has 0 tokens or more, not {self.match}")
        if self.size < len(self.confidence):
            object.__setattr__(self, "size", len(self.confidence))
        if not all(0 <= p <= 1 for p in self.confidence):
            raise ValueError(f"confidences lie in [0, 1], not {self.confidence}")


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """What a per-prompt policy may know of a prompt: numbers only, never its text."""

    length: int  # tokens
    perplexity: float  # of the prompt under the target, from the prefill's own logits
    tfidf: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(self.length >= 1, f"a prompt has at least 1 token, not {self.length}")
        require(1 <= self.perplexity < math.inf, f"a perplexity is finite and at least 1, not {self.perplexity}")
        require(all(map(math.isfinite, self.tfidf)), f"TF-IDF scores are finite, not {self.tfidf}")

    @property
    def vector(self) -> tuple[float, ...]:
        """The concatenation used by on-the-fly adaptation (section 5): length, perplexity, TF-IDF."""
        return (float(self.length), self.perplexity, *self.tfidf)


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before the round; all that a policy may look at when it chooses."""

    arms: tuple[Arm, ...]  # available now; engines reuse one tuple while the set does not change
    batch: int = 1  # requests decoding in this step
    tokens: int = 0  # generated so far
    previous: Arm | None = None
    # drafter -> tokens it must catch up on before it can draft, of those known when the context is made
    lag: Mapping[str, int] = field(default_factory=dict)
    hints: Mapping[str, Hint] = field(default_factory=dict)  # drafter -> what it says of its proposal
    # drafter -> other drafter -> leading tokens that both propose
    agreement: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    proposal_seconds: Mapping[str, float] = field(default_factory=dict)  # drafter -> seconds its proposal took
    prompt: PromptFeatures | None = None  # in the first round of a request, where a policy needs it
    remaining: int | None = None  # most tokens the request may still generate; None: not known
    unobserved: bool = False  # whether the round before this one is observed after the choice, not before it
    merges: bool = False  # whether a proposal may be merged into the draft of another drafter (``Arm.merged``)
    readers: frozenset[str] | None = None  # models that can read the text without drafting; None: all
    # kind of text -> how likely it is by the prompt; in the first round of a request, where drafters' cards tell kinds
    kinds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.arms:
            raise ValueError("a context needs at least one available arm")
        if self.batch < 1 or self.tokens < 0:
            raise ValueError(f"batch is at least 1 and tokens at least 0, not {self.batch} and {self.tokens}")
        if self.lag and min(self.lag.values()) < 0:
            raise ValueError(f"a drafter lags by 0 tokens or more, not {dict(self.lag)}")

    def can_read(self, drafter: str) -> bool:
        """Whether this model can read the text without drafting, where models do (``Policy.select_readers``)."""
        return self.readers is None or drafter in self.readers
