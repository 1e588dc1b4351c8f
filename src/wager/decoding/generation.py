"""What a request gives back: its text as it comes, and how it came about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from wager.core import OFF, Round

PLAIN, BONUS = "plain", "bonus"  # sources of a token that no drafter proposed: a round without a draft, or with one
INTERRUPTED = "interrupted"  # how a text ends that its reader stopped


class TextStream:
    """Gives out text as soon as it is certain: never half a character."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.start = 0  # tokens before this one are decoded only to see how the next join them
        self.given = 0  # tokens whose text is out

    def push(self, tokens: Sequence[int], end: bool = False) -> str:
        """The text these tokens complete; at the end whatever is left."""
        self.tokens += tokens
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        before, now = decode(self.tokens[self.start : self.given]), decode(self.tokens[self.start :])
        if now.endswith("\ufffd") and not end:  # a character is still missing bytes
            return ""
        self.start, self.given = self.given, len(self.tokens)
        return str(now[len(before) :])

    def shown(self, piece: Piece) -> Piece:
        """The piece with its text."""
        return replace(piece, text=self.push(piece.tokens))

    def end(self) -> str:
        """Whatever is left."""
        return self.push((), end=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to the text."""

    text: str  # may be empty where a character is not complete yet
    tokens: tuple[int, ...]
    sources: tuple[str, ...]  # where each token came from: a drafter's name, 'bonus' or 'plain'
    round: Round | None  # None for the token that came out of the prompt's own forward
    rejected: tuple[int, ...] = ()  # drafted tokens that the target did not take; of a tree those off its path
    stands: bool = False  # the policy was not asked for this round: its last choice stands


@dataclass(slots=True)
class Generation:
    """A finished text, and how it came about."""

    text: str
    tokens: list[int]
    sources: list[str]
    prompt_tokens: int
    finish: str  # 'eos', 'stop', 'length', 'context' or 'interrupted'
    prefill_seconds: float  # of the prompt, and, after a Decoder's first token, of packing weights and timing rounds
    decode_seconds: float
    rounds: list[Round] = field(default_factory=list)
    steps: list[Piece] = field(default_factory=list)  # the token of the prompt's own forward, then a piece a round

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of decoding, the prompt's own forward left out."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def mat(self) -> float:
        """Mean tokens emitted per round, bonus token included; 1 where there was none, as in plain decoding."""
        return sum(r.emitted for r in self.rounds) / len(self.rounds) if self.rounds else 1.0

    @property
    def shares(self) -> dict[str, float]:
        """Arm -> its share of the rounds, the most used first."""
        counts = Counter(r.arm.label for r in self.rounds)
        return {arm: count / len(self.rounds) for arm, count in counts.most_common()}

    def pieces(self, tokenizer: Any) -> list[list[Any]]:
        """How the text came about, step by step; see ``token_view``."""
        return token_view(self.steps, tokenizer)

    def summary(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "tokens": len(self.tokens),
            "prompt_tokens": self.prompt_tokens,
            "finish": self.finish,
            "rounds": len(self.rounds),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "mat": round(self.mat, 4),
            "prefill_seconds": round(self.prefill_seconds, 6),
            "decode_seconds": round(self.decode_seconds, 6),
            "arms": {arm: round(share, 4) for arm, share in self.shares.items()},
        }


def token_view(steps: Iterable[Piece], tokenizer: Any) -> list[list[Any]]:
    """Every step as JSON: its arm, each token's text and source, and the texts of the draft tokens not taken.

    The first step, the token that came out of the prompt's own forward, has the arm ``off``. A character of several
    tokens is the text of the last of them; of those before it the text is empty.
    """
    stream = TextStream(tokenizer)
    shown: list[list[Any]] = []
    last: list[int] = []
    for step in steps:
        arm = (OFF if step.round is None else step.round.arm).label
        if not step.tokens:  # the end of a stream that was cut inside a character
            continue
        rejected = [_after(tokenizer, last, token) for token in step.rejected]
        texts = [[stream.push([token]), source] for token, source in zip(step.tokens, step.sources, strict=True)]
        shown.append([arm, texts, rejected])
        last = [step.tokens[-1]]
    if shown and (rest := stream.end()):
        shown[-1][1][-1][0] += rest
    return shown


def _after(tokenizer: Any, before: list[int], token: int) -> str:
    """The text of a token in its place: some tokenizers leave out the space before the first token of a text."""
    start, whole = (str(tokenizer.decode(ids)) for ids in (before, [*before, token]))
    return whole[len(start) :] if whole.startswith(start) else str(tokenizer.decode([token]))
