"""Which model is this? A short mark by which a drafter knows the target it was made for; no torch is needed to compare.

The mark has to be the same whichever dtype the model was loaded in, and rounding moves numbers across any boundary now
and then. So it is no hash of the weights: it holds a few of them coarsely, and two marks agree if those do.
"""

import hashlib
import struct
from typing import Any

SIZES = ("vocab_size", "hidden_size", "intermediate_size")
SHAPE = ("model_type", *SIZES, "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
VALUES = 16  # numbers of the embedding that are looked at
CLOSE = 2**-6  # relative; bfloat16 rounds by 2**-9, and the mark by 2**-7
TINY = 2e-6  # absolute: smaller than what float16 can tell from 0 with some care


def fingerprint(model: Any) -> str:
    """The mark of a loaded model: a hash of its shape, then some numbers of its embedding, 16 bits each."""
    config = model.config.get_text_config()
    shape = ",".join(f"{key}={getattr(config, key, None)}" for key in SHAPE)
    weight = model.get_input_embeddings().weight.detach()
    tokens, hidden = weight.shape
    rows = [(2 * n + 1) * tokens // (2 * VALUES) for n in range(VALUES)]
    columns = [(7 * n + 3) % hidden for n in range(VALUES)]
    bits = (struct.unpack(">I", struct.pack(">f", value))[0] >> 16 for value in weight[rows, columns].float().tolist())
    return hashlib.sha256(shape.encode()).hexdigest()[:8] + "-" + "".join(f"{b:04x}" for b in bits)


def agree(one: str, other: str) -> bool:
    """Whether two marks are of the same model."""
    ours, theirs = _values(one), _values(other)
    if one[:8] != other[:8] or len(ours) != len(theirs) or len(ours) != VALUES:
        return False
    return all(abs(a - b) <= CLOSE * max(abs(a), abs(b)) + TINY for a, b in zip(ours, theirs, strict=True))


def _values(mark: str) -> list[float]:
    digits = mark.partition("-")[2]
    try:
        return [struct.unpack(">f", bytes.fromhex(digits[at : at + 4] + "0000"))[0] for at in range(0, len(digits), 4)]
    except (ValueError, struct.error):
        return []
