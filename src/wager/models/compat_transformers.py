"""Everything that goes by class names or private attributes of transformers: caches, processors, criteria."""

import copy
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CACHE_NAMES = ("past_key_values", "cache_params")  # what forwards call a cache

# Logits processors that look at each row of scores alone. The rest look at the text before them.
ROW_WISE = {"InfNanRemoveLogitsProcessor", "LogitNormalization", "SuppressTokensLogitsProcessor"} | {
    f"{kind}LogitsWarper" for kind in ("Temperature", "TopK", "TopP", "MinP", "TopH", "Typical", "Epsilon", "Eta")
}
REFUSED = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance runs the model a second time for every token",
    "SynthIDTextWatermarkLogitsProcessor": "it counts its calls, and drafts that are not kept would count",
}


def row_wise(processor: Any) -> bool:
    """Whether a logits processor looks at each row of scores alone, so that all positions go through at once."""
    return type(processor).__name__ in ROW_WISE


def refusal(processor: Any) -> str:
    """Why drafts cannot be verified under a logits processor; empty if they can."""
    return REFUSED.get(type(processor).__name__, "")


def temperature_of(processor: Any) -> float:
    """What a logits processor divides the scores by; 1 if it is none of temperature."""
    return float(processor.temperature) if type(processor).__name__ == "TemperatureLogitsWarper" else 1.0


def same_for_rows(one: Any) -> bool:
    """Whether a logits processor or stopping criterion treats all rows of a batch alike; of others than the library's
    own that is not known."""
    kind = type(one)
    own = {"PrefixConstrainedLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor"}
    own |= {"EncoderRepetitionPenaltyLogitsProcessor"}
    return kind.__module__.startswith("transformers.generation.") and kind.__name__ not in own


def times_generation(criterion: Any) -> bool:
    """Whether a stopping criterion counts seconds from when it was made."""
    return type(criterion).__name__ == "MaxTimeCriteria"


def end_tokens(criterion: Any) -> list[int] | None:
    """The tokens a stopping criterion ends a text at; None if it is of another kind."""
    ends = type(criterion).__name__ == "EosTokenCriteria"
    return [int(token) for token in criterion.eos_token_id.flatten()] if ends else None


def max_length_of(criterion: Any) -> int | None:
    """The tokens of prompt and text at which a stopping criterion ends it; None if it is of another kind."""
    return int(criterion.max_length) if type(criterion).__name__ == "MaxLengthCriteria" else None


def mask_length(generation_config: Any, default: int) -> int:
    """Length of an attention mask of ones that ``generate`` dropped before it called the custom function."""
    return int(getattr(generation_config, "_mask_length", default))


def pad_token(generation_config: Any) -> int:
    """What ``generate`` fills up the shorter texts of a batch with, as it worked it out."""
    token = getattr(generation_config, "_pad_token_tensor", None)
    return 0 if token is None else int(token)


def hidden_arguments() -> dict[str, Any]:
    """The streamer and the assistant model that ``generate`` was given and hands to no custom function, and the cache
    that it was given, which it does not tell from one that it made itself."""
    from transformers import GenerationMixin

    frame, code = inspect.currentframe(), inspect.unwrap(GenerationMixin.generate).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        return {}
    given = {name: frame.f_locals.get(name) for name in ("streamer", "assistant_model")}
    return given | {"past_key_values": frame.f_locals.get("kwargs", {}).get("past_key_values")}


def pass_tokenizer_to(function: Any) -> None:
    """Have ``generate`` keep the tokenizer it was given beside this custom function: stop strings need it."""
    from transformers import GenerationMixin

    original = getattr(GenerationMixin, "_extract_generation_mode_kwargs", None)
    if original is None:  # another version: it refuses stop strings itself, or passes the tokenizer on
        return

    @functools.wraps(original)
    def extracted(self: Any, custom_generate: Any, kwargs: dict[str, Any], *more: Any, **named: Any) -> dict[str, Any]:
        tokenizer = kwargs.get("tokenizer")
        found: dict[str, Any] = original(self, custom_generate, kwargs, *more, **named)
        if custom_generate is function and tokenizer is not None:
            found["tokenizer"] = tokenizer
        return found

    setattr(GenerationMixin, original.__name__, extracted)


