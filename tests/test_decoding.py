"""The engine: greedy text is the target's own, token for token, and requests behave as ``model.generate`` has them."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import small
import torch
from identity import first_difference, first_difference_is_a_tie
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
    TextStreamer,
)

import wager
from wager.core import OFF, Arm, Context, Request, Round, Signal, TraceWriter
from wager.core import trace as traces
from wager.decoding import decoder as decoding
from wager.decoding.identity import Difference, difference
from wager.decoding.loop import Loop
from wager.drafters import Draft, Drafter, Sampler, corpus
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.models.eager import Eager
from wager.models.lean import Lean
from wager.policies import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pair = tuple["PreTrainedModel", "PreTrainedTokenizerBase"]
TOLERANCE = 1e-3  # standard deviations of float32 logits
VOCABULARY = 64
PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
POLICIES = (
    "random",
    "off",
    "round-robin",
    "ucbspec",
    "exp3spec",
    "meta-ucb:reward=bd",
    "analytical",
    "fsm",
    "prompt-router",
    "nightjar",
    "thompson",
    "ucbspec:reward=goodput",
)

SHAPE = {**small.SHAPE, "vocab_size": VOCABULARY, "head_dim": 8, "max_position_embeddings": 256}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "mistral, window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=12)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, sliding_window=12)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=256,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
    ),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(family: str = "llama", seed: int = 0, **shape: Any) -> Any:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, **shape})) if shape else FAMILIES[family]()
    return model.eval()


def alike(model: Any, noise: float = 0.1) -> Any:
    """Another model that often agrees with this one: a draft model."""
    torch.manual_seed(9)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += noise * weight.std().nan_to_num() * torch.randn_like(weight)
    return other


class Told(Drafter):
    """Knows how the text goes on, but for every few tokens: drafts are kept whole, in part and not at all."""

    name = "told"

    def __init__(self, texts: Sequence[Sequence[int]] = (), wrong_every: int = 5) -> None:
        self.texts, self.wrong_every = [list(text) for text in texts], wrong_every

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompt, self.text = len(prompt), list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def propose(self, length: int, sample: Sampler | None = None) -> Draft:
        here = len(self.text)
        for text in self.texts:
            if text[:here] == self.text:
                ahead = text[here : here + length]
                return Draft([t if (here + i) % self.wrong_every else (t + 1) % 7 for i, t in enumerate(ahead)])
        return Draft()


def plain(model: Any, prompt: Sequence[int] = PROMPT, **settings: Any) -> list[int]:
    settings = {"max_new_tokens": 60, "do_sample": False, **settings}
    ids = torch.tensor([prompt])  # with a mask: without one, transformers takes every 0 for padding
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()


def ours(decoder: wager.Decoder, prompt: Sequence[int] = PROMPT, **settings: Any) -> list[int]:
    return decoder.generate(prompt, **{"max_new_tokens": 60, "do_sample": False, **settings}).tokens


def informed(model: Any, prompt: Sequence[int] = PROMPT, policy: Any = "random", **how: Any) -> wager.Decoder:
    """A decoder with drafts of every kind for this prompt."""
    drafters = how.pop("drafters", None) or [
        Told([[*prompt, *plain(model, prompt)]]),
        PromptLookup(),
        Suffix(),
        DraftModel(alike(model)),
    ]
    return wager.Decoder(model, how.pop("tokenizer", None), drafters=drafters, policy=policy, **how)


def check(model: Any, prompt: Sequence[int], tokens: Sequence[int], expected: Sequence[int]) -> None:
    assert first_difference_is_a_tie(model, prompt, tokens, expected, TOLERANCE), (
        f"parted after {first_difference(tokens, expected)} tokens, and not at a tie"
    )


# -- the same text


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_the_models_own(family: str) -> None:
    model = tiny(family)
    decoder = informed(model)
    assert isinstance(decoder.target, Eager if family in ("gpt2", "gemma2", "mistral, window") else Lean)
    kept = refused = 0
    for prompt in (PROMPT, PROMPT, [7], list(range(40)), [3, 4] * 15):
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


def test_a_crop_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(Loop):
        def _round(self) -> Any:
            crop = self.target.crop
            self.target.crop = lambda length: crop(length + 1)  # type: ignore[method-assign]
            try:
                return super()._round()
            finally:
                del self.target.crop

    model = tiny()
    decoder = informed(model)
    monkeypatch.setattr(decoding, "Loop", Off)
    assert not first_difference_is_a_tie(model, PROMPT, ours(decoder), plain(model), TOLERANCE)


def test_a_draft_kept_one_token_too_far_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Generous(Loop):
        def _accept(self, logits: torch.Tensor, draft: Draft) -> Any:
            kept, _, scores = super()._accept(logits, draft)
            kept = min(kept + 1, len(draft.tokens))
            return kept, int(scores[kept].argmax()), scores

    model = tiny()
    decoder = informed(model, drafters=[Told([[*PROMPT, *plain(model)]])])
    monkeypatch.setattr(decoding, "Loop", Generous)
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
    assert tied is not None
    assert (tied.at, tied.tie) == (2, True)
    assert difference(model, PROMPT, text, text) is None
    assert difference(model, PROMPT, text[:4], text) == Difference(4, None, False)
    other = difference(model, PROMPT, [*text[:2], (text[2] + 2) % VOCABULARY], text[:3])
    assert other is not None
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


# -- SmolLM2

TEXTS = (
    "The capital of France is Paris. The capital of Italy is",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "one two three four one two three four one two",
    "Translate to German: Good morning, how are you?",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name":',
    "Once upon a time",
    "Q: What is 12 + 30?\nA:",
    "Repeat: the quick brown fox jumps over the lazy dog. The quick brown fox",
)


@pytest.fixture(scope="module")
def expected(smollm2: Pair) -> Callable[[str], tuple[list[int], list[int]]]:
    """The model's own continuation of a text, made once."""
    model, tokenizer = smollm2

    @functools.cache
    def continued(text: str) -> tuple[list[int], list[int]]:
        prompt = tokenizer(text).input_ids
        return prompt, plain(model, prompt, max_new_tokens=48)

    return continued


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
    """One decoder with every drafter; tests change its policy."""
    model, tokenizer = smollm2
    path = tmp_path_factory.mktemp("stores") / "texts.datastore"
    corpus.build(TEXTS, lambda text: tokenizer(text).input_ids, path, vocabulary=len(tokenizer))
    drafters = [PromptLookup(), Suffix(), Retrieval(path), DraftModel(shallow)]
    return wager.Decoder(model, tokenizer, drafters=drafters, policy="random", lengths=(2, 5))


