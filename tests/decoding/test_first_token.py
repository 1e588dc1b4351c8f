"""What is done before the first token: counted, not timed, so that a busy machine changes nothing."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoders import tiny
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

import wager
from wager.decoding import calibrate
from wager.decoding.decoder import REPAID, Decoder
from wager.decoding.loop import Loop
from wager.drafters.draft_model import DraftModel
from wager.models import calibration, llama_weights, packed, select
from wager.models.compat_torch import has_packed_linear
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.policies.auto import Auto

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layers and tokens of every forward, of wager's and of transformers' own."""
    ran: list[tuple[int, int]] = []

    def counted(kind: type, layers: Any) -> None:
        original = kind.forward  # type: ignore[attr-defined]

        def forward(self: Any, tokens: Sequence[int], *more: Any) -> Any:
            ran.append((len(layers(self)), len(tokens)))
            return original(self, tokens, *more)

        monkeypatch.setattr(kind, "forward", forward)

    counted(LlamaRunner, lambda runner: runner.weights.layers)
    counted(HFRunner, lambda runner: runner.model.model.layers)
    return ran


@pytest.mark.usefixtures("cache", "prepared")
def test_before_the_first_token_the_whole_model_runs_only_over_the_prompt(
    forwards: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_weights, "LARGE", 0)
    model = tiny(num_hidden_layers=6)
    decoder = Decoder(model, drafters="suffix,prompt-lookup")
    assert {layers for layers, _ in forwards} == {3}, "the comparison with the model's own forward takes three layers"
    assert len(forwards) == 8
    assert sum(tokens for _, tokens in forwards) == 2 * 48
    forwards.clear()
    steps = decoder.run(decoder.prepare(PROMPT, {"max_new_tokens": 6, "do_sample": False}), decoder.target)
    next(steps)
    assert forwards == [(6, len(PROMPT))]
    next(steps)
    assert len(forwards) > 2, "rounds are timed once the first token is out"


@pytest.mark.usefixtures("cache")
def test_weights_are_packed_once_for_the_comparison_and_for_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_weights, "LARGE", 0)
    model = tiny(num_hidden_layers=6)
    made = select.runner(model)
    assert isinstance(made, LlamaRunner)
    some = made.weights.of_layers(llama_weights.sample_of(model))
    assert [layer is own for layer, own in zip(some.layers, made.weights.layers[::3], strict=False)] == [True, True]
    assert some.layers[-1] is made.weights.layers[-1]
    assert some.lm_head is made.weights.lm_head
    assert some.plan is made.weights.plan
    assert len(made.weights.layers) == 6


@pytest.mark.skipif(not has_packed_linear(), reason="this build of torch has no packed kernels")
@pytest.mark.usefixtures("cache", "prepared")
@pytest.mark.parametrize("policy", ["auto", "fixed:drafter=suffix,length=2", "off"])
def test_weights_are_packed_after_the_first_token_and_before_anything_is_timed(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "SMALLEST", 0)
    every = [packed.PACKED] * len(calibration.WIDTHS)
    monkeypatch.setattr(calibration, "measure", lambda operations, *_: (dict.fromkeys(operations, every), False))
    came: list[str] = []

    def noted(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (came.append(what), original(*given))[1])

    noted(packed, "pack_weight", "packed")
    noted(calibrate, "calibrated", "timed")
    noted(Loop, "_round", "round")
    drafts = DraftModel(tiny(seed=3))
    decoder = Decoder(tiny(num_hidden_layers=2), drafters=["suffix", drafts], policy=policy)
    streamer = SimpleNamespace(put=lambda _: came.append("token"), end=lambda: None)
    made = decoder.generate(PROMPT, max_new_tokens=6, do_sample=False, streamer=streamer)
    first, *_ = once = list(dict.fromkeys(came))
    assert came[:3] == ["token", "token", "packed"], f"the prompt, the first token: {once}"
    assert once == [first, "packed", *(["timed"] if policy == "auto" else []), "round"]
    assert decoder.target.ways
    assert drafts.runner.ways, "a draft model's too"
    again = decoder.generate(PROMPT, max_new_tokens=6, do_sample=False)
    assert again.tokens == made.tokens, "the prompt is read with packed weights by now"
    assert came.count("packed") == came[: came.index("round")].count("packed")


