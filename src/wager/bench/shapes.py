"""Targets of given shapes with random weights, and heads for them: their rounds take the time of real ones."""

from pathlib import Path
from typing import Any

import torch

from wager.core.require import require
from wager.eagle import checkpoint

# Shapes by name: hidden, intermediate, layers, heads, KV heads, vocabulary.
SHAPES = {
    "135m": (576, 1536, 30, 9, 3, 49152),  # SmolLM2-135M
    "1b": (2048, 5632, 22, 32, 4, 32000),  # TinyLlama-1.1B
    "8b": (4096, 14336, 32, 32, 8, 128256),  # Llama 3 8B
}
# Families that run through transformers' own forward, about 160 million parameters each.
FAMILIES: dict[str, dict[str, int]] = {
    "gpt_neox": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "opt": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072},
    "stablelm": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
                 "num_key_value_heads": 12},
}  # fmt: skip
POSITIONS = 4096
SHARED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")


def random_target(shape: str, dtype: torch.dtype, device: str) -> Any:
    """A Llama of this shape, its weights made on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    require(shape in SHAPES, f"unknown shape {shape!r}; choose from {', '.join(SHAPES)}")
    hidden, inner, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocabulary, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    with torch.device(device):
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return made.eval()


def random_family(family: str) -> Any:
    """A model of a family that has no forward of wager's, in float32 on the CPU; its texts have no end."""
    from transformers import AutoConfig, AutoModelForCausalLM

    require(family in FAMILIES, f"unknown family {family!r}; choose from {', '.join(FAMILIES)}")
    config = AutoConfig.for_model(family, vocab_size=32000, max_position_embeddings=2048, **FAMILIES[family])
    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    made.generation_config.eos_token_id = None
    return made


def random_head(folder: Path, model: Any) -> Path:
    """A head for the target with random weights, written to a folder."""
    own = model.config
    sizes = {name: getattr(own, name) for name in SHARED} | {"num_hidden_layers": 1, "rms_norm_eps": own.rms_norm_eps}
    config = type(own)(**sizes)
    shapes, weights = checkpoint.shapes(config), {}
    for name, shape in shapes.items():
        made = torch.randn(shape, device=model.device) * shape[-1] ** -0.5
        weights[name] = (made if len(shape) > 1 else torch.ones_like(made)).to(torch.bfloat16).cpu()
    checkpoint.write(folder, sizes, weights, {"target": "random weights"})
    return folder
