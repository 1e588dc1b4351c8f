"""What a server without speculation writes, and whether another text parts from it anywhere but at a tie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

END = "<|im_end|>"  # the end of a turn, which stands among a server's tokens and not in its text
TIE = 1e-3  # nats between two tokens that float error may swap


@dataclass(frozen=True, slots=True)
class Reference:
    """A greedy text token by token, with how far ahead of the runner-up each token was."""

    tokens: tuple[str, ...]
    leads: tuple[float, ...]  # nats

    @classmethod
    def of(cls, answer: Any) -> Reference:
        """From a chat completion asked for with ``logprobs=True, top_logprobs=2``."""
        content = [token for token in answer.choices[0].logprobs.content if token.token != END]
        leads = [token.top_logprobs[0].logprob - token.top_logprobs[1].logprob for token in content]
        return cls(tuple(token.token for token in content), tuple(leads))

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    def differs(self, text: str, *, part: bool = False) -> bool:
        """Whether ``text`` parts from this where it is no tie; ``part``: it may stop earlier."""
        written = ""
        for token, lead in zip(self.tokens, self.leads, strict=True):
            if not text.startswith(written + token):
                stopped = part and (written + token).startswith(text)
                return not stopped and lead > TIE
            written += token
        return text != written