@pytest.mark.parametrize("at", range(0, len(TEXTS), 2))
def test_smollm2_writes_the_same_with_every_drafter_in_turn(
    at: int, real: wager.Decoder, expected: Callable[[str], tuple[list[int], list[int]]]
) -> None:
    real.policy = decoding.build_policy("random", real.arms, seed=at)
    for text in TEXTS[at : at + 2]:
        prompt, theirs = expected(text)
        answer = real.generate(text, max_new_tokens=48, do_sample=False)
        check(real.model, prompt, answer.tokens, theirs)
        assert answer.text == real.tokenizer.decode(answer.tokens, skip_special_tokens=True)


@pytest.mark.parametrize(("at", "policy"), list(enumerate(POLICIES)))
def test_smollm2_writes_the_same_under_every_policy(
    at: int, policy: str, real: wager.Decoder, expected: Callable[[str], tuple[list[int], list[int]]]
) -> None:
    real.policy = decoding.build_policy(policy, real.arms, seed=at)
    prompt, theirs = expected(TEXTS[at % len(TEXTS)])
    check(real.model, prompt, ours(real, prompt, max_new_tokens=48), theirs)


# -- where texts end


def test_any_of_several_ends_ends_the_text() -> None:
    model = tiny()
    whole = plain(model)
    decoder = informed(model)
    for ends in (whole[10], [whole[30], whole[7]], [63, whole[3]], whole[0]):
        answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, eos_token_id=ends)
        assert answer.tokens == plain(model, eos_token_id=ends)
        assert answer.finish == "eos"
        assert len(answer.tokens) == len(answer.sources)


