"""Models by name: folders, hub ids, and what is said when there is none."""

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from told import message
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from wager.models import load, load_model, load_tokenizer, resolve

by_name = sys.modules["wager.models.resolve"]  # the module: its function has the same name
NAMES = "smollm2-135m (fetched once), a folder with config.json, or a Hugging Face id such as org/name"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a very small Llama in bfloat16 and a tokenizer of three words."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 4}
    config = LlamaConfig(hidden_size=8, intermediate_size=8, **sizes)  # type: ignore[arg-type]
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2, "?": 3}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
    return folder


def test_a_folder_loads_in_float32_unless_told_otherwise(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert resolve(str(tiny)) == tiny
    model, tokenizer = load(str(tiny), device="cpu")
    assert str(model.dtype) == "torch.float32"
    assert str(model.device) == "cpu"
    assert len(tokenizer) == 4
    assert str(load_model(tiny, device="cpu", dtype="bfloat16").dtype) == "torch.bfloat16"
    assert capfd.readouterr() == ("", "")


def test_a_gpu_gets_the_published_precision() -> None:
    assert by_name._dtype("smollm2-135m", "auto", torch.device("cuda")) == "bfloat16"
    assert by_name._dtype("org/name", "auto", torch.device("cuda")) == "auto"  # transformers: as the checkpoint says
    assert by_name._dtype("org/name", "float16", torch.device("cuda")) == "float16"


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"dtype": "int8"}, "unknown dtype 'int8'; choose from auto, float32, bfloat16, float16"),
        ({"device": "abacus"}, "no device 'abacus'; choose auto, cpu"),
        ({"device": "cuda:99"}, "no device 'cuda:99'"),
    ],
)
def test_wrong_settings_are_named(tiny: Path, settings: dict[str, str], names: str) -> None:
    assert names in message(lambda: load(tiny, **settings))


@pytest.mark.parametrize(
    "name", ["", "./nowhere", "/nowhere/at/all", "a/b/c", "two words", "~nobody/x", "x" * 300, "new\nline", "a..b"]
)
def test_what_is_no_model_is_told_what_would_be(name: str) -> None:
    said = message(lambda: resolve(name))
    assert said.startswith("no folder")
    assert said.endswith(NAMES)


def test_a_folder_says_what_it_lacks_and_a_file_is_not_a_model(tmp_path: Path, tiny: Path) -> None:
    assert "has no config.json" in message(lambda: load(str(tmp_path)))
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    assert "no weights" in message(lambda: load_model(str(tmp_path)))
    assert "cannot load the tokenizer" in message(lambda: load_tokenizer(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-10])
    assert "cannot load the model" in message(lambda: load_model(str(tmp_path)))
    assert "is a file, not a model" in message(lambda: resolve(str(tmp_path / "model.safetensors")))


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "is an encoder-decoder (T5For"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "is no causal language model (BertForMaskedLM)"),
        ({"model_type": "vit"}, "is no causal language model (vit)"),
        ({"model_type": "unheard-of"}, "cannot load the configuration"),
        ({}, "cannot load the configuration"),
    ],
)
def test_only_decoder_only_models_load(tmp_path: Path, config: dict[str, Any], names: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert names in message(lambda: load_model(str(tmp_path)))


@pytest.mark.parametrize("hub", ["silent", "refusing", "forbidden"])
def test_without_a_hub_an_id_fails_fast_and_an_earlier_download_loads(
    tmp_path: Path, tiny: Path, hub: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "hub" / "models--org--present"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / ("0" * 40)).symlink_to(tiny)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        if hub == "silent":  # takes the question and never answers
            door.listen()
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{door.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", hub == "forbidden")
        by_name._on_hub.cache_clear()
        assert by_name.HUB_SECONDS <= 5
        monkeypatch.setattr(by_name, "HUB_SECONDS", 0.1)
        said = message(lambda: resolve("org/absent"))
        model, tokenizer = load("org/present", device="cpu")
    reason = "HF_HUB_OFFLINE forbids" if hub == "forbidden" else "the hub cannot be reached"
    assert said.startswith("no folder 'org/absent', nothing downloaded earlier, and " + reason)
    assert said.endswith(NAMES)
    assert (model.config.model_type, len(tokenizer)) == ("llama", 4)
    assert capfd.readouterr().err == ""


def test_a_hub_whose_name_is_never_looked_up_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    over = threading.Event()
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: over.wait(60))  # no limit of its own
    monkeypatch.setattr(by_name, "HUB_SECONDS", 0.05)
    said = message(lambda: resolve("org/never-looked-up"))
    assert "nothing downloaded earlier, and the hub cannot be reached (TimeoutError); a model is" in said
    assert not over.is_set()
    over.set()
