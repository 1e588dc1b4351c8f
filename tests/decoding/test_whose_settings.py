"""Settings of a request, of its configuration and of the model's own, as transformers combines them."""

from typing import Any

import pytest
import torch
from decoders import PROMPT, Grafted, Told, alike, ours, plain, tiny
from transformers import DynamicCache, GenerationConfig, StoppingCriteria

import wager
from wager.decoding.acceptance import accept_sampled, accept_tree_sampled
from wager.drafters.draft_model import DraftModel
from wager.drafters.suffix import Suffix
from wager.models import hf_runner, load_tokenizer

IDS = torch.tensor([PROMPT])
TWO = torch.tensor([PROMPT, [9, 8, 7, 6, 5, 9, 8, 7, 3, 2]])
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def theirs(model: Any, ids: torch.Tensor = IDS, **settings: Any) -> torch.Tensor:
    made: torch.Tensor = model.generate(ids, **{"attention_mask": torch.ones_like(ids), "do_sample": False, **settings})
    return made


def mine(model: Any, ids: torch.Tensor = IDS, **settings: Any) -> torch.Tensor:
    return theirs(model, ids, custom_generate=wager.generate, **settings)


@pytest.mark.parametrize(
    ("own", "given"),
    [({"max_new_tokens": 30}, {}), ({"max_length": 35}, {}), ({"max_new_tokens": 12}, {"no_repeat_ngram_size": 2})],
)
def test_the_models_own_limit_holds_beside_a_configuration_of_the_requests(own: Any, given: Any) -> None:
    model = tiny()
    model.generation_config = GenerationConfig(**NO_ENDS, **own)
    expected = theirs(model, generation_config=GenerationConfig(**given))[0, len(PROMPT) :].tolist()
    made = wager.Decoder(model, policy="random").generate(PROMPT, generation_config=GenerationConfig(**given))
    assert made.tokens == expected