def test_an_end_inside_a_kept_draft_cuts_it() -> None:
    model = tiny()
    whole = plain(model)
    end = next(t for i, t in enumerate(whole) if i > 8 and t not in whole[:i])
    decoder = wager.Decoder(model, drafters=[Told([[*PROMPT, *whole]], 1000)], policy="fixed:drafter=told,length=8")
    answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, eos_token_id=end)
    assert answer.tokens == whole[: whole.index(end) + 1]
    assert sum(r.emitted for r in answer.rounds) == len(answer.tokens) - 1


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_no_text_is_longer_than_asked(limit: int) -> None:
    model = tiny()
    for settings in ({"max_new_tokens": limit}, {"max_length": len(PROMPT) + limit, "max_new_tokens": None}):
        answer = informed(model).generate(PROMPT, do_sample=False, **settings)
        assert answer.tokens == plain(model)[:limit]
        assert answer.finish == "length"


def test_a_generation_config_object_is_heeded() -> None:
    model = tiny()
    config = GenerationConfig(max_new_tokens=7, do_sample=False, repetition_penalty=1.4, pad_token_id=0)
    tokens = informed(model).generate(PROMPT, generation_config=config).tokens
    assert tokens == model.generate(torch.tensor([PROMPT]), generation_config=config)[0, len(PROMPT) :].tolist()
    model.generation_config.max_new_tokens = 5
    assert len(informed(model).generate(PROMPT).tokens) == 5
    model.generation_config.max_new_tokens = model.generation_config.max_length = None
    assert len(informed(model).generate(PROMPT[:2]).tokens) == 254  # the default of 256, cut by the context


def test_the_context_limit_ends_the_text() -> None:
    model = tiny(max_position_embeddings=24)
    decoder = wager.Decoder(model, drafters=["suffix", "prompt-lookup"], policy="random")
    answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)
    assert len(answer.tokens) == 14
    assert answer.finish == "context"
    assert answer.tokens == plain(model, max_new_tokens=14)


def test_a_draft_model_with_a_shorter_context_falls_silent() -> None:
    model, draft = tiny(), tiny(max_position_embeddings=24)
    decoder = wager.Decoder(model, drafters=[DraftModel(draft)], policy="fixed:drafter=draft-model,length=4")
    check(model, PROMPT, ours(decoder), plain(model))
    assert not any(r.drafted for r in decoder.generate(range(1, 30), max_new_tokens=9).rounds)


def test_own_stopping_criteria_end_the_text() -> None:
    class Sum(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
            return input_ids.sum(-1) > 500

    model = tiny()
    criteria = StoppingCriteriaList([Sum()])
    answer = informed(model).generate(PROMPT, max_new_tokens=60, do_sample=False, stopping_criteria=criteria)
    assert answer.tokens == plain(model, stopping_criteria=criteria)
    assert answer.finish == "stop"


# -- text


class Forced(LogitsProcessor):
    """Makes the text what it is told."""

    def __init__(self, prompt: int, tokens: Sequence[int]) -> None:
        self.prompt, self.tokens = prompt, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens[min(input_ids.shape[1] - self.prompt, len(self.tokens) - 1)]] = 0
        return forced


@pytest.fixture(scope="module")
def speaker(smollm2: Pair) -> Any:
    """A tiny model with SmolLM2's vocabulary."""
    return tiny(vocab_size=smollm2[0].config.vocab_size)


