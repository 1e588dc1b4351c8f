"""An EAGLE head's folder: what is in it, and what is refused.

``config.json`` is a Llama's, of one layer, with wager's own notes under ``wager``; ``model.safetensors`` holds the
layer and ``fc``; the embedding and the output head are the target's. That is what vLLM loads as an ``eagle`` drafter.
``frequent.safetensors`` may hold the tokens worth drafting; vLLM leaves it alone, as the index does not name it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wager.core import files
from wager.core.require import require
from wager.models.llama_shape import STEADY_ROPES, head_size
from wager.models.resolve import one_sentence

WEIGHTS, INDEX, FREQUENT = "model.safetensors", "model.safetensors.index.json", "frequent.safetensors"
FREQUENT_IDS = "frequent.ids"
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
BORROWED = ("embed_tokens.weight",)  # of the target: what the file has of it is left there


@dataclass(slots=True)
class Checkpoint:
    """A head as it lies in its folder, checked."""

    folder: Path
    config: Any  # a LlamaConfig
    notes: dict[str, Any]  # under "wager" in config.json
    tensors: dict[str, torch.Tensor]
    frequent: torch.Tensor | None  # (tokens,) ids, int64; None: all tokens


def read(folder: str | Path) -> Checkpoint:
    """The head in this folder; ValueError with one sentence where it is none."""
    folder = Path(folder).expanduser()
    content = read_config(folder)
    notes = content.get("wager", {})
    _require(isinstance(notes, dict), folder, "has no mapping under 'wager' in config.json; train or download it again")
    config = _config(folder, content)
    tensors, wanted = _tensors(folder), shapes(config)
    for name, shape in wanted.items():
        _require(name in tensors, folder, f"has no tensor {name}; it is none of EAGLE's, or incomplete")
        theirs, dtype = tuple(tensors[name].shape), tensors[name].dtype
        _require(theirs == shape, folder, f"has {name} of shape {theirs} where its config.json says {shape}")
        _require(dtype.is_floating_point, folder, f"has {name} in {dtype}; wager runs unquantized heads")
    more = sorted(tensors.keys() - wanted.keys() - set(BORROWED))
    _require(not more, folder, f"has a tensor {''.join(more[:1])}, which wager would leave out; it is another kind")
    frequent = _frequent(folder, notes.get("frequent", 0), config.vocab_size)
    return Checkpoint(folder, config, notes, {name: tensors[name] for name in wanted}, frequent)


def write(
    folder: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    notes: Mapping[str, Any],
    frequent: Iterable[int] = (),
) -> None:
    """Write a head: ``config`` holds a Llama's shape and rotary settings, ``notes`` whatever there is to say of it."""
    from safetensors.torch import save_file

    folder, ids = Path(folder), list(frequent)
    folder.mkdir(parents=True, exist_ok=True)
    as_llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    content = {**as_llama, **config, "num_hidden_layers": 1}
    content["wager"] = {"kind": "eagle", "frequent": len(ids), **notes}
    index = {"metadata": {}, "weight_map": dict.fromkeys(sorted(tensors), WEIGHTS)}
    for name, written in (("config.json", content), (INDEX, index)):
        (folder / name).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    if ids:
        save_file({FREQUENT_IDS: torch.tensor(ids, dtype=torch.int32)}, folder / FREQUENT)
    else:
        (folder / FREQUENT).unlink(missing_ok=True)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors leaves 0600, and a folder may be shared


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Every tensor a head has, and its shape."""
    hidden, inner, size = config.hidden_size, config.intermediate_size, head_size(config)
    heads, num_kv_heads = config.num_attention_heads * size, config.num_key_value_heads * size
    return {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (heads, hidden),
        "layers.0.self_attn.k_proj.weight": (num_kv_heads, hidden),
        "layers.0.self_attn.v_proj.weight": (num_kv_heads, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, heads),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
        "layers.0.post_attention_layernorm.weight": (hidden,),
    }


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says."""
    require(folder.is_dir(), f"no folder {folder} with an EAGLE head; give one with config.json and {WEIGHTS}")
    path = folder / "config.json"
    require(path.is_file(), f"the folder {folder} has no config.json, so there is no EAGLE head in it")
    with one_sentence(f"cannot read config.json of the head in {folder}"):
        content: dict[str, Any] = files.read_json(path)
    return content


def _config(folder: Path, content: Mapping[str, Any]) -> Any:
    from transformers import LlamaConfig

    for key in NEEDED:
        if not isinstance(content.get(key), int) or content[key] < 1:
            raise ValueError(f"config.json of the head in {folder} has {key} {content.get(key)!r}; it is 1 or more")
    layers, instead = content["num_hidden_layers"], "an EAGLE head has one (a whole model drafts as draft-model=MODEL)"
    require(layers == 1, f"{folder} holds a model of {layers} layers; {instead}")
    with one_sentence(f"config.json of the head in {folder} is no Llama's"):
        config: Any = LlamaConfig(**{key: value for key, value in content.items() if key != "wager"})
        rope = config.rope_parameters["rope_type"]
    act, covered = config.hidden_act, f"{', '.join(STEADY_ROPES)} and 'silu'"
    runs = rope in STEADY_ROPES and act == "silu"
    _require(runs, folder, f"has rotary type {rope!r} and activation {act!r}; wager runs {covered}")
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    _require(heads % keys == 0, folder, f"has {heads} attention heads, which is no multiple of its {keys} of keys")
    return config


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder, from one file or from shards."""
    if (folder / WEIGHTS).is_file():
        return _load(folder / WEIGHTS)
    _require((folder / INDEX).is_file(), folder, f"has no {WEIGHTS}; train or download it again")
    with one_sentence(f"cannot read {INDEX} of the head in {folder}"):
        shards = sorted(set(files.read_json(folder / INDEX)["weight_map"].values()))
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        _require((folder / shard).is_file(), folder, f"lacks its shard {shard}; download it again")
        tensors |= _load(folder / shard)
    return tensors


def _load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    with one_sentence(f"cannot read {path}, so download it or train it again"):
        loaded: dict[str, torch.Tensor] = load_file(path)
    return loaded


def _frequent(folder: Path, count: int, vocabulary: int) -> torch.Tensor | None:
    if not count:
        return None
    path = folder / FREQUENT
    _require(path.is_file(), folder, f"drafts {count:,} frequent tokens but has no {FREQUENT} to say which")
    ids = _load(path).get(FREQUENT_IDS)
    if ids is None or ids.dim() != 1 or len(ids) != count:
        raise ValueError(f"{path} does not hold the {count:,} ids that config.json tells of; train the head again")
    ids = ids.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(set(ids.tolist())) != len(ids):
        raise ValueError(f"{path} holds ids that are not different tokens below {vocabulary:,}; train the head again")
    return ids


def _require(ok: bool, folder: Path, what: str) -> None:
    require(ok, f"the head in {folder} {what}")