@pytest.mark.parametrize("whose", ["model", "model, beside a configuration", "configuration", "settings"])
def test_stop_strings_end_a_decoders_text_whoever_gives_them(whose: str, smollm2_folder: str) -> None:
    tokenizer = load_tokenizer(smollm2_folder)
    model = tiny(vocab_size=len(tokenizer))
    text = tokenizer.decode(plain(model, max_new_tokens=40))
    stop, named = {"stop_strings": [text[len(text) // 2 :][:4]]}, whose.startswith("model")
    model.generation_config = GenerationConfig(**NO_ENDS, **(stop if named else {}))
    config = {**({} if whose == "settings" else stop), "max_new_tokens": 40}
    given: dict[str, Any] = {"max_new_tokens": 40, **(stop if whose == "settings" else {})}
    if "configuration" in whose:
        own = {"max_new_tokens": 40} if named else config
        given = {"generation_config": GenerationConfig(**own)}
    expected = theirs(model, tokenizer=tokenizer, **given)[0, len(PROMPT) :].tolist()
    assert len(expected) < 40
    if "configuration" in whose:
        given = {"generation_config": GenerationConfig(**own)}
    assert wager.Decoder(model, tokenizer, policy="random").generate(PROMPT, **given).tokens == expected


def test_positions_and_padding_that_wager_would_not_heed_are_refused() -> None:
    model = tiny()
    counted = torch.arange(len(PROMPT))[None]
    assert torch.equal(mine(model, position_ids=counted, max_new_tokens=8), theirs(model, max_new_tokens=8))
    with pytest.raises(ValueError, match="generate without position_ids"):
        mine(model, position_ids=counted + 100, max_new_tokens=8)
    with pytest.raises(ValueError, match="generate without position_ids"):
        wager.Decoder(model).generate(PROMPT, position_ids=counted + 1, max_new_tokens=8)
    right = torch.tensor([[*[1] * (len(PROMPT) - 2), 0, 0]])
    with pytest.raises(ValueError, match="pad prompts on the left"):
        mine(model, attention_mask=right, max_new_tokens=8)


class Rows(StoppingCriteria):
    """Ends the first row after five tokens, the second after twelve."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        new = input_ids.shape[1] - len(PROMPT)
        return torch.tensor([new >= (5, 12)[row] for row in range(len(input_ids))])


def test_every_text_of_a_batch_is_under_what_its_own_row_is_under() -> None:
    model = tiny()
    bias = torch.zeros(2, 64)
    bias[0, 5] = bias[1, 9] = 50.0
    for settings in (
        {"prefix_allowed_tokens_fn": lambda row, text: [10 + 20 * row + i for i in range(8)]},
        {"encoder_no_repeat_ngram_size": 2},
        {"encoder_repetition_penalty": 3.0},
        {"logits_processor": [lambda ids, scores: scores + bias]},
    ):
        expected = theirs(model, TWO, max_new_tokens=20, **settings)
        assert torch.equal(mine(model, TWO, max_new_tokens=20, **settings), expected), list(settings)
    ended = mine(model, TWO, max_new_tokens=20, stopping_criteria=[Rows()], pad_token_id=63)[:, len(PROMPT) :]
    whole = theirs(model, TWO, max_new_tokens=20)[:, len(PROMPT) :]
    assert ended[0].tolist() == [*whole[0, :5].tolist(), *[63] * 7]
    assert ended[1].tolist() == whole[1, :12].tolist()


def test_a_callers_own_empty_cache_is_filled() -> None:
    for family in ("llama", "gpt2"):
        model, cache = tiny(family), DynamicCache()
        expected = theirs(model, max_new_tokens=20)
        assert torch.equal(mine(model, past_key_values=cache, max_new_tokens=20), expected)
        assert cache.get_seq_length() == len(PROMPT) + 19


def test_a_text_whose_target_takes_no_trees_is_decoded_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    decoder = wager.Decoder(model, drafters="suffix", trees="4x16", policy="random")
    monkeypatch.setattr(hf_runner, "MASKED", ())  # as for kernels of attention that take no such mask
    how: dict[str, Any] = {"attention_mask": torch.tensor([[0] * 3 + [1] * 7]), "max_new_tokens": 20}
    assert torch.equal(mine(model, decoder=decoder, **how), theirs(model, **how))


def test_no_trees_where_scores_go_by_the_place_in_the_cache() -> None:
    model = tiny("llama4_text", floor_scale=16, attn_scale=3.0, attn_temperature_tuning=True, no_rope_layers=[1, 0])
    with pytest.raises(ValueError, match="verifies chains only"):
        wager.Decoder(model, drafters=[Grafted(PROMPT)], trees="4x16")


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_texts_with_longrope_are_right_and_end_where_it_would_rotate_all_keys_anew(family: str) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 48, "factor": 4.0}  # fmt: skip
    more = {"original_max_position_embeddings": 48} if family == "phi3" else {}
    model = tiny("llama", rope_parameters=rope) if family == "llama" else _phi3(rope, **more)
    expected = plain(model, max_new_tokens=60)
    for drafters in ("off", [Told([[*PROMPT, *expected]])]):
        made = wager.Decoder(model, drafters=drafters, policy="random").generate(PROMPT, max_new_tokens=60)
        assert made.tokens == expected[: 48 - len(PROMPT)]
        assert made.finish == "context"
    with pytest.raises(ValueError, match="the prompt has 50 tokens, and the model holds 48"):
        mine(model, torch.ones((1, 50), dtype=torch.long), max_new_tokens=4)


def _phi3(rope: dict[str, Any], **more: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = AutoConfig.for_model("phi3", **sizes, initializer_range=0.3, **NO_ENDS, rope_parameters=rope, **more)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rare_tokens_are_as_rare_whatever_torchs_default_dtype(dtype: torch.dtype) -> None:
    p = torch.tensor([[0.999, 0.0005, 0.0005], [1 / 3] * 3])
    q, trees = None, p[[0, 1, 1]]
    torch.set_default_dtype(dtype)
    try:
        generator = torch.Generator().manual_seed(0)
        chains = [accept_sampled(p, [1], q, generator)[0] for _ in range(20_000)]
        paths = [accept_tree_sampled(trees, [1, 2], [-1, -1], q, generator)[0] for _ in range(20_000)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert sum(chains) < 25, "10 of 20,000 are expected"
    assert sum(map(bool, paths)) < 40, "20"


def test_the_residual_rule_takes_drafts_of_tokens_that_the_target_reads_and_does_not_write() -> None:
    model = tiny(tie_word_embeddings=False)
    torch.manual_seed(3)
    model.lm_head = torch.nn.Linear(32, 56)
    decoder = wager.Decoder(model, drafters=["suffix", DraftModel(alike(tiny()))], policy="random", sampling="residual")
    for seed in range(3):
        made = decoder.generate([63, 62, 63, 62, 63], do_sample=True, seed=seed, max_new_tokens=40)
        assert max(made.tokens) < 56


def test_a_text_that_begins_while_another_is_being_begun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another thread, at the worst moment."""
    model = tiny()
    decoder, expected = wager.Decoder(model, policy="random"), plain(model, max_new_tokens=30)
    request = decoder.prepare(PROMPT, {"max_new_tokens": 30, "do_sample": False})
    one, other = (decoder.run(request, decoder.target) for _ in range(2))
    follow, refused = Suffix.follow, list[str]()

    def following(self: Suffix, target: Any) -> None:
        monkeypatch.setattr(Suffix, "follow", follow)
        with pytest.raises(ValueError, match="in the middle of another text") as caught:
            next(other)
        refused.append(str(caught.value))

    monkeypatch.setattr(Suffix, "follow", following)
    assert [token for piece in one for token in piece.tokens] == expected
    assert refused
    assert ours(decoder, max_new_tokens=30) == expected