WRITTEN = "Zwölf Boxkämpfer 🥊👨‍👩‍👧‍👦 jagen 素早い茶色の狐 — naïve café 🇫🇷!\n  ok 🥊👨‍👩‍👧‍👦 done."


def forced(tokenizer: Any, text: str = WRITTEN) -> dict[str, Any]:
    tokens = tokenizer(text).input_ids
    start = len(tokenizer("Say it").input_ids)
    return {
        "logits_processor": LogitsProcessorList([Forced(start, tokens)]),
        "max_new_tokens": len(tokens),
        "do_sample": False,
    }


def test_streamed_pieces_make_up_the_text_and_no_piece_breaks_a_character(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, drafters=["suffix", "prompt-lookup"], policy="random", lengths=(1, 3))
    whole = decoder.generate("Say it", **forced(tokenizer))
    assert whole.text == WRITTEN
    pieces = list(decoder.stream("Say it", **forced(tokenizer)))
    assert "".join(piece.text for piece in pieces) == WRITTEN
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert [t for piece in pieces for t in piece.tokens] == whole.tokens
    assert all(len(piece.tokens) == len(piece.sources) for piece in pieces)
    assert len(pieces) > 10


def test_a_text_cut_in_the_middle_of_a_character_streams_as_it_decodes(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer)
    cut = {**forced(tokenizer, "ok 👨‍👩‍👧‍👦"), "max_new_tokens": 3}
    whole = decoder.generate("Say it", **cut)
    assert "\ufffd" in whole.text
    assert "".join(piece.text for piece in decoder.stream("Say it", **cut)) == whole.text


def test_streamers_get_what_transformers_gives_them(
    smollm2: Pair, speaker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, policy="random")
    for skip in (False, True):
        decoder.generate("Say it", streamer=TextStreamer(tokenizer, skip_prompt=skip), **forced(tokenizer))
        mine = capsys.readouterr().out
        ids = tokenizer("Say it", return_tensors="pt").input_ids
        speaker.generate(ids, streamer=TextStreamer(tokenizer, skip_prompt=skip), **forced(tokenizer))
        assert mine == capsys.readouterr().out
        streamer = TextStreamer(tokenizer, skip_prompt=skip)
        dropin = functools.partial(wager.generate, streamer=streamer)
        speaker.generate(ids, custom_generate=dropin, **forced(tokenizer))
        assert mine == capsys.readouterr().out


def test_an_iterating_streamer_is_fed_from_a_thread(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=30)
    decoder = wager.Decoder(speaker, tokenizer)
    thread = Thread(target=decoder.generate, args=("Say it",), kwargs={"streamer": streamer, **forced(tokenizer)})
    thread.start()
    assert "".join(streamer) == WRITTEN
    thread.join()


def test_stop_strings_end_the_text_where_transformers_ends_it(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, policy="random")
    ids = tokenizer("Say it", return_tensors="pt").input_ids
    for stops in ("jagen", ["nowhere", "café"], ["xen", "狐"]):
        answer = decoder.generate("Say it", stop_strings=stops, **forced(tokenizer))
        theirs = speaker.generate(ids, stop_strings=stops, tokenizer=tokenizer, **forced(tokenizer))
        assert answer.tokens == theirs[0, ids.shape[1] :].tolist()
        assert answer.finish == "stop" if stops != ["xen", "狐"] or "狐" in answer.text else "length"
        settings = forced(tokenizer)
        forcing = {"logits_processor": settings.pop("logits_processor")}
        config = GenerationConfig(stop_strings=stops, **settings)
        assert decoder.generate("Say it", generation_config=config, **forcing).tokens == answer.tokens


