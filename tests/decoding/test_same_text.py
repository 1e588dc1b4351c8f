"""The text is the target's own, token for token, whatever drafts and decides, and however the model is changed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoders import (
    POLICIES,
    PROMPT,
    TOLERANCE,
    VOCABULARY,
    CropsTooLittle,
    Pair,
    Told,
    check,
    informed,
    ours,
    plain,
    tiny,
)
from identity import first_difference_is_a_tie
from transformers import LlamaForCausalLM

import wager
from wager.decoding import decoder as decoding
from wager.decoding.identity import Difference, difference
from wager.decoding.loop import Loop
from wager.drafters import Draft, DraftSampler, corpus
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "mistral, window", "gemma2", "gpt2"])
def test_greedy_text_is_the_models_own(family: str) -> None:
    model = tiny(family)
    decoder = informed(model)
    assert isinstance(decoder.target, HFRunner if family in ("gpt2", "gemma2") else LlamaRunner)
    kept = refused = 0
    for prompt in (PROMPT, PROMPT, list(range(40))):
        answer = decoder.generate(prompt, max_new_tokens=60, do_sample=False)
        check(model, prompt, answer.tokens, plain(model, prompt))
        assert answer.finish == "length"
        assert sum(r.emitted for r in answer.rounds) == 59
        kept += sum(r.accepted for r in answer.rounds)
        refused += sum(r.rejected for r in answer.rounds)
    assert kept > 20
    assert refused > 10


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_changes_the_text(policy: str) -> None:
    model = tiny()
    decoder = informed(model, policy=policy)
    for prompt in (PROMPT, [9, 8, 9, 8]):
        check(model, prompt, ours(decoder, prompt), plain(model, prompt))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_differs_at_ties_only(dtype: torch.dtype) -> None:
    model = tiny().to(dtype)
    decoder = informed(model)
    # a bfloat16 keeps 8 bits: logits that differ by less than some hundredths of their spread are the same to it
    for prompt in (PROMPT, [9, 8, 9, 8]):
        assert first_difference_is_a_tie(model, prompt, ours(decoder, prompt), plain(model, prompt), 0.1)


def test_processors_that_look_at_the_text_do_not_change_it() -> None:
    model = tiny()
    decoder = informed(model)
    for settings in (
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[8], [48, 8]]},
        {"min_new_tokens": 20, "eos_token_id": [8, 48]},
        {"suppress_tokens": [8], "repetition_penalty": 1.1, "no_repeat_ngram_size": 3},
        {"forced_eos_token_id": 5},
        {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 7},
    ):
        expected = plain(model, **settings)
        # a drafter that knows this text, so that drafts are kept under the processors too
        decoder.drafters["told"].texts = [[*PROMPT, *expected]]
        assert ours(decoder, **settings) == expected


class KeepsTooMuch(Loop):
    """Keeps one token more of every draft."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> Any:
        kept, _, scores = super()._accept(logits, draft)
        kept = min(kept + 1, len(draft.tokens))
        return kept, int(scores[kept].argmax()), scores


