"""An EAGLE head's folder: what is in it, and what is refused.

Read are the formats of ``formats``; the tensors are then called as in the library ``speculators``: the layer
``layers.0``. Where ``config.json`` has wager's own notes under ``wager``, ``frequent.safetensors`` may hold the tokens
worth drafting; vLLM leaves it alone, as the index does not name it. What is written is EAGLE, which vLLM loads as an
``eagle`` drafter, or EAGLE-3 in the format of ``speculators``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wager.core import files
from wager.core.require import require
from wager.drafters.shipped import check_head
from wager.eagle.formats import EAGLE3, Eagle3, eagle3_of, kind_of, layer_of, unknown_format
from wager.eagle.weights_file import INDEX, WEIGHTS, load, read_tensors
from wager.models.llama_shape import STEADY_ROPES, head_size
from wager.models.resolve import one_sentence

FREQUENT = "frequent.safetensors"
FREQUENT_IDS = "frequent.ids"
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
EMBED, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
MAP = "d2t"  # the drafted token i is the target's token i + d2t[i]
LEFT_OUT = ("t2d", "rotary_emb.inv_freq")  # the same map from the other side, and what follows from config.json


@dataclass(slots=True)
class Checkpoint:
    """A head as it lies in its folder, checked."""

    folder: Path
    config: Any  # a LlamaConfig
    notes: dict[str, Any]  # under "wager" in config.json
    tensors: dict[str, torch.Tensor]
    frequent: torch.Tensor | None  # (tokens,) ids, int64; None: all tokens
    eagle3: Eagle3 | None = None  # None: it is EAGLE or EAGLE-2


def read(folder: str | Path) -> Checkpoint:
    """The head in this folder; ValueError with one sentence where it is none."""
    folder = Path(folder).expanduser()
    content = read_config(folder)
    notes = content.get("wager", {})
    _require(isinstance(notes, dict), folder, "has no mapping under 'wager' in config.json; train or download it again")
    if strange := unknown_format(content):
        raise ValueError(f"the head in {folder} {strange}")
    config, tensors = _config(folder, layer_of(content)), _named(read_tensors(folder))
    eagle3 = None
    if kind_of(content) == EAGLE3 or "layers.0.hidden_norm.weight" in tensors:
        try:
            eagle3 = eagle3_of(content)
        except ValueError as error:
            raise ValueError(f"the head in {folder} {error}") from None
    wanted = shapes(config) if eagle3 is None else eagle3_shapes(config, eagle3)
    allowed = {name: shape for name, shape in _optional(config, eagle3).items() if name in tensors}
    _check(folder, tensors, wanted | allowed)
    frequent = _frequent(folder, notes.get("frequent", 0), config.vocab_size)
    if eagle3 is not None:
        frequent = _drafted(folder, eagle3, config.vocab_size, tensors)
    kept = {name: tensors[name] for name in wanted | allowed if name != MAP}
    return Checkpoint(folder, config, notes, kept, frequent, eagle3)


def _named(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that matter, under the names they have in all formats alike."""
    plain = {name.removeprefix("model.").replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    return {name: tensor for name, tensor in plain.items() if not name.endswith(LEFT_OUT)}


def _check(folder: Path, tensors: Mapping[str, torch.Tensor], known: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in known.items():
        _require(name in tensors, folder, f"has no tensor {name}; it is none of EAGLE's, or incomplete")
        theirs, dtype = tuple(tensors[name].shape), tensors[name].dtype
        _require(theirs == shape, folder, f"has {name} of shape {theirs} where its config.json says {shape}")
        right = dtype.is_floating_point != (name == MAP)
        _require(right, folder, f"has {name} in {dtype}; wager runs unquantized heads")
    more = sorted(tensors.keys() - known.keys())
    _require(not more, folder, f"has a tensor {''.join(more[:1])}, which wager would leave out; it is another kind")


def _drafted(folder: Path, eagle3: Eagle3, vocabulary: int, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The tokens an EAGLE-3 head drafts, by the columns of its LM head; None: all of them."""
    count = eagle3.draft_vocabulary
    if count == vocabulary and MAP not in tensors:
        return None
    complete = MAP in tensors and LM_HEAD in tensors
    _require(complete, folder, f"drafts {count:,} of {vocabulary:,} tokens, which takes the tensors d2t and lm_head")
    ids = torch.arange(count) + tensors[MAP].long()
    fits = len(set(ids.tolist())) == count and int(ids.min()) >= 0 and int(ids.max()) < vocabulary
    _require(fits, folder, f"has a d2t that does not lead to different tokens below {vocabulary:,}; download it again")
    return ids


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
    """Every tensor an EAGLE head has, and its shape."""
    hidden = config.hidden_size
    return {"fc.weight": (hidden, 2 * hidden), **_layer_shapes(config, hidden)}


def eagle3_shapes(config: Any, eagle3: Eagle3) -> dict[str, tuple[int, ...]]:
    """Every tensor an EAGLE-3 head has, whichever settings it has, and its shape."""
    hidden, states = config.hidden_size, len(eagle3.layers) or 3
    wanted = {"fc.weight": (hidden, states * eagle3.target_hidden), **_layer_shapes(config, 2 * hidden)}
    for name in ("layers.0.hidden_norm", "layers.0.input_layernorm", "norm"):
        wanted[f"{name}.weight"] = (hidden,)
    if eagle3.norm_before_fc:
        wanted["input_norm.weight"] = (states * eagle3.target_hidden,)
    if eagle3.fc_norm:
        wanted |= {f"fc_norm.{at}.weight": (eagle3.target_hidden,) for at in range(states)}
    if eagle3.draft_vocabulary != config.vocab_size:
        wanted |= {MAP: (eagle3.draft_vocabulary,), LM_HEAD: (eagle3.draft_vocabulary, hidden)}
    return wanted


def _layer_shapes(config: Any, entering: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer whose attention reads so many numbers an entry."""
    hidden, inner, size = config.hidden_size, config.intermediate_size, head_size(config)
    heads, num_kv_heads = config.num_attention_heads * size, config.num_key_value_heads * size
    return {
        "layers.0.self_attn.q_proj.weight": (heads, entering),
        "layers.0.self_attn.k_proj.weight": (num_kv_heads, entering),
        "layers.0.self_attn.v_proj.weight": (num_kv_heads, entering),
        "layers.0.self_attn.o_proj.weight": (hidden, heads),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
        "layers.0.post_attention_layernorm.weight": (hidden,),
    }


def _optional(config: Any, eagle3: Eagle3 | None) -> dict[str, tuple[int, ...]]:
    """Tensors that a head may have: biases, norms of queries and keys, an embedding and an LM head of its own."""
    size, hidden, vocabulary = head_size(config), config.hidden_size, config.vocab_size
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    attention = {"q_proj.bias": queries, "k_proj.bias": keys, "v_proj.bias": keys, "o_proj.bias": hidden}
    may: dict[str, tuple[int, ...]] = {f"layers.0.self_attn.{name}": (count,) for name, count in attention.items()}
    may[EMBED] = (vocabulary, hidden)
    if eagle3 is None:
        return {**may, "fc.bias": (hidden,)}
    may |= {f"layers.0.self_attn.{name}_norm.weight": (size,) for name in "qk"}
    return {**may, MAP: (eagle3.draft_vocabulary,), LM_HEAD: (eagle3.draft_vocabulary, hidden)}


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says."""
    check_head(folder)
    with one_sentence(f"cannot read config.json of the head in {folder}"):
        content: dict[str, Any] = files.read_json(folder / "config.json")
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


def _frequent(folder: Path, count: int, vocabulary: int) -> torch.Tensor | None:
    if not count:
        return None
    path = folder / FREQUENT
    _require(path.is_file(), folder, f"drafts {count:,} frequent tokens but has no {FREQUENT} to say which")
    ids = load(path).get(FREQUENT_IDS)
    if ids is None or ids.dim() != 1 or len(ids) != count:
        raise ValueError(f"{path} does not hold the {count:,} ids that config.json tells of; train the head again")
    ids = ids.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(set(ids.tolist())) != len(ids):
        raise ValueError(f"{path} holds ids that are not different tokens below {vocabulary:,}; train the head again")
    return ids


def _require(ok: bool, folder: Path, what: str) -> None:
    require(ok, f"the head in {folder} {what}")