def test_chat_messages_are_put_into_the_models_template(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    messages = [{"role": "user", "content": "Say it"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    answer = wager.Decoder(speaker, tokenizer).generate(messages, max_new_tokens=5, do_sample=False)
    assert answer.prompt_tokens == len(ids)
    assert answer.tokens == plain(speaker, ids, max_new_tokens=5)


def test_a_seed_repeats_a_sampled_text() -> None:
    decoder = informed(tiny(), policy="round-robin", forget=True, drafters=[PromptLookup(), DraftModel(tiny(seed=1))])
    once, again, other = (decoder.generate(PROMPT, max_new_tokens=40, do_sample=True, seed=s).tokens for s in (1, 1, 2))
    assert once == again != other


# -- drop-in


def test_the_drop_in_gives_what_generate_gives() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    settings = {"max_new_tokens": 40, "do_sample": False}
    theirs = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, **settings), theirs)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, use_cache=False, **settings), theirs)
    own = informed(model)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, decoder=own, **settings), theirs)
    assert own.loop.text == theirs[0].tolist()


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_drop_in_heeds_padding_on_the_left(use_cache: bool) -> None:
    for family in ("llama", "gpt2", "mistral, window"):
        model = tiny(family)
        ids = torch.tensor([[0, 0, 0, *PROMPT]])
        mask = (ids > 0).long()
        settings = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False}
        theirs = model.generate(ids, **settings)
        decoder = wager.Decoder(model, drafters=[Told([theirs[0].tolist()]), "suffix"], policy="random")
        mine = model.generate(ids, custom_generate=wager.generate, decoder=decoder, use_cache=use_cache, **settings)
        assert torch.equal(mine, theirs)
        if family != "mistral, window":  # which has lost sight of the padding
            assert theirs[0, 13:].tolist() != plain(model, ids[0].tolist(), max_new_tokens=40)


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_drop_in_returns_a_dictionary_where_asked(use_cache: bool) -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    settings = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True, "use_cache": use_cache}
    mine = model.generate(ids, custom_generate=wager.generate, **settings)
    theirs = model.generate(ids, **settings)
    assert torch.equal(mine.sequences, theirs.sequences)
    assert (mine.past_key_values is None) == (theirs.past_key_values is None) == (not use_cache)


@pytest.mark.parametrize("family", ["llama", "mistral, window", "gpt2"])
def test_the_drop_in_goes_on_from_a_cache(family: str) -> None:
    model, ids = tiny(family), torch.tensor([PROMPT])
    settings = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    both = []
    for how in ({"custom_generate": wager.generate}, {}):
        first = model.generate(ids, **settings, **how)
        cache = first.past_key_values
        assert cache.get_seq_length() == first.sequences.shape[1] - 1
        longer = torch.cat((first.sequences, torch.tensor([[5, 6, 7]])), dim=1)
        second = model.generate(longer, past_key_values=cache, **settings, **how)
        assert cache.get_seq_length() == second.sequences.shape[1] - 1
        both.append(second.sequences.tolist())
    assert both[0] == both[1]


def test_a_text_that_ended_inside_its_draft_leaves_nothing_behind_in_the_cache() -> None:
    model = tiny()
    whole = plain(model)
    end = next(t for i, t in enumerate(whole) if i > 8 and t not in whole[:i])
    decoder = wager.Decoder(model, drafters=[Told([[*PROMPT, *whole]], 1000)], policy="fixed:drafter=told,length=8")
    settings = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": end, "return_dict_in_generate": True}
    first = model.generate(torch.tensor([PROMPT]), custom_generate=wager.generate, decoder=decoder, **settings)
    assert first.past_key_values.get_seq_length() == first.sequences.shape[1] - 1
    longer = torch.cat((first.sequences, torch.tensor([[5, 6, 7]])), dim=1)
    settings["eos_token_id"] = None
    second = model.generate(longer, past_key_values=first.past_key_values, custom_generate=wager.generate, **settings)
    assert second.sequences.tolist() == model.generate(longer, **settings).sequences.tolist()


def test_a_decoder_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="made for another"):
        tiny().generate(
            torch.tensor([PROMPT]),
            max_new_tokens=3,
            custom_generate=wager.generate,
            decoder=wager.Decoder(tiny(seed=1)),
        )


