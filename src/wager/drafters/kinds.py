"""Which kind of text a prompt asks for, by its tokens: the kinds are the tasks on the cards of drafters.

Of each kind it is known how often prompts hold each token, all tokens in a few hundred classes: naive Bayes. Tokens of
one prompt are not independent, so no prompt counts for more than a few of them, and every kind stays possible.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # notes are read where numpy is not needed
    import numpy as np
    from numpy.typing import NDArray

CLASSES = 256  # of tokens
SPREAD = 2654435761  # neighbouring tokens fall into classes far apart
STEP = 1 / 16  # of the log odds that are kept, one signed byte each
SMOOTHING = 0.05  # of a kind's tokens, spread evenly over all classes
MOST = 32  # tokens that a prompt counts for
UNLIKE = 0.05  # probability that a prompt is like none of the kinds, so that each is as likely


class Kinds:
    """The kinds that are told apart."""

    def __init__(self, table: Mapping[str, bytes]) -> None:
        self.table = dict(table)  # kind -> of each class of tokens, the log odds beyond those of all kinds, in steps

    @cached_property
    def _odds(self) -> NDArray[np.float32]:
        import numpy as np

        return np.array([np.frombuffer(odds, np.int8) for odds in self.table.values()], dtype=np.float32) * STEP

    def chances(self, tokens: Sequence[int]) -> dict[str, float]:
        """How likely each kind is for a prompt of these tokens."""
        import numpy as np

        if not tokens:
            return {}
        known = self._odds[:, _classes(tokens)].mean(axis=1) * min(len(tokens), MOST)
        known = np.exp(known - known.max())
        shares = (1.0 - UNLIKE) * known / known.sum() + UNLIKE / len(self.table)
        return dict(zip(self.table, shares.tolist(), strict=True))

    def notes(self) -> dict[str, str]:
        """To be written down."""
        return {kind: b64encode(odds).decode() for kind, odds in self.table.items()}


def read_kinds(notes: object) -> Kinds | None:
    """What was written down; None where it cannot be read."""
    if not isinstance(notes, dict) or not notes:
        return None
    try:
        table = {str(kind): b64decode(text, validate=True) for kind, text in notes.items()}
    except (TypeError, ValueError):
        return None
    return Kinds(table) if all(len(odds) == CLASSES for odds in table.values()) else None


def made_of(prompts: Mapping[str, Iterable[Sequence[int]]]) -> Kinds:
    """Learned from prompts of each kind, every one counting alike."""
    import numpy as np

    each = {kind: [_shares(tokens) for tokens in own if len(tokens)] for kind, own in prompts.items()}
    if missing := [kind for kind, own in each.items() if not own]:
        raise ValueError(f"there is no prompt of the kind {missing[0]!r} to tell it by")
    means = np.array([np.mean(own, axis=0) for own in each.values()])
    logs = np.log((1.0 - SMOOTHING) * means + SMOOTHING / CLASSES)
    steps = np.clip(np.rint((logs - logs.mean(axis=0)) / STEP), -127, 127).astype(np.int8)
    return Kinds({kind: row.tobytes() for kind, row in zip(each, steps, strict=True)})


def _shares(tokens: Sequence[int]) -> NDArray[np.float64]:
    """Of a prompt's tokens, the share in each class."""
    import numpy as np

    shares: NDArray[np.float64] = np.bincount(_classes(tokens), minlength=CLASSES) / len(tokens)
    return shares


def _classes(tokens: Sequence[int]) -> NDArray[np.int64]:
    import numpy as np

    spread: NDArray[np.int64] = (np.asarray(tokens, dtype=np.int64) * SPREAD >> 8) % CLASSES
    return spread