@pytest.mark.usefixtures("cache")
def test_rounds_are_prepared_once_texts_are_long_enough_to_repay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[str] = []
    monkeypatch.setattr(LlamaRunner, "pack", lambda _: came.append("packed"))
    original = calibrate.calibrated
    monkeypatch.setattr(calibrate, "calibrated", lambda *given: (came.append("timed"), original(*given))[1])
    short, long, model = REPAID // 3 + 1, REPAID + 1, tiny()

    def decoder() -> Decoder:
        came.clear()
        return Decoder(model, drafters="suffix")

    def text(decoder: Decoder, tokens: int) -> tuple[list[int], list[str]]:
        before = len(came)
        made = decoder.generate(PROMPT, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
        assert len(made.tokens) == tokens
        return made.tokens, came[before:]

    whole, done = text(decoder(), long)
    assert done == ["packed", "timed"], "a long text repays it"
    many = decoder()
    texts = [text(many, short) for _ in range(4)]
    assert [done for _, done in texts] == [[], [], ["packed", "timed"], ["packed"]], "so do several short ones"
    assert all(tokens == whole[:short] for tokens, _ in texts)
    warmed = decoder()
    with warmed.rehearsal():
        assert text(warmed, short)[1] == ["packed", "timed"], "what is measured afterwards does not pay for it"
    assert text(warmed, short) == (whole[:short], ["packed"])


@pytest.mark.usefixtures("cache")
def test_a_wrong_layer_is_found_by_the_comparison_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_weights, "LARGE", 0)
    model = tiny(num_hidden_layers=6)
    original = LlamaRunner._attend

    def wrong(self: LlamaRunner, qkv: torch.Tensor, layer: Any, *more: Any) -> torch.Tensor:
        return original(self, qkv, layer, *more) * (1.01 if layer is self.weights.layers[-1] else 1.0)

    monkeypatch.setattr(LlamaRunner, "_attend", wrong)
    assert type(select.runner(model)) is HFRunner


@pytest.mark.usefixtures("cache", "prepared")
def test_timing_rounds_is_no_decoding_and_not_before_the_first_token(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []
    now = iter(range(100_000))
    monkeypatch.setattr("wager.decoding.loop.perf_counter", lambda: float(next(now)))
    monkeypatch.setattr("wager.decoding.rounds.perf_counter", lambda: float(next(now)))
    monkeypatch.setattr("wager.decoding.decoder.perf_counter", lambda: float(next(now)))
    original = calibrate.calibrated

    def slow(*given: Any) -> Any:
        came.append("timed")
        for _ in range(10_000):
            next(now)
        return original(*given)

    monkeypatch.setattr(calibrate, "calibrated", slow)
    decoder = Decoder(model, drafters="suffix")
    streamer = SimpleNamespace(put=lambda _: came.append("token"), end=lambda: None)
    made = decoder.generate(PROMPT, max_new_tokens=6, do_sample=False, streamer=streamer)
    assert came[:4] == ["token", "token", "timed", "token"], "the prompt, the first token, then the clock"
    assert came.count("timed") == 1
    assert made.prefill_seconds > 10_000 > made.decode_seconds


@pytest.mark.usefixtures("cache")
def test_a_text_of_one_token_times_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Auto, "calibrate", lambda *_: pytest.fail("there is no round to bet on"))
    assert len(Decoder(model, drafters="suffix").generate(PROMPT, max_new_tokens=1, do_sample=False).tokens) == 1


class Counted(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["gpt_neox", "opt", "stablelm"])
def other(request: pytest.FixtureRequest) -> Any:
    """A small model of a family that runs through transformers' own forward."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    more = {"num_key_value_heads": 2} if request.param == "stablelm" else {}
    inner = {"ffn_dim": 48, "word_embed_proj_dim": 32} if request.param == "opt" else {"intermediate_size": 48}
    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(request.param, **sizes, **more, **inner)).eval()
    made.generation_config.eos_token_id = None
    return made


def test_a_token_of_plain_decoding_takes_no_more_operations_than_with_generate(other: Any) -> None:
    ids = torch.tensor([PROMPT])
    decoder = Decoder(other, drafters="suffix,prompt-lookup", policy="off")
    assert type(decoder.target) is HFRunner

    def operations(ours: bool, count: int) -> int:
        how = {"custom_generate": wager.generate, "decoder": decoder} if ours else {}
        with Counted() as counted:
            other.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **how)
        return counted.count

    theirs, own = ((operations(ours, 24) - operations(ours, 8)) / 16 for ours in (False, True))
    assert 0 < own <= theirs
