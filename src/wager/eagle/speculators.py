"""Writes an EAGLE-3 head in the format of the library ``speculators``, which vLLM loads as an ``eagle3`` drafter."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from wager.eagle.formats import EAGLE3, LAYER, LAYER_IDS, SPECULATORS, default_layers
from wager.eagle.weights_file import WEIGHTS

VERSION = "0.3.0"  # of the format
LENGTH = 5  # tokens drafted by an engine that is started with the folder and nothing else


def write(
    folder: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    notes: Mapping[str, Any],
    drafted: Sequence[int] = (),
) -> None:
    """Write a head: ``config`` holds a Llama's shape and rotary settings, ``notes`` its target and whatever else.

    ``drafted`` are the tokens of its LM head's rows, in ascending order; none: it has the target's LM head. It reads
    the target after the layers that are usual for the ``depth`` in its notes.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    layer = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config, "num_hidden_layers": 1}
    if isinstance(rope := config.get("rope_parameters"), Mapping) and "rope_theta" in rope:
        layer["rope_theta"] = rope["rope_theta"]  # where readers of the format look for it
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if drafted:
        ids = torch.tensor(drafted, dtype=torch.long)
        held["d2t"] = ids - torch.arange(len(ids))
        held["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
    layers = list(default_layers(int(notes["depth"])))
    content = {
        "architectures": ["Eagle3Speculator"],
        SPECULATORS: EAGLE3,
        "speculators_version": VERSION,
        "speculators_config": _proposals(str(notes.get("target", ""))),
        "draft_vocab_size": len(drafted) or config["vocab_size"],
        "norm_before_residual": True,
        "target_hidden_size": None,
        LAYER_IDS: layers,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        LAYER: layer,
        "wager": {"kind": EAGLE3, **notes},
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(held, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors leaves 0600, and a folder may be shared


def _proposals(target: str) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": LENGTH, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": target, "architectures": ["LlamaForCausalLM"]}
    return {
        "algorithm": EAGLE3,
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": verifier,
    }