def test_a_cache_needs_the_whole_text_with_it() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    first = model.generate(ids, max_new_tokens=5, return_dict_in_generate=True)
    for given in (first.sequences[:, :-1], torch.ones(1, 30, dtype=torch.long)):
        mask = torch.ones(1, max(given.shape[1], 14) + (given.shape[1] == 30), dtype=torch.long)
        with pytest.raises(ValueError, match="pass the whole text"):
            model.generate(
                given,
                attention_mask=mask,
                past_key_values=copy.deepcopy(first.past_key_values),
                custom_generate=wager.generate,
                max_new_tokens=3,
            )


def test_the_drop_ins_decoder_is_kept_and_goes_with_the_model() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    for _ in range(2):
        model.generate(ids, max_new_tokens=3, custom_generate=wager.generate)
        kept = model._wager_decoder
    assert model._wager_decoder is kept
    twin = copy.deepcopy(model)
    assert twin._wager_decoder is None
    assert torch.equal(
        twin.generate(ids, max_new_tokens=9, do_sample=False, custom_generate=wager.generate),
        model.generate(ids, max_new_tokens=9, do_sample=False),
    )
    gone = [weakref.ref(model), weakref.ref(kept)]
    del model, kept
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


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

    def propose(self, length: int, sample: Sampler | None = None) -> Draft:
        return Draft([*super().propose(length - 1).tokens, VOCABULARY + 1])


def test_drafted_tokens_that_the_target_lacks_are_left_out() -> None:
    model = tiny()
    text = plain(model)
    decoder = wager.Decoder(model, drafters=[Overreaching([[*PROMPT, *text]])], policy="random")
    assert ours(decoder) == text


def test_a_model_of_an_odd_shape_goes_through_its_own_forward() -> None:
    model = tiny().double()
    decoder = wager.Decoder(model, policy="random")
    assert type(decoder.target).__name__ == "Eager"
    assert ours(decoder) == plain(model)


# -- what policies and traces see


class Watching(Policy):
    """Every arm in turn, and everything it was shown."""

    needs = frozenset(Signal)

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.contexts: list[Context] = []
        self.rounds: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.contexts.append(context)
        return context.arms[len(self.contexts) % len(context.arms)]

    def observe(self, round: Round) -> None:
        self.rounds.append(round)


def test_a_policy_of_ones_own_sees_contexts_and_rounds() -> None:
    model = tiny()
    arms = informed(model).arms
    policy = Watching(arms)
    decoder = informed(model, policy=policy)
    check(model, PROMPT, ours(decoder), plain(model))
    contexts, rounds = policy.contexts, policy.rounds
    assert len(contexts) == len(rounds) > 5
    assert [context.prompt is not None for context in contexts] == [True] + [False] * (len(contexts) - 1)
    assert contexts[0].prompt is not None
    assert contexts[0].prompt.length == len(PROMPT)
    with torch.no_grad():
        ids = torch.tensor([PROMPT])
        loss = model(input_ids=ids, labels=ids).loss
    assert contexts[0].prompt.perplexity == pytest.approx(float(loss.exp()), rel=1e-3)
    assert contexts[0].previous is None
    assert [c.previous for c in contexts[1:]] == [r.arm for r in rounds[:-1]]
    assert all(c.arms is contexts[0].arms and c.arms[0] == OFF for c in contexts)
    tokens = 1
    for context, played in zip(contexts, rounds, strict=True):
        assert context.tokens == tokens
        tokens += played.emitted
        assert set(context.hints) <= {"told", "prompt-lookup", "suffix"}