def croppable(layer: Any) -> bool:
    """Whether a cache's layer can forget its last tokens."""
    # Quantized layers inherit a crop that knows nothing of what they packed away.
    return getattr(layer, "is_croppable", True) and "Quantized" not in type(layer).__name__


def record_past(cache: Any) -> None:
    """Tell a cache whose layers forget (sliding windows, linear attention) to keep what may have to be given back."""
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()


def forget_recorded(cache: Any) -> None:
    """Let layers that kept more than they need shrink back to their size."""
    for layer in cache.layers:
        if getattr(layer, "record_past", False):
            layer.crop(0)


def keeps_recent(cache: Any) -> bool:
    """Whether a cache holds keys and values of the last tokens, each at its place."""
    return all(type(layer).__name__ in ("DynamicLayer", "DynamicSlidingWindowLayer") for layer in cache.layers)


def well_known(cache: Any) -> bool:
    """Whether a cache's layers are of the library's own kinds, which keep keys, values and states of all tokens."""
    # Layers that choose some keys of a long text, or compress it, may do so otherwise for one token than for several,
    # and begin to only where a text is long.
    kinds = {type(layer) for layer in cache.layers}
    return all(kind.__module__ == "transformers.cache_utils" and "Indexed" not in kind.__name__ for kind in kinds)


@contextmanager
def small_windows(model: Any, tokens: int) -> Iterator[None]:
    """While this lasts, layers that see a window or chunk see one of so many tokens: a short trial reaches past it."""
    config = model.config.get_text_config()
    names = ("sliding_window", "attention_chunk_size")
    own = {name: size for name in names if isinstance(size := getattr(config, name, None), int)}
    try:
        for name in own:
            setattr(config, name, tokens)
        yield
    finally:
        for name, size in own.items():
            setattr(config, name, size)


def mask_length_of(cache: Any, layer: int, width: int) -> int:
    """Keys that this layer's attention sees in a forward of so many tokens."""
    return int(cache.get_mask_sizes(width, layer)[0])


def cache_name(model: Any) -> str:
    """What the model's forward calls its cache; empty if it takes none."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES if name in takes), "")


def new_cache(model: Any) -> Any:
    """An empty cache, as ``generate`` makes it."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def copied(cache: Any) -> Any:
    """A copy of a cache that goes on by itself."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    whole = copy.copy(cache)
    whole.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in whole.layers:
        # New keys and values are joined to the old ones in a new tensor; everything else is written in place.
        joined = getattr(type(layer), "update", None) in (DynamicLayer.update, DynamicSlidingWindowLayer.update)
        for name, held in vars(layer).items():
            if not (joined and name in ("keys", "values")):
                setattr(layer, name, _cloned(held))
    return whole


def _cloned(held: Any) -> Any:
    """The same with tensors of its own."""
    if isinstance(held, torch.Tensor):
        return held.clone()
    if isinstance(held, dict):
        return {name: _cloned(one) for name, one in held.items()}
    return type(held)(map(_cloned, held)) if type(held) in (list, tuple) else held


def generation_step(
    model: Any, ids: torch.Tensor, new: int, inputs: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """One step of ``generate``: logits (1, tokens, vocabulary), and what the next step is given."""
    first = not inputs
    if first:
        inputs = {"use_cache": True}
        if model._supports_default_dynamic_cache():
            inputs[cache_name(model)] = new_cache(model)
        if "position_ids" in inspect.signature(model.forward).parameters:
            inputs["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None]
    given = model.prepare_inputs_for_generation(
        ids, next_sequence_length=None if first else new, is_first_iteration=first, **inputs
    )
    out = model(**given, return_dict=True)
    return out.logits, model._update_model_kwargs_for_generation(out, inputs)


def attention_of(config: Any) -> str:
    """The implementation of attention a model runs with."""
    return str(config._attn_implementation)


def llama_rotary(config: Any, device: Any) -> Any:
    """The module that makes a Llama's rotary tables."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(config).to(device)
