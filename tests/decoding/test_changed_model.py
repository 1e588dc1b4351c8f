"""A model that is changed after its decoder was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoders import PROMPT, VOCABULARY, Told, check, ours, plain, tiny

import wager
from wager.drafters import Draft, DraftSampler
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup

pytestmark = pytest.mark.usefixtures("one_thread")


def test_weights_changed_in_place_are_noticed() -> None:
    model = tiny()
    draft = tiny(seed=1)
    decoder = wager.Decoder(model, drafters=[DraftModel(draft), "suffix"], policy="random")
    before = ours(decoder)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(-1.5)
        draft.lm_head.weight.add_(0.1)
    check(model, PROMPT, ours(decoder), plain(model))
    model.model.layers[0].self_attn.v_proj.weight = torch.nn.Parameter(torch.randn(16, 32))
    after = ours(decoder)
    check(model, PROMPT, after, plain(model))
    assert before != after


def test_weights_written_through_data_are_noticed() -> None:
    model = tiny()
    decoder = wager.Decoder(model, policy="random")
    before = ours(decoder)
    model.model.layers[1].mlp.down_proj.weight.data.mul_(-1.5)
    after = ours(decoder)
    check(model, PROMPT, after, plain(model))
    assert before != after


def test_hooks_added_and_removed_later_are_heeded() -> None:
    model = tiny()
    decoder = wager.Decoder(model, policy="random")
    before, fast = ours(decoder), decoder.target
    hook = model.model.layers[0].register_forward_hook(lambda module, given, out: out * 0.1)
    hooked = ours(decoder)
    check(model, PROMPT, hooked, plain(model))
    assert hooked != before
    hook.remove()
    assert ours(decoder) == before
    assert type(decoder.target) is type(fast)


def _scaled(module: torch.nn.Module) -> None:
    own = type(module).forward
    module.forward = lambda *given, **named: own(module, *given, **named) * 0.1  # type: ignore[method-assign]


def _hook_everything(model: Any) -> None:
    def twice(module: Any, given: Any, out: Any) -> Any:
        return out * 2 if type(module).__name__ == "LlamaMLP" else None

    torch.nn.modules.module.register_module_forward_hook(twice)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: _scaled(model.model.layers[1].mlp),
        lambda model: model.model.rotary_emb.inv_freq.mul_(1.5),
        lambda model: setattr(model.model.layers[0].self_attn, "scaling", 3.0),
        lambda model: setattr(model.model.layers[0].input_layernorm, "variance_epsilon", 9.0),
        lambda model: model.lm_head.weight.data[17].mul_(40),
        _hook_everything,
    ],
    ids=["forward", "buffer", "scaling", "epsilon", "a row of the head", "global hook"],
)
def test_whatever_is_changed_in_the_model_later_is_heeded(change: Callable[[Any], object]) -> None:
    model = tiny()
    decoder = wager.Decoder(model, policy="random")
    before, fast = ours(decoder), decoder.target
    assert ours(decoder) == before
    assert decoder.target is fast, "nothing was changed yet"
    try:
        change(model)
        after = ours(decoder)
        check(model, PROMPT, after, plain(model))
        assert after != before
    finally:
        torch.nn.modules.module._global_forward_hooks.clear()


def test_tokens_added_to_the_vocabulary_later_are_taken() -> None:
    model = tiny()
    decoder = wager.Decoder(model, policy="random", drafters=[PromptLookup(), DraftModel(tiny(seed=1))])
    ours(decoder)
    model.resize_token_embeddings(VOCABULARY + 6)
    prompt = [*PROMPT, VOCABULARY + 3]
    check(model, prompt, ours(decoder, prompt), plain(model, prompt))


class Overreaching(Told):
    """Proposes tokens the target does not have."""

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return Draft([*super().propose(length - 1).tokens, VOCABULARY + 1])


def test_drafted_tokens_that_the_target_lacks_are_left_out() -> None:
    model = tiny()
    text = plain(model)
    decoder = wager.Decoder(model, drafters=[Overreaching([[*PROMPT, *text]])], policy="random")
    assert ours(decoder) == text


def test_a_model_of_an_odd_shape_goes_through_its_own_forward() -> None:
    model = tiny().double()
    decoder = wager.Decoder(model, policy="random")
    assert type(decoder.target).__name__ == "HFRunner"
    assert ours(decoder) == plain(model)