def test_a_draft_models_lag_is_what_it_has_not_read() -> None:
    class Late(Watching):
        def choose(self, context: Context) -> Arm:
            super().choose(context)
            return next(a for a in context.arms if a.length == (4 if len(self.contexts) in (6, 7) else 0))

    model, policy = tiny(), Late((OFF, Arm("draft-model", 4)))
    decoder = wager.Decoder(model, drafters=[DraftModel(tiny())], policy=policy, lengths=(4,))
    ours(decoder)
    lags = [context.lag["draft-model"] for context in policy.contexts]
    # all but the newest token of prompt and text; then, its draft kept whole, the draft's own last token is missing
    assert lags[:7] == [*range(len(PROMPT), len(PROMPT) + 6), 1]
    assert [r.lag for r in policy.rounds[:8]] == [0, 0, 0, 0, 0, len(PROMPT) + 5, 1, 0]
    assert [r.accepted for r in policy.rounds[5:7]] == [4, 4]
    assert policy.rounds[6].lag_seconds == 0


def test_a_trace_holds_everything_and_reads_back(tmp_path: Path) -> None:
    model = tiny()
    path = tmp_path / "trace.jsonl"
    whole = [[*PROMPT, *plain(model)]]
    with TraceWriter(path, {"model": "tiny"}) as writer:
        drafters = [Told(whole), PromptLookup(), DraftModel(alike(model))]
        decoder = wager.Decoder(model, drafters=drafters, policy="round-robin", trace=writer)
        answers = [
            decoder.generate(PROMPT, max_new_tokens=60, do_sample=sample, label=label)
            for sample, label in ((False, "greedy"), (True, "sampled"))
        ]
    check(model, PROMPT, answers[0].tokens, plain(model))
    records = list(traces.read(path))
    assert traces.read_meta(path) == {"model": "tiny"}
    starts = [i for i, record in enumerate(records) if isinstance(record, Request)]
    assert starts == [0, len(answers[0].rounds) + 1]
    assert [records[i].label for i in starts] == ["greedy", "sampled"]  # type: ignore[union-attr]
    assert all(records[i].prompt is not None for i in starts)  # type: ignore[union-attr]
    rounds = [record for record in records if isinstance(record, Round)]
    assert rounds == [r for answer in answers for r in answer.rounds]
    for played in rounds:
        assert len(played.overlap) == played.drafted
        assert played.repeated is not None
        assert played.arm.drafter not in played.others
    # what others would have got is right: the one who knows the text is asked in every round but the last few
    knowing = [r for r in answers[0].rounds if r.arm == OFF]
    assert {r.others["told"] for r in knowing} <= {0, 1}
    assert any(r.others["told"] for r in knowing)
    text, seen = list(PROMPT), []
    at = 1
    for played in answers[0].rounds:
        new = answers[0].tokens[at : at + played.emitted]
        known = {*text, *answers[0].tokens[:at]}
        seen.append(sum((t in known) or known.add(t) or False for t in new))
        at += played.emitted
    assert [r.repeated for r in answers[0].rounds] == seen


def test_memory_is_kept_unless_told_to_forget() -> None:
    model = tiny()
    for forget in (False, True):
        policy = round_robin()
        decoder = wager.Decoder(model, drafters="suffix", policy=policy, forget=forget)
        decoder.generate(PROMPT, max_new_tokens=3)
        first = decoder.generate(PROMPT, max_new_tokens=3).rounds[0].arm
        assert first == decoder.arms[0 if forget else 2]


def round_robin() -> Any:
    return decoding.build_policy("round-robin", [OFF, *(Arm("suffix", n) for n in decoding.LENGTHS)])


# -- what is refused


