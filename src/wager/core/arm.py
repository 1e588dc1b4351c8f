"""An arm: one way to run a round."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from wager.core.require import is_whole, require_type

LONGEST = 1024  # tokens of a draft that can be asked for: more than any is accepted of
_NAME = re.compile(r"[A-Za-z0-9_.*-]+(:[A-Za-z0-9_.*-]+)*")


@dataclass(frozen=True, slots=True)
class Tree:
    """Shape of a draft tree; its depth is the arm's length."""

    breadth: int  # children kept per expanded node
    nodes: int  # draft tokens sent to verification

    def __post_init__(self) -> None:
        whole = is_whole(self.breadth) and is_whole(self.nodes)
        require_type(whole, f"breadth and nodes of a tree are whole numbers, not {self.breadth!r} and {self.nodes!r}")
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
        require_type(isinstance(text, str), f"the shape of a tree is written as a text such as '4x16', not {text!r}")
        if not (shape := re.fullmatch(r"(\d+)x(\d+)", text)):
            raise ValueError(f"{text!r} is not the shape of a tree; write BREADTHxNODES, such as 4x16")
        return cls(int(shape[1]), int(shape[2]))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a round: who drafts, how many tokens deep, and in which tree (none = a chain).

    Written ``drafter:length`` or ``drafter:length@BREADTHxNODES``; plain decoding is ``off``. What is merged into the
    draft, to be verified in the same pass, is written after it: ``eagle:ofa:4@4x16+suffix:8``.
    """

    drafter: str
    length: int  # tokens along one drafted path
    tree: Tree | None = None
    merged: Arm | None = None  # a chain of another drafter, which shares the draft's verification

    def __post_init__(self) -> None:
        require_type(isinstance(self.drafter, str), f"an arm's drafter is its name, not {self.drafter!r}")
        require_type(is_whole(self.length), f"an arm's length is a whole number, not {self.length!r}")
        shaped = self.tree is None or isinstance(self.tree, Tree)
        require_type(shaped, f"an arm's tree is a wager.core.Tree, not {self.tree!r}; Tree.parse('4x16') reads one")
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
        if self.merged is not None:
            self._check_merged(self.merged)

    def _check_merged(self, merged: Arm) -> None:
        require_type(isinstance(merged, Arm), f"what is merged into an arm's draft is a wager.core.Arm, not {merged!r}")
        chain = merged.length > 0 and merged.tree is None and merged.merged is None
        if not chain or self.length == 0 or merged.drafter == self.drafter:
            raise ValueError(f"a chain of another drafter can be merged into a draft, not {merged} into {self.alone}")

    def __str__(self) -> str:
        if self.length == 0:
            return "off"
        own = f"{self.drafter}:{self.length}" + (f"@{self.tree}" if self.tree else "")
        return own if self.merged is None else f"{own}+{self.merged}"

    @property
    def budget(self) -> int:
        """Most draft tokens one request sends to verification."""
        own = self.tree.nodes if self.tree else self.length
        return own if self.merged is None else own + self.merged.length

    @property
    def alone(self) -> Arm:
        """The arm without what is merged into its draft."""
        return self if self.merged is None else known_arm(self.drafter, self.length, self.tree)

    @property
    def label(self) -> str:
        """The arm to count rounds by: of what is merged into its draft, which differs in length, the drafter alone."""
        return str(self) if self.merged is None else f"{self.alone}+{self.merged.drafter}"

    @property
    def deepest(self) -> int:
        """Most tokens one request may have accepted."""
        return self.length if self.merged is None else max(self.length, self.merged.length)

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Read an arm back from how it is written."""
        require_type(isinstance(text, str), f"an arm is written as a text such as 'suffix:4', not {text!r}")
        if text == "off":
            return OFF
        text, plus, other = text.partition("+")
        body, at, shape = text.partition("@")
        drafter, _, length = body.rpartition(":")
        if not drafter or not length.isdecimal() or (at and not shape) or (plus and not other):
            raise ValueError(f"{text!r} is not an arm; write 'off', 'drafter:length' or 'drafter:length@BREADTHxNODES'")
        tree, merged = Tree.parse(shape) if shape else None, cls.parse(other) if other else None
        return cls(drafter, int(length), tree, merged)


@lru_cache(maxsize=1024)
def known_arm(drafter: str, length: int, tree: Tree | None = None, merged: Arm | None = None) -> Arm:
    """The same arm as before, if it was made already: checking it takes a part of what choosing it does."""
    return Arm(drafter, length, tree, merged)


OFF = Arm("off", 0)
"""Plain decoding: nothing drafted, one token a round."""
