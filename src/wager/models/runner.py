"""A runner: one model, one stream, one forward at a time over a cache that can be cropped."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

CHUNK = 512  # tokens of a prompt that go through the model at once: bounds the memory of a long prefill
WIDEST_TREE = 64  # tokens a tree's forward has at most: their ancestors are the bits of one word

# How far two ways to the same logits may be apart, a root mean square in standard deviations of the logits: some times
# what a model's own differ by between two widths, and far below what any other arithmetic gives.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


class Runner(ABC):
    """Feeds tokens to a model and keeps its cache; what was fed too much is cropped, never recomputed."""

    vocabulary: int
    hidden: int  # numbers a token's features have
    limit: int  # most tokens the model can hold
    depth: int  # layers; 0: its configuration does not say
    device: torch.device
    before: int = 0  # tokens that were in the cache before the last forward
    watched: bool = False  # whether features are kept
    why_no_drafts: str = ""  # why drafts cannot be verified; empty if they can
    # (capacity, hidden): for each token in the cache what the model's head is applied to; empty if nobody watches
    features: torch.Tensor = torch.empty(0)
    # By number of layers: (capacity, hidden), what those layers make of each token in the cache; of watched ones only
    states: dict[int, torch.Tensor]

    def __init__(self, model: Any) -> None:
        self.states = {}
        self.vocabulary = vocabulary(model)
        named = getattr(model.config.get_text_config(), "hidden_size", None)
        self.hidden = int(named or model.get_input_embeddings().weight.shape[1])
        self.limit = context_limit(model)
        self.depth = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0) or 0)
        self.device = model.device
        self.length = 0  # tokens in the cache

    @property
    def trees(self) -> bool:
        """Whether drafts in trees can be verified: a forward then takes ``parents``."""
        return False

    @property
    def flat(self) -> bool:
        """Whether a forward of some dozens of tokens takes hardly longer than one of one token."""
        return False

    @property
    def ways(self) -> dict[str, list[str]]:
        """How each product is run at each calibrated width, as timed here; empty where there is one way only."""
        return {}

    @abstractmethod
    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        """Logits after each of the last ``keep`` tokens, (keep, vocabulary); the tokens join the cache.

        ``parents`` make a tree of them: the index of the token before each, -1 for the cache's last. A token sees the
        cache, its ancestors and itself. The tensor may be overwritten by the next call.
        """

    @abstractmethod
    def crop(self, length: int) -> None:
        """Forget every token after the first ``length``."""

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those at these indices, in order, and forget the others."""
        before, stay = self.before, 0
        while stay < len(path) and path[stay] == stay:
            stay += 1
        if stay < len(path):
            self._move([before + at for at in path[stay:]], before + stay)
        self.crop(before + len(path))

    def _move(self, places: list[int], to: int) -> None:
        """Put what the cache holds at these places behind one another, the first at ``to``."""
        raise ValueError(f"{type(self).__name__} keeps chains only")

    def watch(self, layers: Sequence[int] = ()) -> None:
        """Keep the features of every token from now on, or its states after so many layers.

        Tokens already in the cache have zeros.
        """
        raise ValueError(f"{type(self).__name__} shows no features; leave out drafters that need them")

    def _widen(self, capacity: int, dtype: torch.dtype) -> None:
        """Room for what is watched of so many tokens."""

        def grown(rows: torch.Tensor) -> torch.Tensor:
            known = min(len(rows), self.length)
            wider = torch.zeros((capacity, self.hidden), dtype=dtype, device=self.device)
            if known:
                wider[:known] = rows[:known]
            return wider

        if self.watched:
            self.features = grown(self.features)
        for layer, rows in self.states.items():
            self.states[layer] = grown(rows)

    def _move_watched(self, places: torch.Tensor, to: int) -> None:
        """Put what is watched of the tokens at these places behind one another, the first at ``to``."""
        for rows in ([self.features] if self.watched else []) + list(self.states.values()):
            rows[to : to + len(places)] = rows.index_select(0, places)

    @property
    def embed(self) -> torch.Tensor:
        """The table of input embeddings, (vocabulary, hidden)."""
        raise ValueError(f"{type(self).__name__} shows no embeddings; leave out drafters that need them")

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """The model's head on features (n, hidden): logits (n, vocabulary)."""
        raise ValueError(f"{type(self).__name__} shows no head; leave out drafters that need it")

    def begin(self) -> None:
        """Empty the cache for a new text."""
        self.crop(0)

    def restart(self) -> None:
        """The same where the model is known to be as it was."""
        self.begin()

    def settle(self) -> None:  # noqa: B027 - most caches can be cropped anywhere
        """What is in the cache now stays: only what comes after it may be cropped."""

    def warm(self, widths: Iterable[int]) -> None:  # noqa: B027 - nothing to prepare, as a rule
        """Prepare forwards of these widths, so that none of them is slow the first time."""

    def pack(self) -> None:  # noqa: B027 - most have nothing to copy
        """Prepare what only rounds need: called after a text's first token, which does not wait for it."""

    def prefill(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after the last of any number of tokens, (1, vocabulary)."""
        for at in range(0, len(tokens), CHUNK):
            logits = self.forward(tokens[at : at + CHUNK], 1)
        return logits

    def prefill_scored(self, tokens: Sequence[int]) -> tuple[torch.Tensor, float]:
        """As ``prefill``, and the tokens' perplexity, from the same forwards."""
        total = 0.0
        for at in range(0, len(tokens), CHUNK):
            chunk = tokens[at : at + CHUNK]
            logits = self.forward(chunk, len(chunk)).float()
            following = torch.tensor(tokens[at + 1 : at + 1 + CHUNK], dtype=torch.long, device=logits.device)
            total += float(cross_entropy(logits[: len(following)], following, reduction="sum"))
        return logits[-1:].clone(), math.exp(min(total / max(1, len(tokens) - 1), 700.0))


def ancestry(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Each token's depth, and the bits of its ancestors and itself in a word of 64, which may be negative."""
    if len(parents) > WIDEST_TREE:
        raise ValueError(f"a tree's forward has at most {WIDEST_TREE} tokens, not {len(parents)}")
    depths: list[int] = []
    words: list[int] = []
    for at, parent in enumerate(parents):
        if not -1 <= parent < at:
            raise ValueError(f"token {at} of a tree comes after one of those before it or -1, not {parent}")
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        # bit 63 is the sign
        words.append((words[parent] if parent >= 0 else 0) | (1 << at if at < 63 else -1 << 63))
    return depths, words


def seen(words: Sequence[int], device: torch.device) -> torch.Tensor:
    """Which of a tree's tokens each of them sees, (width, width), from the words of ``ancestry``."""
    width = len(words)
    bits = torch.tensor(words)[:, None] >> torch.arange(width)
    return (bits & 1).bool().to(device)


def check_layers(layers: Iterable[int], count: int) -> None:
    """Refuse layers whose states a model of so many layers does not have."""
    if beyond := sorted(layer for layer in layers if not 0 <= layer <= count):
        raise ValueError(f"the target has {count} layers, and the head reads it after layer {beyond[-1]}; take another")


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """How far two ways to the same logits are apart, as ``TOLERANCE`` has it."""
    return float((ours.float() - theirs.float()).square().mean().sqrt() / theirs.float().std())


def vocabulary(model: Any) -> int:
    """Tokens the model knows."""
    return int(model.get_input_embeddings().weight.shape[0])


def context_limit(model: Any) -> int:
    """Most tokens the model was made for; a very large number where its configuration does not say.

    Of one with LongRoPE those it was first trained for: beyond them every key is rotated otherwise, also those that are
    in the cache already.
    """
    config = model.config.get_text_config()
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in ropes.values() if "rope_type" not in ropes else (ropes,):
        if isinstance(rope, Mapping) and rope.get("rope_type") == "longrope":
            first = rope.get("original_max_position_embeddings")
            return int(first or getattr(config, "original_max_position_embeddings", None) or 1)
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return 1 << 30
