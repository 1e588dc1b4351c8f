"""Trained drafters as folders: safetensors and config.json, which wager and vLLM both load."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wager.eagle import checkpoint
from wager.training.answers import Text
from wager.training.config import Drafter


def head_config(target: Any) -> Any:
    """A Llama configuration of one layer, in the target's sizes."""
    config = target.config
    return _llama(
        target,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        rope_parameters=dict(config.rope_parameters),
    )


def small_config(target: Any, drafter: Drafter) -> Any:
    """A small Llama of the target's vocabulary."""
    return _llama(
        target,
        hidden_size=drafter.hidden,
        intermediate_size=drafter.intermediate,
        num_hidden_layers=drafter.layers,
        num_attention_heads=drafter.heads,
        num_key_value_heads=drafter.heads,
        head_dim=drafter.hidden // drafter.heads,
    )


def _llama(target: Any, **shape: Any) -> Any:
    """A Llama of this shape that reads and writes what the target does."""
    from transformers import LlamaConfig

    config = target.config
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=True,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        dtype="bfloat16",
        **shape,
    )


def frequent(texts: Sequence[Text], count: int) -> np.ndarray:
    """The tokens that occur most often in the answers, sorted; fewer where there are not so many."""
    seen: Counter[int] = Counter()
    for text in texts:
        tokens, times = np.unique(text.tokens[text.prompt :], return_counts=True)
        seen.update(dict(zip(tokens.tolist(), times.tolist(), strict=True)))
    return np.array(sorted(token for token, _ in seen.most_common(count)), dtype=np.int32)


def _terse(config: Any) -> dict[str, Any]:
    """A configuration without what every configuration has and no Llama needs."""
    left_out = {"_name_or_path", "id2label", "label2id", "problem_type", "return_dict", "chunk_size_feed_forward"}
    known = {k: v for k, v in config.to_dict().items() if k not in left_out and v is not None}
    return {k: v for k, v in known.items() if not k.startswith(("output_", "is_encoder", "transformers_"))}


def save(
    folder: Path,
    drafter: Drafter,
    weights: Mapping[str, torch.Tensor],
    config: Any,
    about: Mapping[str, Any],
    *,
    common: np.ndarray | None = None,
    tokenizer: Any = None,
) -> None:
    """Write the drafter beside where it belongs, then put it in its place, whole."""
    from safetensors.torch import save_file

    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in weights.items() if k != "lm_head.weight"}  # tied
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        if drafter.kind == "eagle":
            checkpoint.write(making, _terse(config), tensors, about, [] if common is None else common.tolist())
        else:
            save_file(tensors, making / "model.safetensors", metadata={"format": "pt"})
            written = {**_terse(config), "wager": {"kind": "draft", **about}}
            (making / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            if tokenizer is not None:
                tokenizer.save_pretrained(making)
        if folder.exists():
            shutil.rmtree(folder)
        making.replace(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
