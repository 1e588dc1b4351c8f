"""Decoders whose policies keep their state, in a cache of the test's own."""

import json
from pathlib import Path
from typing import Any

import decoders
from decoders import PROMPT

from wager import Decoder


def tiny(layers: int = 2) -> Any:
    return decoders.tiny(num_hidden_layers=layers)


# a policy that looks at no clock: what it plays depends on what it learned alone
def decoder(model: Any, where: bool | str | Path = True, **how: Any) -> Decoder:
    return Decoder(model, state=where, **{"policy": "ucbspec", "lengths": (2, 4), **how})


def answer(decoder: Decoder, tokens: int = 24) -> list[str]:
    """The arms of a text."""
    return [str(r.arm) for r in decoder.generate(PROMPT, max_new_tokens=tokens, do_sample=False).rounds]


def file_of(decoder: Decoder) -> Path:
    assert decoder.state is not None
    return decoder.state.path


def keep(decoder: Decoder) -> Path:
    assert decoder.state is not None
    decoder.state.save()
    return decoder.state.path


def state(decoder: Decoder) -> dict[str, Any]:
    kept: dict[str, Any] = decoder.policy.state_dict()  # type: ignore[attr-defined]
    return json.loads(json.dumps(kept))  # type: ignore[no-any-return]