@pytest.mark.parametrize("bug", [CropsTooLittle, KeepsTooMuch])
def test_a_crop_or_a_draft_off_by_one_is_noticed(bug: type[Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    decoder = informed(model, drafters=[Told([[*PROMPT, *plain(model)]])])
    monkeypatch.setattr(decoding, "Loop", bug)
    assert not first_difference_is_a_tie(model, PROMPT, ours(decoder), plain(model), TOLERANCE)


def test_the_checker_tells_a_tie_from_a_difference() -> None:
    model = tiny()
    text = plain(model, max_new_tokens=5)
    assert first_difference_is_a_tie(model, PROMPT, text, text, 0.0)
    assert not first_difference_is_a_tie(model, PROMPT, text[:4], text, 1e9)
    wrong = [*text[:2], (text[2] + 1) % VOCABULARY, *text[3:]]
    assert not first_difference_is_a_tie(model, PROMPT, wrong, text, TOLERANCE)
    with torch.no_grad():  # two tokens with the same output weights tie for good
        twin = (text[2] + 1) % VOCABULARY
        model.lm_head.weight[twin] = model.lm_head.weight[text[2]]
    assert first_difference_is_a_tie(model, PROMPT, [*text[:2], twin], text[:3], TOLERANCE)
    # and so does the one that benchmarks and the command line use
    tied = difference(model, PROMPT, [*text[:2], twin], text[:3])
    assert (tied.at, tied.tie) == (2, True)
    assert difference(model, PROMPT, text, text) is None
    assert difference(model, PROMPT, text[:4], text) == Difference(4, None, False)
    other = difference(model, PROMPT, [*text[:2], (text[2] + 2) % VOCABULARY], text[:3])
    assert not other.tie


@pytest.mark.parametrize("family", ["llama", "mistral, window", "gemma2", "gpt2"])
def test_what_the_cache_holds_after_random_arms_is_what_a_fresh_forward_gives(family: str) -> None:
    model = tiny(family)
    decoder = informed(model)
    ours(decoder)
    loop = decoder.loop
    assert loop.target.length == len(loop.text) - 1
    cached = loop.target.forward(loop.text[-1:], 1)[0]
    with torch.no_grad():
        fresh = model(input_ids=torch.tensor([loop.text])).logits[0, -1]
    assert float((cached - fresh).abs().max()) < TOLERANCE * float(fresh.std())


TEXTS = (
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name":',
    "Repeat: the quick brown fox jumps over the lazy dog. The quick brown fox",
)


@pytest.fixture(scope="module")
def shallow(smollm2: Pair) -> Any:
    """SmolLM2's first layers as its draft model."""
    model = smollm2[0]
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 4
    config.layer_types = None
    draft = LlamaForCausalLM(config).eval()
    draft.load_state_dict(model.state_dict(), strict=False)
    return draft


@pytest.fixture(scope="module")
def real(smollm2: Pair, shallow: Any, tmp_path_factory: pytest.TempPathFactory) -> wager.Decoder:
    """One decoder with every drafter; the test changes its policy."""
    model, tokenizer = smollm2
    path = tmp_path_factory.mktemp("stores") / "texts.datastore"
    corpus.build(TEXTS, lambda text: tokenizer(text).input_ids, path, vocabulary=len(tokenizer))
    drafters = [PromptLookup(), Suffix(), Retrieval(path), DraftModel(shallow)]
    return wager.Decoder(model, tokenizer, drafters=drafters, policy="random", lengths=(2, 5))


@pytest.mark.parametrize(("text", "policy"), [(TEXTS[0], "random"), (TEXTS[2], "auto")])
def test_smollm2_writes_the_same_with_every_drafter(text: str, policy: str, real: wager.Decoder) -> None:
    real.policy = decoding.build_policy(policy, real.arms)
    prompt = real.tokenizer(text).input_ids
    answer = real.generate(text, max_new_tokens=16, do_sample=False)
    check(real.model, prompt, answer.tokens, plain(real.model, prompt, max_new_tokens=16))
    assert answer.text == real.tokenizer.decode(answer.tokens, skip_special_tokens=True)


SAMPLED = {"do_sample": True, "temperature": 0.8, "top_k": 5}


def test_sampled_texts_are_compared_by_scores_and_noise() -> None:
    model = tiny()
    off = wager.Decoder(model, drafters="off")
    text = off.generate(PROMPT, seed=3, max_new_tokens=6, eos_token_id=None, **SAMPLED).tokens
    vocabulary = model.config.vocab_size

    def compared(token: int) -> tuple[float | None, bool]:
        found = difference(model, PROMPT, [*text[:4], token], text, seed=3, **SAMPLED)
        assert found.at == 4
        return found.gap, found.tie

    outcomes = [compared(token) for token in range(vocabulary) if token != text[4]]
    assert sum(gap is not None for gap, _ in outcomes) == 4, "top_k leaves four others, none of which ties"
    assert all(tie is (gap is None) for gap, tie in outcomes), "a token that was removed may have been at the edge"


def test_processors_count() -> None:
    model = tiny()
    text = plain(model, max_new_tokens=3)
    second = [*text[:2], next(token for token in PROMPT if token != text[2])]  # which a penalty hits
    free, penalised = (
        difference(model, PROMPT, second, text, do_sample=False, **more) for more in ({}, {"repetition_penalty": 9.0})
    )
    without = difference(model, PROMPT, second, text)
    assert free.gap == pytest.approx(without.gap, rel=1e-4)
    assert penalised.gap != pytest.approx(without.gap, rel=1e-2)


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
        lambda model: model.model.layers[1].mlp.down_proj.weight.data.mul_(-1.5),
        lambda model: model.lm_head.weight.data[17].mul_(40),
        _hook_everything,
    ],
    ids=["forward", "buffer", "scaling", "epsilon", "data", "a row of the head", "global hook"],
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