@pytest.mark.parametrize(
    ("prompt", "settings", "says"),
    [
        ([], {}, "prompt is empty"),
        (list(range(60)), {}, "has 60 tokens, and the model holds 32"),
        (list(range(32)), {}, "has 32 tokens, and the model holds 32"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is at least 1, not 0"),
        ([PROMPT, PROMPT], {}, "one text at a time, not a batch of 2"),
        (torch.tensor([PROMPT, PROMPT]), {}, "one text at a time, not a batch of 2"),
        (PROMPT, {"num_beams": 2}, "no beam search"),
        (PROMPT, {"num_return_sequences": 2, "do_sample": True}, "one sequence at a time, not 2"),
        (PROMPT, {"guidance_scale": 2.0}, "guidance runs the model a second time"),
        ([1, 99], {}, "numbers from 0 to 63"),
        ("words", {}, "needs a tokenizer"),
        (PROMPT, {"stop_strings": "x"}, "needs? a tokenizer"),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_one_sentence(prompt: Any, settings: dict[str, Any], says: str) -> None:
    model = tiny(max_position_embeddings=32)
    decoder = wager.Decoder(model)
    with pytest.raises(ValueError, match=says) as caught:
        decoder.generate(prompt, **{"max_new_tokens": 5, **settings})
    assert len(str(caught.value).splitlines()) == 1
    assert ours(decoder, max_new_tokens=5) == plain(model, max_new_tokens=5)  # and the decoder lives on


def test_decoders_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary of 2,000 tokens and the target one of 64"):
        wager.Decoder(tiny(), drafters=[DraftModel(tiny(vocab_size=2000))])
    with pytest.raises(ValueError, match="encoder-decoder"):
        wager.Decoder(T5ForConditionalGeneration(T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)))
    with pytest.raises(ValueError, match="two drafters are called 'suffix'"):
        wager.Decoder(tiny(), drafters=["suffix", "suffix"])
    with pytest.raises(ValueError, match="1 or more"):
        wager.Decoder(tiny(), lengths=(0, 2))
    with pytest.raises(ValueError, match="no drafter here for arm retrieval:4"):
        wager.Decoder(tiny(), arms=["retrieval:4"])


def test_a_model_whose_cache_cannot_be_cropped_is_refused() -> None:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=None)
    model = MambaForCausalLM(config).eval()
    with pytest.raises(ValueError, match="cannot be cropped"):
        wager.Decoder(model).generate(PROMPT, max_new_tokens=5)


def test_a_model_without_a_key_value_cache_is_refused() -> None:
    config = OpenAIGPTConfig(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    with pytest.raises(ValueError, match="takes no key-value cache"):
        wager.Decoder(OpenAIGPTLMHeadModel(config).eval())


def test_the_drop_in_refuses_what_it_cannot_do() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    for settings, says in (
        ({"num_beams": 2}, "no beam search"),
        ({"output_scores": True, "return_dict_in_generate": True}, "does not collect scores"),
        ({"cache_implementation": "static", "return_dict_in_generate": True}, "cannot be cropped"),
    ):
        with pytest.raises(ValueError, match=says):
            model.generate(ids, custom_generate=wager.generate, max_new_tokens=5, **settings)
    with pytest.raises(ValueError, match="not 2"):
        model.generate(ids.repeat(2, 1), custom_generate=wager.generate, max_new_tokens=5)


def test_a_second_text_while_a_stream_is_open_is_refused(smollm2: Pair, speaker: Any) -> None:
    decoder = wager.Decoder(speaker, smollm2[1])
    stream = decoder.stream("Say it", max_new_tokens=9, do_sample=False)
    next(stream)
    with pytest.raises(ValueError, match="in the middle of another text"):
        decoder.generate("Say it", max_new_tokens=9)
    first = next(stream)  # the open one goes on unharmed
    assert first.tokens
    stream.close()
    assert len(decoder.generate("Say it", max_new_tokens=9, do_sample=False).tokens) == 9


def test_a_failing_drafter_leaves_the_decoder_fit_for_the_next_request() -> None:
    class Failing(Told):
        def propose(self, length: int, sample: Sampler | None = None) -> Draft:
            raise RuntimeError("broken")

    model = tiny()
    decoder = wager.Decoder(model, drafters=[Failing()], policy="fixed:drafter=told,length=2")
    with pytest.raises(RuntimeError, match="broken"):
        ours(decoder)
    decoder.drafters["told"] = Told()
    check(model, PROMPT, ours(decoder), plain(model))
