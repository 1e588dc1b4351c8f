"""What a drafter is: it follows the text, and proposes how it goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from wager.core import Arm, Hint, Tree
from wager.drafters.cards import Card

if TYPE_CHECKING:
    import torch

    from wager.drafters.datastore import Datastore
    from wager.models.runner import Runner

NO_HINT = Hint()


class DraftSampler(Protocol):
    """What a drafter draws with where the target is sampled."""

    @property
    def temperature(self) -> float: ...

    def __call__(self, text: Sequence[int], logits: torch.Tensor) -> tuple[int, torch.Tensor]:
        """From the text so far and the drafter's logits (vocabulary,): a token, and what it is drawn from."""

    def gumbel(self, count: int) -> torch.Tensor | None:
        """What the target will add to its scores at the text's next ``count`` positions, (count, vocabulary).

        A drafter that adds it to its own logits, divided by the temperature, and takes the largest sum is right more
        often than one that takes the likeliest. Not to be written to. None where nobody knows it beforehand.
        """


class DeviceChoices(Protocol):
    """Chooses the target's tokens where its logits are; nothing is read back."""

    def __call__(self, logits: torch.Tensor, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
        """From logits after the text's last token and after each of a draft's, (width, vocabulary): tokens, (width,).

        Of a tree, ``depths``, (width,), says how many tokens after the text's last each stands; of a chain it is None
        and each stands one further than the one before. ``levels`` is the number of depths, 0 included.
        """


def likeliest(logits: torch.Tensor, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
    """The choices of greedy decoding; a ``DeviceChoices``."""
    return logits.argmax(-1)


class Scorer(Protocol):
    """Says of tokens that model drafters predict at places of the text whether the target took them."""

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn: then a prediction is a distribution, and ``overlap`` is to be asked."""

    @property
    def noise(self) -> bool:
        """Whether drafters know the noise that tokens are drawn with."""

    @property
    def begins(self) -> int:
        """The place of the first token in the text that has a score."""

    def hits(self, tokens: Sequence[int], first: int) -> list[float]:
        """1 for each token that is the text's own, else 0; ``first`` is the place of the first in the text."""

    def overlap(self, logits: torch.Tensor, first: int) -> list[float]:
        """Probability that what is drafted from each row of (places, vocabulary) is accepted there."""


@dataclass(slots=True)
class Draft:
    """A proposal: the tokens expected next, and how sure the drafter is of them; a chain, or a tree with ``parents``.

    ``probs`` matter to the residual rule alone. In a tree with them the tokens after one were drawn from that row one
    after the other, none twice: a row holds the distribution before its siblings were drawn (or without them, which
    comes to the same). Whether a token is there may depend on those before it, never on what it is itself: a drafter
    that drops what it drew because it looks unlikely, or takes the likeliest, gives no ``probs``, and stays exact.
    """

    tokens: list[int] = field(default_factory=list)
    hint: Hint = NO_HINT
    probs: torch.Tensor | None = None  # (tokens, vocabulary), q at each position; None: each token for certain
    lag: int = 0  # tokens the drafter had to catch up on first
    lag_seconds: float = 0.0  # what that took
    # The index among ``tokens`` of the one before each, -1: the text's last; parents come first. None: a chain.
    parents: list[int] | None = None
    # Makes ``logits``, which few want: of the tokens with these indices.
    raw: Callable[[Sequence[int]], torch.Tensor] | None = field(default=None, repr=False, compare=False)
    begun: bool = True  # False: like drafts are begun ahead as a rule, while a round is still verified; this was not

    @property
    def logits(self) -> torch.Tensor | None:
        """The drafter's own where each token was chosen, (tokens, vocabulary)."""
        # None where it has none, or gives ``probs``; to be taken before it drafts again.
        return None if self.raw is None else self.raw(range(len(self.tokens)))

    def confidence(self) -> tuple[float, ...]:
        """The drafter's own probability of each token, also where its hint leaves that out; empty where it has none.

        A head that drafts frequent tokens only gives the probability among those. To be taken before it drafts again.
        """
        if self.hint.confidence or (logits := self.logits) is None:
            return self.hint.confidence
        chances = logits.float().softmax(-1)[range(len(self.tokens)), self.tokens]
        return tuple(chances.clamp(0, 1).tolist())

    def cut(self, length: int) -> Draft:
        """The same proposal, no longer than this; for chains."""
        if len(self.tokens) <= length:
            return self
        probs = None if self.probs is None else self.probs[:length]
        return Draft(self.tokens[:length], self.hint, probs, self.lag, self.lag_seconds, raw=self.raw)


@dataclass(frozen=True, slots=True)
class Verified:
    """A draft that the target has verified on the device."""

    draft: Draft
    path: list[int]  # indices of the tokens that were accepted
    following: int  # the token after them
    verify_seconds: float  # of the target's forward and of accepting, on the device
    own: int  # of the accepted tokens, those that would be without what was merged


def _nothing() -> None:
    """Nothing is done while the device works, and no arm is known."""


class Drafter(ABC):
    """Proposes tokens for one stream of text; what it keeps from one request to the next is its own affair."""

    name: str  # as in an arm
    cheap: ClassVar[bool] = True  # microseconds: proposes in every round, for its hint and for what would be accepted
    trees: ClassVar[bool] = False  # whether it can propose trees
    servable: ClassVar[bool] = False  # whether a server can run it, one for every request: ``share`` gives those
    datastore: Datastore | None = None  # the corpus it reads, if any
    runner: Any = None  # runs the model it drafts with, if that is a whole one
    card: Card = Card()  # what its maker says of its acceptance
    reads: ClassVar[bool] = False  # whether it can `read` what it missed without drafting
    scorer: Scorer | None = None  # scores its predictions at tokens it missed; None: nobody wants to know
    meanwhile: Callable[[], Arm | None] = staticmethod(_nothing)  # called while the device works; the next arm
    scores: tuple[float, ...] = ()  # those that `take_scores` has not taken, the oldest first

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> None:
        """A request starts with this prompt; whatever request came before is over."""

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """The text went on with these tokens, all of them verified."""

    @abstractmethod
    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        """At most ``length`` tokens expected next, none where it has no idea; ``sample`` is for drafters that draw."""

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        """A tree of what may come next: at most ``length`` deep, with at most the shape's nodes and children a node."""
        raise ValueError(f"drafter {self.name!r} drafts chains only; leave out its trees")

    def play(
        self, length: int, shape: Tree | None, choose: DeviceChoices, sample: DraftSampler | None = None,
        merged: Sequence[int] = (),
    ) -> Verified | None:  # fmt: skip
        """Draft a chain, or a tree of this shape, and have the target verify it, all on the device with one read-back.

        ``merged``: a chain of another drafter's, verified along with it; the one accepted further is kept.
        None where that cannot be done; the text is then as it was.
        """
        return None

    def prepare(self, length: int, shape: Tree | None, sample: DraftSampler | None = None) -> None:  # noqa: B027
        """Begin such a draft on the device, so that ``play`` finds it made; it is discarded if the text goes on."""

    def read(self) -> None:
        """Read the tokens that it missed, all in one forward, without drafting; for models."""
        raise ValueError(f"drafter {self.name!r} does not read without drafting")

    def take_scores(self) -> tuple[float, ...]:
        """What ``scorer`` said of its predictions at tokens it missed and has read since it was asked last.

        A token is missed where the drafter did not draft in its round. Each is predicted after the true text before
        it: what the drafter would have drafted first, had it drafted there.
        """
        taken, self.scores = self.scores, ()
        return taken

    def end(self) -> None:  # noqa: B027 - most drafters keep nothing
        """The text is over, and none follows yet; to say so twice is harmless."""

    def share(self) -> Drafter:
        """A drafter of the same kind for another text at the same time; it shares what is kept of finished texts."""
        raise ValueError(f"{self.name} follows one text at a time; vLLM runs draft models and EAGLE heads itself")

    def forget(self) -> None:  # noqa: B027 - most drafters keep nothing
        """Forget what it kept from earlier requests."""

    def fit(self, vocabulary: int) -> None:  # noqa: B027 - most drafters fit any target
        """Refuse a target of so many tokens with a ValueError if it cannot draft for it."""

    def follow(self, target: Runner) -> None:  # noqa: B027 - most drafters read tokens alone
        """The texts to come are this target's: a drafter that reads its features has it keep them."""

    def warm(self, arms: Iterable[Arm]) -> None:  # noqa: B027 - most drafters are ready at once
        """Prepare for these arms, all of them its own, so that no round is slow because it is the first of its kind."""

    @property
    def size(self) -> Hashable:
        """What its seconds depend on: of drafters of one size one is timed."""
        return self.name

    @property
    def lag(self) -> int:
        """Tokens it must catch up on before it can draft."""
        return 0

    @property
    def memory(self) -> int:
        """Bytes of its weights and its cache."""
        return 0


def drafter_agreement(proposals: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """For every drafter and every other: how many tokens, from the first, both propose."""
    found: dict[str, dict[str, int]] = {name: {} for name in proposals}
    for (one, ours), (other, theirs) in combinations(proposals.items(), 2):
        n = 0
        for a, b in zip(ours, theirs, strict=False):
            if a != b:
                break
            n += 1
        found[one][other] = found[other][one] = n
    return found
