"""Whether a drafter that is a model was made for the target, as far as their files tell: before vLLM starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wager.eagle.formats import EAGLE, EAGLE3, kind_of, layer_of
from wager.models.fingerprint import agree, fingerprint
from wager.vllm.settings import HEADS, engine_kind, parse_drafter

ALIKE = {EAGLE: ("hidden_size", "vocab_size"), EAGLE3: ("hidden_size",)}  # in which a head is as its target
KINDS = {EAGLE: "an EAGLE head", EAGLE3: "an EAGLE-3 head", "draft": "a whole model"}  # as `wager train` notes them
SIZES = {"hidden_size": "hidden size", "vocab_size": "vocabulary"}
# What the input embedding is called at the end of its name, by families of models.
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


def check_drafter_fits(spec: str, drafter: Path | str, target: Path | str, *, other_vocabulary: bool = False) -> None:
    """Refuse a head or a draft model of another target; one on a hub is left to vLLM."""
    name, value = parse_drafter(spec)
    kind = engine_kind(name)
    theirs, ours = _config(drafter), _config(target)
    notes = theirs.get("wager")
    notes = notes if isinstance(notes, dict) else {}
    head = kind in HEADS
    made = str(notes.get("kind"))
    if made in KINDS and head != (made in HEADS):
        written = made if made in HEADS else "draft-model"
        raise ValueError(f"{value} holds {KINDS[made]}; write {written}={value} instead of {spec}")
    kind = (head_kind(drafter) or kind) if head else kind
    if kind == EAGLE and theirs.get("bias") is True:
        raise ValueError(f"the head in {value} has a bias in fc, which vLLM does not run; wager generate does")
    for key in ALIKE.get(kind, () if other_vocabulary else ("vocab_size",)):
        its = theirs.get("target_hidden_size") or theirs.get(key) if key == "hidden_size" else theirs.get(key)
        if None not in (its, ours.get(key)) and its != ours[key]:
            raise ValueError(f"drafter {spec} does not fit: it has a {SIZES[key]} of {its}, the target {ours[key]}")
    marked = str(notes.get("target_fingerprint") or "")
    if head and marked and (known := weights_fingerprint(target)) and not agree(marked, known):
        raise ValueError(
            f"drafter {spec} does not fit: it was trained for {notes.get('target') or 'another model'}, and the target "
            "has other weights; take one made for it, or make one with wager train"
        )


def head_kind(where: Path | str) -> str:
    """Which method of vLLM's runs the head in a folder; empty for one on a hub."""
    content = _config(where)
    return kind_of(content) if content else ""


def _config(where: Path | str) -> Mapping[str, Any]:
    """What a local model's config.json says of its text; nothing for one on a hub, which vLLM will look at."""
    try:
        content = json.loads(Path(where, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    text = content.get("text_config")
    return {**content, **text} if isinstance(text, dict) else {**layer_of(content), **content}


def weights_fingerprint(where: Path | str) -> str:
    """The fingerprint of a model in a folder, from the few weights it takes; empty where it cannot be made."""
    if not Path(where).is_dir():
        return ""
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig

    try:
        shape = AutoConfig.from_pretrained(where, local_files_only=True)
        text = shape.get_text_config()
        for file in sorted(Path(where).glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in filter(lambda name: name.endswith(EMBEDDINGS), tensors.keys()):
                    weight = tensors.get_tensor(name)  # mapped: only what is looked at is read
                    if tuple(weight.shape) == (text.vocab_size, text.hidden_size) and weight.is_floating_point():
                        return fingerprint(_Embedded(shape, weight))
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError):
        return ""  # vLLM says what is wrong with it
    return ""


@dataclass(frozen=True, slots=True)
class _Embedded:
    """As much of a loaded model as a fingerprint asks for."""

    config: Any
    weight: Any  # (vocabulary, hidden)

    def get_input_embeddings(self) -> _Embedded:
        return self
