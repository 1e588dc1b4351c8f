"""The tensors in a head's folder: from one file or from shards, safetensors or torch's own format."""

from pathlib import Path

import torch

from wager.core import files
from wager.core.require import require
from wager.models.resolve import one_sentence

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"  # as EAGLE's authors publish heads


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder, by name."""
    for single, index in ((WEIGHTS, INDEX), (PICKLED, PICKLED_INDEX)):
        if (folder / single).is_file():
            return load(folder / single)
        if (folder / index).is_file():
            return _sharded(folder, index)
    raise ValueError(f"the head in {folder} has no {WEIGHTS} or {PICKLED}; train or download it again")


def _sharded(folder: Path, index: str) -> dict[str, torch.Tensor]:
    with one_sentence(f"cannot read {index} of the head in {folder}"):
        shards = sorted(set(files.read_json(folder / index)["weight_map"].values()))
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        require((folder / shard).is_file(), f"the head in {folder} lacks its shard {shard}; download it again")
        tensors |= load(folder / shard)
    return tensors


def load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one file; from torch's own format tensors alone, never code."""
    from safetensors.torch import load_file

    says = f"cannot read {path}, so download it or train it again"
    with one_sentence(says):
        if path.suffix == ".safetensors":
            loaded: dict[str, torch.Tensor] = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    fits = isinstance(loaded, dict) and all(isinstance(tensor, torch.Tensor) for tensor in loaded.values())
    require(fits, f"{says}: it does not hold tensors by name")
    return loaded
