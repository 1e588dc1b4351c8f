"""The formats in which EAGLE heads are published, told from ``config.json``; needs no torch.

EAGLE and EAGLE-2 heads, as their authors publish them, have the ``config.json`` of a Llama of one layer. EAGLE-3 heads
come as their authors publish them, the same with ``draft_vocab_size`` and an architecture of their own, and as the
library ``speculators`` writes them, where the layer's settings are under ``transformer_layer_config``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EAGLE, EAGLE3 = "eagle", "eagle3"
SPECULATORS = "speculators_model_type"  # the key by which its format is told
LAYER = "transformer_layer_config"
SHAPES = ("llama", "qwen3")  # model types of heads that wager runs
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class Eagle3:
    """What the configuration of an EAGLE-3 head says beside its layer's shape."""

    layers: tuple[int, ...] = ()  # it reads the target after so many layers each; empty: see ``default_layers``
    target_hidden: int = 0  # the target's hidden size
    draft_vocabulary: int = 0  # tokens it drafts
    norm_before_residual: bool = False  # whether the residual is the normed feature
    norm_before_fc: bool = False  # whether all states together are normed
    fc_norm: bool = False  # whether every state is normed by itself
    norm_output: bool = False  # whether the normed output, not the output, goes on as the next feature


def default_layers(count: int) -> tuple[int, ...]:
    """After how many layers a target of so many is read where the head does not say; as vLLM has it."""
    return 2, count // 2, count - 3


def kind_of(content: Mapping[str, Any]) -> str:
    """Which kind of head a ``config.json`` belongs to, as far as it says."""
    architectures = content.get("architectures")
    named = isinstance(architectures, list) and any("Eagle3" in str(name) for name in architectures)
    third = named or content.get(SPECULATORS) == EAGLE3 or content.get("draft_vocab_size") is not None
    return EAGLE3 if third else EAGLE


def layer_of(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a ``config.json`` that describes the head's layer, as a Llama's does."""
    layer = content.get(LAYER)
    return layer if SPECULATORS in content and isinstance(layer, dict) else content


def unknown_format(content: Mapping[str, Any]) -> str:
    """Why a head is none of these formats, to come after its name; empty if it is."""
    kind, layer = content.get(SPECULATORS), content.get(LAYER)
    if kind is not None and kind != EAGLE3:
        return f"is a speculator of the kind {kind!r}; wager runs those of the kind {EAGLE3!r}"
    if kind is not None and not isinstance(layer, dict):
        return f"has no mapping under {LAYER!r} in config.json; download it again"
    shape = layer_of(content).get("model_type", SHAPES[0])
    if shape not in SHAPES and kind_of(content) == EAGLE3:
        return f"has a layer of the type {shape!r}; wager runs {' and '.join(SHAPES)}"
    inner = content.get("eagle_config")
    if isinstance(inner, dict) and inner.get("use_aux_hidden_state") is False:
        return "reads only the target's last state (use_aux_hidden_state); wager runs EAGLE-3 heads that read several"
    return ""


def eagle3_of(content: Mapping[str, Any]) -> Eagle3:
    """The settings of an EAGLE-3 head; ValueError, to come after its name, where they cannot be meant."""
    own = content.get("eagle_config")
    inner: Mapping[str, Any] = own if isinstance(own, dict) else {}
    layer, published = layer_of(content), SPECULATORS in content
    layers = content.get(LAYER_IDS) or inner.get(LAYER_IDS) or inner.get("layer_ids") or ()
    if not isinstance(layers, list | tuple) or not all(isinstance(one, int) for one in layers):
        raise ValueError(f"has {LAYER_IDS} {layers!r}; it is a list of numbers")
    if len(set(layers)) != len(layers):
        raise ValueError(f"has {LAYER_IDS} {list(layers)}, where one is twice; download it again")

    def flag(name: str, default: bool = False) -> bool:
        return bool(inner.get(name, content.get(name, default)))

    return Eagle3(
        tuple(sorted(layers)),  # in whichever order they are written, the target is read from its first layer on
        content.get("target_hidden_size") or layer["hidden_size"],
        content.get("draft_vocab_size") or layer["vocab_size"],
        bool(content.get("norm_before_residual", published)),
        *(flag(name) for name in ("norm_before_fc", "fc_norm", "norm_output")),
    )
