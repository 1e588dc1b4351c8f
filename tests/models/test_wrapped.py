"""Models as others wrap and change them: compiled, with adapters, quantized."""

from typing import Any

import pytest
import torch
from decoders import PROMPT, Grafted, Told, ours, plain, tiny
from families import HALF, SIZES
from transformers import AutoModelForCausalLM, Gemma3Config

import wager
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.step_runner import StepRunner
from wager.models.unwrap import unwrapped


class Adapted(torch.nn.Module):
    """A linear layer with a low-rank adapter, as PEFT puts it into a model."""

    def __init__(self, base: torch.nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
        return out


class Tuner(torch.nn.Module):
    """PEFT's LoraModel: the changed model is inside, and whatever it lacks is the model's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


class Peft(torch.nn.Module):
    """PEFT's PeftModel, as far as its documentation describes it: PEFT itself is not installed for the tests."""

    def __init__(self, model: Any, virtual: bool = False) -> None:
        super().__init__()
        self.base_model = Tuner(model)
        self.peft_config = {"default": type("Config", (), {"is_prompt_learning": virtual})()}
        self.config = model.config

    def get_base_model(self) -> Any:
        return self.base_model.model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.generate(*args, **kwargs)


def adapted() -> Any:
    model = tiny()
    torch.manual_seed(5)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj)
    return model


def test_a_peft_model_runs_with_its_adapters() -> None:
    model = Peft(adapted())
    expected = plain(model)
    assert expected != plain(tiny()), "the adapters change the text"
    decoder = wager.Decoder(model, drafters=[Told([[*PROMPT, *expected]])], policy="random", trees=())
    assert type(decoder.target) is HFRunner
    assert ours(decoder) == expected
    ids = torch.tensor([PROMPT])
    settings = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 60}
    made = model.generate(ids, custom_generate=wager.generate, decoder=decoder, **settings)
    assert made[0, len(PROMPT) :].tolist() == expected


def test_virtual_tokens_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"'default' puts virtual tokens before the text, .*; use adapters inside"):
        wager.Decoder(Peft(tiny(), virtual=True))


def test_a_compiled_model_is_unwrapped() -> None:
    model = tiny()
    compiled = torch.compile(model)
    decoder = wager.Decoder(compiled, drafters=[Told([[*PROMPT, *plain(model)]])], policy="random")
    assert decoder.model is unwrapped(compiled) is model
    assert type(decoder.target) is LlamaRunner
    assert ours(decoder) == plain(model)
    ids = torch.tensor([PROMPT])
    made = compiled.generate(ids, custom_generate=wager.generate, decoder=decoder, max_new_tokens=9, do_sample=False)
    assert made[0, len(PROMPT) :].tolist() == plain(model, max_new_tokens=9)


class Int8(torch.nn.Module):
    """A linear layer whose weights are 8-bit numbers with a scale for each row."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (base.weight.detach() / scale).round().to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight * self.scale)


def test_weights_in_eight_bits_run_through_the_models_own_forward() -> None:
    model = tiny()
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, name, Int8(getattr(layer.mlp, name)))
    expected = plain(model)
    decoder = wager.Decoder(model, drafters=[Told([[*PROMPT, *expected]])], policy="random")
    assert type(decoder.target) is HFRunner
    assert decoder.target.trees
    assert ours(decoder) == expected


@pytest.mark.filterwarnings("ignore")
def test_activations_quantized_together_are_refused_in_one_sentence() -> None:
    quantized = torch.ao.quantization.quantize_dynamic(tiny(), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ValueError, match=r"several tokens at once other logits than one by one.*drafters='off'"):
        wager.Decoder(quantized)  # one scale for all tokens of a forward
    decoder = wager.Decoder(quantized, drafters="off")
    assert type(decoder.target) is StepRunner
    assert ours(decoder) == plain(quantized)


def test_a_model_that_also_takes_images_decodes_text() -> None:
    shape = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    heads = {name: SIZES[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")}
    text = {**shape, **heads, "sliding_window": 12, "layer_types": HALF, "initializer_range": 0.3, "eos_token_id": None}
    seen = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"image_token_index": 60, "boi_token_index": 61, "eoi_token_index": 62, "mm_tokens_per_image": 4}
    sizes = {"text_config": text, "vision_config": {**seen, "image_size": 16, "patch_size": 8}}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Gemma3Config(**sizes, **tokens)).eval()
    model.generation_config.eos_token_id = None
    model.get_output_embeddings().weight = torch.nn.Parameter(0.3 * torch.randn(64, 32))
    expected = plain(model)
    drafters = [Told([[*PROMPT, *expected]]), Grafted([*PROMPT, *expected])]
    decoder = wager.Decoder(model, drafters=drafters, policy="round-robin", lengths=(2, 5), trees=["3x9"])
    assert type(decoder.target) is HFRunner
    assert ours(decoder) == expected
    pictures = torch.zeros((1, 3, 16, 16))
    with pytest.raises(ValueError, match="wager decodes text alone"):
        model.generate(torch.tensor([PROMPT]), pixel_values=pictures, custom_generate=wager.generate, max_new_tokens=3)
