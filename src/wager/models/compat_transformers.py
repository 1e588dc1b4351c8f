"""Everything that goes by class names or private attributes of transformers: caches, processors, criteria."""

import inspect
from typing import Any

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
    """The streamer and the assistant model that ``generate`` was given and hands to no custom function."""
    from transformers import GenerationMixin

    frame, code = inspect.currentframe(), inspect.unwrap(GenerationMixin.generate).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else {name: frame.f_locals.get(name) for name in ("streamer", "assistant_model")}


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


def keeps_all(cache: Any) -> bool:
    """Whether a cache holds keys and values of all tokens, each at its place."""
    return all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)


def attention_of(config: Any) -> str:
    """The implementation of attention a model runs with."""
    return str(config._attn_implementation)


def llama_rotary(config: Any, device: Any) -> Any:
    """The module that makes a Llama's rotary tables."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(config).to(device)
