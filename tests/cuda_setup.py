"""A tiny model on a CUDA device."""

from __future__ import annotations

from typing import Any

import torch


def tiny(kind: str = "Llama", *, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 6}
    sizes = {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 4096}
    config = getattr(transformers, f"{kind}Config")(**{**shape, **sizes, **more})
    return getattr(transformers, f"{kind}ForCausalLM")(config).to("cuda", dtype).eval()
