"""A smaller model of the same vocabulary drafts."""

from collections.abc import Hashable, Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch

from wager.core import Hint
from wager.core.require import require
from wager.core.round import MOST_SCORED
from wager.drafters.base import Draft, Drafter, DraftSampler
from wager.drafters.cards import read_card
from wager.models.runner import CHUNK, WIDEST_TREE
from wager.models.select import runner
from wager.models.unwrap import unwrapped

SINKS = 4  # first tokens that a bounded view keeps: attention rests on them (StreamingLLM)
PADDING = 1024  # tables of one vocabulary are padded to different sizes, by no more than this


class DraftModel(Drafter):
    """Drafts with a smaller causal language model, its cache kept from round to round.

    It reads the text only when ``propose`` is called: what it has to read first is its lag. With a ``window`` it sees
    the first few and at least the last so many tokens, so that neither its cache nor its lag grows with the text.
    """

    cheap: ClassVar[bool] = False
    reads: ClassVar[bool] = True

    def __init__(self, model: Any, name: str = "draft-model", *, window: int = 0) -> None:
        require(window >= 0, f"a window has 1 token or more, or is 0 for all of them, not {window}")
        self.name, self.window = name, window
        self.card = read_card(getattr(getattr(model, "config", None), "wager", None))
        self.runner = runner(unwrapped(model))
        self.runner.warm(range(1, WIDEST_TREE + 1))  # of one token, and of catching up on any number
        self.vocabulary = self.runner.vocabulary  # of the target: logits are cut or padded to it
        self.text: list[int] = []
        self.view: list[int] = []  # what it sees of the text
        self.fed: list[int] = []  # tokens in the cache
        self._drafting, self._missed = False, 0
        self._step_seconds = 0.0  # of one token, the last time it was timed

    def fit(self, vocabulary: int) -> None:
        if abs(vocabulary - (ours := self.runner.vocabulary)) > PADDING:
            sizes = f"the draft model has a vocabulary of {ours:,} tokens and the target one of {vocabulary:,}"
            other = "one with a tokenizer of its own, named as draft-model=MODEL"
            raise ValueError(f"{sizes}; choose a draft model of the target's family, or {other}")
        self.vocabulary = vocabulary

    def begin(self, prompt: Sequence[int]) -> None:
        self.text, self.view = list(prompt), list(prompt)
        self.fed = []
        self._drafting = False  # whether the next tokens are those of a round it drafts in
        self._missed = len(prompt)  # the first token that it has not read, and did not draft for
        self.scores = ()
        self.runner.begin()

    def extend(self, tokens: Sequence[int]) -> None:
        start = len(self.view)
        self.text += tokens
        if self._drafting:
            self._missed, self._drafting = len(self.text), False
        self.view += tokens
        # What it drafted and fed stays in the cache as far as it came true; the last token is always left to be read.
        kept = start
        while kept < min(len(self.fed), len(self.view) - 1) and self.fed[kept] == self.view[kept]:
            kept += 1
        if kept < len(self.fed):
            del self.fed[kept:]
            self.runner.crop(kept)

    def rewrite(self, text: Sequence[int]) -> None:
        """The text is this one now; what its cache holds of it, up to the first difference, stays."""
        self.text, self.view = list(text), list(text)
        kept = 0
        while kept < min(len(self.fed), len(self.view) - 1) and self.fed[kept] == self.view[kept]:
            kept += 1
        del self.fed[kept:]
        self.runner.crop(kept)

    @property
    def size(self) -> Hashable:
        model = self.runner.model
        weights = [(name, tuple(w.shape), w.dtype, w.device) for name, w in model.named_parameters()]
        active = getattr(model.config, "num_experts_per_tok", None)
        return type(self.runner), self.window, active, tuple(weights)

    @property
    def lag(self) -> int:
        self._let_go()
        return max(0, len(self.view) - len(self.fed) - 1)

    @property
    def memory(self) -> int:
        """Bytes of its weights and its cache."""
        cache = self.runner.cache
        held = [tensor for layer in getattr(cache, "layers", ()) for tensor in (layer.keys, layer.values)] or [cache]
        return sum(getattr(tensor, "nbytes", 0) for tensor in (*self.runner.model.parameters(), *held))

    def _let_go(self) -> None:
        """Leave out what lies between the first few tokens and the window, once it is as long as the window."""
        unread = len(self.view) - len(self.fed)
        if self.window and (len(self.view) >= SINKS + 2 * self.window or unread > SINKS + self.window):
            self.view = self.view[:SINKS] + self.view[-self.window :]
            kept = min(len(self.fed), SINKS)
            del self.fed[kept:]
            self.runner.crop(kept)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        self._let_go()
        length = min(length, self.runner.limit - len(self.view))
        feed = self.view[len(self.fed) :]
        if length < 1 or max(feed) >= self.runner.vocabulary:  # no room, or a token its smaller table does not hold
            return Draft()
        lag = self.lag
        self._drafting = True
        tokens: list[int] = []
        rows: list[torch.Tensor] = []  # what each is drawn from; its logits where none is drawn
        first_seconds = 0.0
        began = perf_counter()
        for at in range(length):
            logits = self._fit(self._forward(feed) if at == 0 else self.runner.prefill(feed)[0])
            self.fed += feed
            if sample is None:
                token, row = int(logits.argmax()), logits.clone()  # the next forward may overwrite it
            else:
                token, row = sample(self.text + tokens, logits)
            tokens.append(token)
            rows.append(row)
            feed = [token]
            if at == 0:
                self.runner.settle()
                first_seconds = perf_counter() - began
        if length > 1:
            self._step_seconds = (perf_counter() - began - first_seconds) / (length - 1)
        # One token always has to be read, so only what reading the others added is lag. A single token of it is
        # every round's that kept its whole draft, and goes along with the next for nothing.
        paid = max(0.0, first_seconds - self._step_seconds) if lag > 1 and self._step_seconds else 0.0
        if sample is None:
            return Draft(tokens, lag=lag, lag_seconds=paid, raw=lambda at: torch.stack([rows[i] for i in at]))
        sure = tuple(min(1.0, float(q[token])) for q, token in zip(rows, tokens, strict=True))
        return Draft(tokens, Hint(confidence=sure), torch.stack(rows), lag, paid)

    def read(self) -> None:
        self._let_go()
        feed = self.view[len(self.fed) : -1]  # the last token is always left to be read
        if feed and len(self.view) <= self.runner.limit and max(feed) < self.runner.vocabulary:
            self._forward(feed, self.view[-1:])
            self.fed += feed
            self.runner.settle()

    def _forward(self, feed: list[int], after: Sequence[int] = ()) -> torch.Tensor:
        """Logits after the last of these tokens of the text, (vocabulary,); what it predicts at those it missed is
        scored. ``after`` are the tokens that the text has after them."""
        known = feed[1:] + list(after)
        missed = len(self.text) if self.scorer is None else max(self._missed, self.scorer.begins)
        count = max(0, min(len(known), len(self.text) - missed, MOST_SCORED))
        self._missed = len(self.text)
        if self.scorer is None or not count:
            last: torch.Tensor = self.runner.prefill(feed)[0]
            return last
        rows = count + (not after)  # the last one predicts what is not known yet
        if len(feed) > CHUNK:
            self.runner.prefill(feed[:-CHUNK])
        logits: torch.Tensor = self.runner.forward(feed[-CHUNK:], rows)
        told, first = logits[:count], len(self.text) - count
        if self.scorer.samples:
            found = self.scorer.overlap(torch.stack([self._fit(row) for row in told]), first)
        else:
            found = self.scorer.hits(told.argmax(-1).tolist(), first)
        self.scores += tuple(found)
        return logits[-1]

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary: tables padded to different sizes hold the same tokens."""
        missing = self.vocabulary - logits.shape[-1]
        if missing <= 0:
            return logits[: self.vocabulary]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
