"""A request is prepared by transformers, and nothing is made for it that is not used."""

from typing import Any

import pytest
from decoders import PROMPT, tiny
from transformers import GenerationConfig
from transformers.generation import utils

import wager
from wager.decoding.prepare import without_cache


def caches(monkeypatch: pytest.MonkeyPatch, model: Any, **settings: Any) -> tuple[int, list[int]]:
    """How many caches transformers makes for a text, and its tokens."""
    decoder = wager.Decoder(model, drafters="prompt-lookup", policy="round-robin", lengths=(2,))
    made: list[object] = []
    cache = utils.DynamicCache
    monkeypatch.setattr(utils, "DynamicCache", lambda *given, **named: made.append(given) or cache(*given, **named))
    tokens = decoder.generate(PROMPT, **settings).tokens
    monkeypatch.undo()
    return len(made), tokens


def test_transformers_makes_no_cache_of_its_own_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    none, text = caches(monkeypatch, model, **how)
    assert none == 0
    for more in ({"use_cache": True}, {"cache_implementation": "dynamic"}):
        assert caches(monkeypatch, model, **how, **more) == (1, text)
    assert caches(monkeypatch, model, **how, use_cache=False) == (0, text)
    assert caches(monkeypatch, model, generation_config=GenerationConfig(**how)) == (1, text), "not to be mixed"


def test_a_models_own_settings_of_a_cache_are_left_to_transformers() -> None:
    model = tiny()
    model.generation_config.cache_config = {}
    assert without_cache({"max_new_tokens": 4}, model.generation_config) == {"max_new_tokens": 4, "use_cache": False}
    model.generation_config.cache_config = {"backend": "quanto"}
    assert without_cache({"max_new_tokens": 4}, model.generation_config) == {"max_new_tokens": 4}
