"""Any decoder-only model of transformers, through its own forward."""

import inspect
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from wager.models import compat_transformers as compat
from wager.models.runner import TOLERANCE, Runner, apart, check_layers
from wager.models.tree_mask import KINDS, layer_kinds, tree_inputs

log = logging.getLogger("wager")

MASKED = ("eager", "sdpa")  # implementations of attention that take a mask as it is given
SMALL_WINDOW = 5  # tokens that layers with a window see while a model is tried
TRIED = [5 + 29 * i for i in range(12)]  # tokens, before they are brought into the vocabulary
# Per model: the attention it was tried with, and whether it then gave what trees need.
_TREES: weakref.WeakKeyDictionary[Any, tuple[str, bool]] = weakref.WeakKeyDictionary()


class HFRunner(Runner):
    """Runs the model as transformers does, over transformers' own cache."""

    def __init__(self, model: Any, cache: Any = None, mask: torch.Tensor | None = None) -> None:
        super().__init__(model)
        self.model = model
        self.cache = cache
        self.mask = mask  # (1, prompt) of a padded prompt; None: nothing is padded
        takes = inspect.signature(model.forward).parameters
        self._keeps, self._positions = "logits_to_keep" in takes, "position_ids" in takes
        self._room = 0  # tokens whose features or states there is room for
        self._cache_name = compat.cache_name(model)
        self.temporary = False  # whether another runner could take over once the model is back to its usual shape
        if not self._cache_name:
            raise self._refusal("takes no cache")
        self.length = int(cache.get_seq_length()) if cache is not None else 0
        if cache is not None:
            self._prepare()

    def begin(self) -> None:
        self.cache, self.mask, self.length = compat.new_cache(self.model), None, 0
        self._prepare()

    def _prepare(self) -> None:
        """Refuse a cache that cannot be cropped; tell one that forgets to keep what it may have to give back."""
        kinds = {type(layer).__name__ for layer in self.cache.layers if not compat.croppable(layer)}
        if kinds:
            raise self._refusal(f"keeps a cache that cannot be cropped ({', '.join(sorted(kinds))})")
        compat.record_past(self.cache)

    def _refusal(self, why: str) -> ValueError:
        return ValueError(f"{type(self.model).__name__} {why}, so drafts cannot be taken back")

    @torch.no_grad()
    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        width = len(tokens)
        given: dict[str, Any] = {"logits_to_keep": keep} if self._keeps else {}
        if parents is not None:
            padding = None if self.mask is None else self.mask[0, : self.length] == 0
            given |= tree_inputs(self.model, self.cache, parents, self.length, padding)
        else:
            given |= self._chain(width)
        watching = self.watched or bool(self.states)
        if watching:
            given["output_hidden_states"] = True
        given[self._cache_name] = self.cache
        ids = torch.tensor([tokens], device=self.device)
        out = self.model(input_ids=ids, use_cache=True, return_dict=True, **given)
        self.before, self.length = self.length, self.length + width
        if watching:
            self._reserve(self.length)
            if self.watched:
                self.features[self.before : self.length] = out.hidden_states[-1][0]
            for layer, rows in self.states.items():
                rows[self.before : self.length] = out.hidden_states[layer][0]
        logits: torch.Tensor = out.logits[0, -keep:]
        return logits

    def _chain(self, width: int) -> dict[str, torch.Tensor]:
        """Mask and positions of the next tokens; not every model knows by itself how many came before."""
        start, end = self.length, self.length + width
        if self.mask is None:
            return {"position_ids": torch.arange(start, end, device=self.device)[None]} if self._positions else {}
        grown = max(0, end - self.mask.shape[1])
        mask = torch.cat((self.mask, self.mask.new_ones((1, grown))), dim=1)[:, :end]
        given = {"attention_mask": mask}
        if self._positions:
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -width:]
        return given

    def crop(self, length: int) -> None:
        if length < self.length:
            self.cache.crop(length - self.length)  # negative: so many tokens fewer
        elif self.length:
            compat.forget_recorded(self.cache)
        self.length = length

    @property
    def trees(self) -> bool:
        """Whether the model gives for a tree what it gives for each of its paths, over this cache; tried once."""
        config = self.model.config.get_text_config()
        how = compat.attention_of(config)
        if _TREES.get(self.model, ("", False))[0] != how:
            windowed = getattr(config, "window_size", None)  # of models that keep what lies outside of it in the cache
            # Where scores are scaled by a token's place in the cache, tokens of one depth would differ.
            scaled = getattr(config, "attn_temperature_tuning", False)
            known = not windowed and not scaled and set(layer_kinds(config)) <= KINDS
            with compat.small_windows(self.model, SMALL_WINDOW):
                _TREES[self.model] = how, known and self._positions and how in MASKED and self._try_tree()
        return _TREES[self.model][1] and (self.cache is None or compat.keeps_recent(self.cache))

    def _try_tree(self) -> bool:
        tokens = [token % self.vocabulary for token in TRIED]
        trial = HFRunner(self.model)
        trial.begin()
        if not compat.keeps_recent(trial.cache):
            return False
        trial.forward(tokens[:8], 1)
        try:
            tree = trial.forward([tokens[8], tokens[8], *tokens[9:12]], 5, [-1, -1, 1, 1, 3])
        except Exception as error:  # a forward of its own, which has no use for such a mask
            log.info("%s verifies no trees (%s: %s)", type(self.model).__name__, type(error).__name__, error)
            return False
        trial.keep([])
        path = trial.forward([tokens[8], *tokens[10:12]], 3)
        return apart(tree[[1, 3, 4]], path) <= TOLERANCE.get(self.model.dtype, 1e-4)

    def _move(self, places: list[int], to: int) -> None:
        end = to + len(places)
        for layer in self.cache.layers:
            for kept in (layer.keys, layer.values):  # (1, num_kv_heads, tokens, head), the last of all tokens
                gone = self.length - kept.shape[-2]
                found = kept.index_select(-2, torch.tensor(places, device=kept.device) - gone)
                kept[..., to - gone : end - gone, :] = found
        self._move_watched(torch.tensor(places, device=self.device), to)

    @torch.no_grad()
    def watch(self, layers: Sequence[int] = ()) -> None:
        if set(layers) <= self.states.keys() and (layers or self.watched):
            return
        ids = torch.tensor([[token % self.vocabulary for token in TRIED]], device=self.device)
        out = self.model(input_ids=ids, use_cache=False, output_hidden_states=True, return_dict=True)
        states = getattr(out, "hidden_states", None)
        head = self.model.get_output_embeddings()
        nearly = TOLERANCE.get(self.model.dtype, 1e-4)
        if layers:
            self._watch_layers(layers, states)
        elif not states or head is None or not apart(head(states[-1]), out.logits) <= nearly:
            hides = f"{type(self.model).__name__} does not show the features its head is applied to"
            raise ValueError(f"{hides}; leave out drafters that need them")
        else:
            self.watched, self.hidden = True, int(states[-1].shape[-1])
        self._room = 0
        self._reserve(max(1, self.length))

    def _watch_layers(self, layers: Sequence[int], states: Sequence[torch.Tensor] | None) -> None:
        count = self.depth
        check_layers(layers, count)
        # The last of transformers' hidden states has gone through the model's norm.
        if states is None or len(states) != count + 1 or count in layers:
            hides = f"{type(self.model).__name__} does not show its states after layers {', '.join(map(str, layers))}"
            raise ValueError(f"{hides}; leave out drafters that need them")
        self.hidden = int(states[0].shape[-1])
        self.states |= {layer: torch.empty(0) for layer in sorted(set(layers) - self.states.keys())}

    def _reserve(self, tokens: int) -> None:
        """Room for what is watched of so many tokens; growing copies it, at most once per doubling."""
        if tokens > self._room:
            self._room = max(256, 1 << (tokens - 1).bit_length())
            self._widen(self._room, self.model.dtype)

    @property
    def embed(self) -> torch.Tensor:
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight

    @torch.no_grad()
    def project(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model.get_output_embeddings()(x)
        return logits
