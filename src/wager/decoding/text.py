"""Tokens to text as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextStream:
    """Gives out text as soon as it is certain: never half a character."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.start = 0  # tokens before this one are decoded only to see how the next join them
        self.given = 0  # tokens whose text is out

    def push(self, tokens: Sequence[int]) -> str:
        """The text these tokens complete."""
        self.tokens += tokens
        before, now = self._decode(self.tokens[self.start : self.given]), self._decode(self.tokens[self.start :])
        if now.endswith("\ufffd"):  # a character is still missing bytes
            return ""
        self.start, self.given = self.given, len(self.tokens)
        return now[len(before) :]

    def end(self) -> str:
        """Whatever is left."""
        before, now = self._decode(self.tokens[self.start : self.given]), self._decode(self.tokens[self.start :])
        self.start = self.given = len(self.tokens)
        return now[len(before) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
