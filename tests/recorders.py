"""Small models that repeat themselves, and recorders of what drafters make of their texts."""

from typing import Any

import decoders

import wager
from wager.decoding.recorder import Recorder
from wager.drafters import Drafter

PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
LONGEST = 6


def tiny(seed: int = 3, **shape: Any) -> Any:
    return decoders.tiny(seed=seed, **{"vocab_size": 12, **shape})


def recorder(model: Any, *drafters: Drafter, longest: int = LONGEST) -> Recorder:
    return Recorder(wager.Decoder(model, drafters="off", policy="off"), {d.name: d for d in drafters}, longest)
