"""A draft model of another vocabulary: it drafts text, which is tokenized again for the target.

transformers calls this universal assisted decoding. The target's text is decoded and encoded with the draft model's
tokenizer, the draft model goes on from there, and what it adds is encoded with the target's. Tokens that come out
differently than the target would choose them are not accepted; the text itself cannot change.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from wager.drafters.base import Draft, Drafter, DraftSampler
from wager.drafters.draft_model import DraftModel

TAIL = 8  # tokens of the text that are tokenized again with what follows: they may belong together
FINEST = 3.0  # most tokens that are drafted for one of the target's
BROKEN = "\ufffd"  # what an incomplete character is decoded to


class UniversalDraftModel(Drafter):
    """Drafts with a smaller model of any vocabulary, by way of the text.

    The likeliest text is drafted, also where the target is sampled. All of the text is tokenized in every draft, which
    takes milliseconds for some thousand tokens.
    """

    cheap: ClassVar[bool] = False

    def __init__(self, model: Any, tokenizer: Any, target_tokenizer: Any, name: str = "draft-model") -> None:
        self.name = name
        self.tokenizer, self.target_tokenizer = tokenizer, target_tokenizer
        self.drafter = DraftModel(model)
        self.runner = self.drafter.runner
        self._vocabulary = len(target_tokenizer)  # tokens of the target
        self.begin(())

    def fit(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self._known = 0  # tokens of the text when it last drafted
        self.drafter.begin(())

    def extend(self, tokens: Sequence[int]) -> None:
        self._text += tokens

    @property
    def lag(self) -> int:
        """Tokens of the text, as the target counts them, that were added since it last drafted."""
        return max(0, len(self._text) - self._known - 1)

    @property
    def memory(self) -> int:
        return self.drafter.memory

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        text = self._decoded(self.target_tokenizer, self._text)
        ids = self._encoded(self.tokenizer, text)
        if length < 1 or not ids or text.endswith(BROKEN):  # an incomplete character cannot be gone on with
            return Draft()
        lag = self.lag
        self.drafter.rewrite(ids)
        finer = min(FINEST, len(ids) / len(self._text))  # its tokens for one of the target's
        made = self.drafter.propose(math.ceil(length * finer))
        self._known = len(self._text)
        special = set(self.tokenizer.all_special_ids)
        end = next((at for at, token in enumerate(made.tokens) if token in special), len(made.tokens))
        before, after = (self._decoded(self.tokenizer, part) for part in (ids, ids + made.tokens[:end]))
        tokens = self._continued(after[len(before) :].rstrip(BROKEN)) if after.startswith(before) else []
        # Certain, for what was drawn in another vocabulary has no probability in this one.
        return Draft(tokens[:length], lag=lag, lag_seconds=made.lag_seconds)

    def _continued(self, text: str) -> list[int]:
        """The target's tokens for what follows its text, up to the first that it does not have."""
        tail = self._text[-TAIL:]
        words = self._decoded(self.target_tokenizer, tail)
        joined, alone = (self._encoded(self.target_tokenizer, part) for part in (words + text, words))
        begun = next((part for part in (tail, alone) if joined[: len(part)] == part), None)
        tokens = self._encoded(self.target_tokenizer, text) if begun is None else joined[len(begun) :]
        return tokens[: next((at for at, token in enumerate(tokens) if token >= self._vocabulary), len(tokens))]

    @staticmethod
    def _decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @staticmethod
    def _encoded(tokenizer: Any, text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids
