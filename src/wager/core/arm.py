"""An arm: one way to run a round."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9_.*-]+(:[A-Za-z0-9_.*-]+)*")


@dataclass(frozen=True, slots=True)
class Tree:
    """Shape of a draft tree; its depth is the arm's length."""

    breadth: int  # children kept per expanded node
    nodes: int  # draft tokens sent to verification

    def __post_init__(self) -> None:
        if self.breadth < 1 or self.nodes < 1:
            raise ValueError(f"a tree needs breadth and nodes of at least 1, not {self.breadth} and {self.nodes}")

    def __str__(self) -> str:
        return f"{self.breadth}x{self.nodes}"

    def size(self, depth: int) -> int:
        """Tokens of such a tree so deep; a shallow one has fewer than its nodes."""
        return min(self.nodes, self.breadth + (depth - 1) * self.breadth**2) if depth > 0 else 0

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Read a shape back from how it is written."""
        if not (shape := re.fullmatch(r"(\d+)x(\d+)", text)):
            raise ValueError(f"{text!r} is not the shape of a tree; write BREADTHxNODES, such as 4x16")
        return cls(int(shape[1]), int(shape[2]))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a round: who drafts, how many tokens deep, and in which tree (none = a chain).

    Written ``drafter:length`` or ``drafter:length@BREADTHxNODES``; plain decoding is ``off``.
    """

    drafter: str
    length: int  # tokens along one drafted path
    tree: Tree | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.drafter):
            raise ValueError(
                f"drafter name {self.drafter!r} may hold only letters, digits and _ . * - joined by colons"
            )
        if self.length < 0:
            raise ValueError(f"arm {self.drafter!r} has length {self.length}; a length is 0 or more")
        if (self.drafter == "off") != (self.length == 0):
            raise ValueError(f"length 0 and drafter 'off' go together, not {self.drafter!r} with length {self.length}")
        if self.tree is not None and not 0 < self.length <= self.tree.nodes:
            raise ValueError(
                f"a tree has a depth of at least 1 and as many nodes, not {self.length} and {self.tree.nodes}"
            )

    def __str__(self) -> str:
        if self.length == 0:
            return "off"
        return f"{self.drafter}:{self.length}" + (f"@{self.tree}" if self.tree else "")

    @property
    def budget(self) -> int:
        """Most draft tokens one request sends to verification."""
        return self.tree.nodes if self.tree else self.length

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Read an arm back from how it is written."""
        if text == "off":
            return OFF
        body, _, shape = text.partition("@")
        drafter, _, length = body.rpartition(":")
        if not drafter or not length.isdecimal():
            raise ValueError(f"{text!r} is not an arm; write 'off', 'drafter:length' or 'drafter:length@BREADTHxNODES'")
        return cls(drafter, int(length), Tree.parse(shape) if shape else None)


OFF = Arm("off", 0)
"""Plain decoding: nothing drafted, one token a round."""
