"""Memory: what one run learned the next begins with; a file that does not fit, or cannot be written, stops nobody."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from wager import Decoder
from wager.core import Arm, Context, Round, files
from wager.core.files import MemoryWarning
from wager.decoding import memory as memories
from wager.decoding.memory import FORMAT, default_path, described
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.policies import Policy, build

PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Never the user's own."""
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(layers: int = 2) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=layers)).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


# a policy that looks at no clock: what it plays depends on what it learned alone
def decoder(model: Any, memory: bool | str | Path = True, **how: Any) -> Decoder:
    return Decoder(model, memory=memory, **{"policy": "ucbspec", "lengths": (2, 4), **how})


def answer(decoder: Decoder, tokens: int = 24) -> list[str]:
    """The arms of a text."""
    return [str(r.arm) for r in decoder.generate(PROMPT, max_new_tokens=tokens, do_sample=False).rounds]


def file_of(decoder: Decoder) -> Path:
    assert decoder.memory is not None
    return decoder.memory.path


def keep(decoder: Decoder) -> Path:
    assert decoder.memory is not None
    decoder.memory.save()
    return decoder.memory.path


def state(decoder: Decoder) -> dict[str, Any]:
    kept: dict[str, Any] = decoder.policy.state_dict()  # type: ignore[attr-defined]
    return json.loads(json.dumps(kept))  # type: ignore[no-any-return]


def test_a_second_decoder_starts_with_what_the_first_learned_and_chooses_likewise(model: Any) -> None:
    first = decoder(model)
    fresh = answer(first)
    path = keep(first)
    second = decoder(model)
    assert state(second) == state(first)
    for drafter in first.drafters.values():
        drafter.forget()  # drafters remember nothing, so that this is about the policy alone
    assert answer(second) == answer(first)
    assert answer(decoder(model)) != fresh, "the test sees no memory"
    assert answer(decoder(model, memory=False)) == fresh
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "wager", "of", "state"]
    assert path.parent.name == "memory"
    assert path.name.startswith("llamaforcausallm-ucbspec-cpu-")


def test_the_default_policy_remembers_all_it_learned(model: Any) -> None:
    first = Decoder(model, memory=True)
    answer(first, 60)
    keep(first)
    assert state(Decoder(model, memory=True)) == state(first)


def test_nothing_is_kept_unless_asked_for_nor_where_nothing_was_learned(model: Any, cache: Path) -> None:
    answer(Decoder(model))
    keep(decoder(model))
    one_token = decoder(model)
    answer(one_token, 1)
    keep(one_token)
    fixed = decoder(model, policy="fixed:drafter=suffix,length=2")
    answer(fixed)
    gc.collect()
    assert fixed.memory is None
    assert not cache.exists()


def test_the_text_is_the_same_with_a_memory_and_without(model: Any) -> None:
    def text(decoder: Decoder) -> list[int]:
        return decoder.generate(PROMPT, max_new_tokens=40, do_sample=False).tokens

    first = Decoder(model, memory=True)
    texts = [text(Decoder(model)), text(first)]
    keep(first)
    assert text(Decoder(model, memory=True)) == texts[0] == texts[1]


# -- files that do not fit


def _changed(**parts: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **parts})


def _without_learned(text: str) -> str:
    content = json.loads(text)
    content["state"]["learned"]["pulls"] = {"deck": 3}
    return json.dumps(content)


UNFIT: dict[str, tuple[Callable[[str], str], str]] = {
    "other version": (_changed(version=2), "it has version 2, not 1"),
    "other wager": (_changed(wager="0.0.1"), "it has wager 0.0.1, not"),
    "other key": (_changed(of={"model": "Another"}), "it was learned with model 'Another', not 'LlamaForCausalLM'"),
    "no key": (_changed(of=None), "its state is damaged"),
    "other state": (_changed(state={"policy": "Nightjar"}), "saved state is for policy Nightjar"),
    "no state": (_changed(state=[]), "its state is damaged"),
    "other learned": (_without_learned, "its state is damaged"),
    "half": (lambda text: text[: len(text) // 2], "it is damaged"),
}
FOREIGN: dict[str, Callable[[str], str]] = {
    "other format": _changed(format="wager-trace"),
    "list": lambda text: "[]",
    "deep": lambda text: "[" * 100_000,
    "words": lambda text: "dear diary",
}


def _ignored_and_replaced(model: Any, path: Path, why: str, memory: bool | Path) -> None:
    with pytest.warns(MemoryWarning) as said:
        other = decoder(model, memory=memory)
    assert len(said) == 1
    assert said[0].filename == __file__, "the warning points at who made the decoder"
    assert str(said[0].message).startswith(f"memory {path} is not used and will be replaced: {why}")
    assert "\n" not in str(said[0].message)
    assert state(other) == state(decoder(model, memory=False)), "nothing of it is taken up"
    answer(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keep(other)
        assert state(decoder(model, memory=memory)) == state(other)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("case", UNFIT)
def test_a_file_that_does_not_fit_is_ignored_with_one_warning_and_replaced(
    model: Any, tmp_path: Path, case: str, named: bool
) -> None:
    change, why = UNFIT[case]
    where = tmp_path / "named.json" if named else True
    first = decoder(model, memory=where)
    answer(first)
    path = keep(first)
    path.write_text(change(path.read_text()))
    _ignored_and_replaced(model, path, why, where)


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_is_no_memory_is_replaced_in_the_cache_and_refused_where_it_was_named(
    model: Any, tmp_path: Path, case: str
) -> None:
    first = decoder(model)
    answer(first)
    path = keep(first)
    own = tmp_path / "diary"
    own.write_text(FOREIGN[case](path.read_text()))
    with pytest.raises(ValueError, match="no memory of wager's"):
        decoder(model, memory=own)
    with pytest.raises(ValueError, match="is a folder"):
        decoder(model, memory=tmp_path)
    assert own.read_text() == FOREIGN[case](path.read_text())
    path.write_text(own.read_text())
    _ignored_and_replaced(model, path, "it ", True)


# -- whose file it is


def test_nobody_shares_a_file_with_another_model_device_drafter_or_policy(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix, lookup = Suffix(), PromptLookup()
    arms = (Arm("off", 0), Arm("suffix", 2), Arm("suffix", 4))
    policy = build("auto", arms)
    bigger, half, named = tiny(3), tiny().to(torch.bfloat16), tiny()
    named.name_or_path = "org/name"
    drafting = DraftModel(tiny(1)), DraftModel(tiny(3))
    keys = [
        described(policy, model, [suffix], arms),
        described(policy, bigger, [suffix], arms),
        described(policy, half, [suffix], arms),
        described(policy, named, [suffix], arms),
        described(policy, model, [lookup], arms),
        described(policy, model, [suffix, lookup], arms),
        described(policy, model, [Suffix(depth=8)], arms),
        described(policy, model, [PromptLookup(longest=3)], arms),
        *(described(policy, model, [drafter], arms) for drafter in drafting),
        described(policy, model, [suffix], arms[:2]),
        described(build("auto:budget=9", arms), model, [suffix], arms),
        described(build("ucbspec", arms), model, [suffix], arms),
    ]
    monkeypatch.setattr(memories, "_processor", lambda: "Another CPU")
    keys.append(described(policy, model, [suffix], arms))
    assert len({default_path(key) for key in keys}) == len(keys)
    monkeypatch.undo()
    assert default_path(described(policy, tiny(), [Suffix()], arms)) == default_path(keys[0]), "found again"
    at = "/home/someone/.cache/huggingface/hub/models--org--name/snapshots/0123abcd"
    named.name_or_path = at
    assert described(policy, named, [suffix], arms)["model"] == "org/name", "online or not, the same model"


def test_a_memory_of_another_drafter_is_not_taken_up_from_a_named_file(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "named.json"
    first = decoder(model, memory=path, drafters="suffix")
    answer(first)
    keep(first)
    with pytest.warns(MemoryWarning, match="was learned with drafters"):
        decoder(model, memory=path, drafters=[Suffix(depth=8)])


# -- saving


def test_it_is_saved_after_a_text_when_the_last_time_is_ten_seconds_ago(model: Any) -> None:
    now = 0.0
    made = decoder(model)
    assert made.memory is not None
    made.memory.clock = lambda: now
    made.memory._next = files.EVERY
    path = file_of(made)
    now = 9.9
    answer(made)
    assert not path.exists()
    now = 10.0
    answer(made)
    saved = path.read_text()
    now = 19.9
    answer(made)
    assert path.read_text() == saved
    now = 20.0
    for _ in made.run(made.prepare(PROMPT, {"max_new_tokens": 9, "do_sample": False}), made.target):
        pass
    assert path.read_text() != saved


def test_it_is_saved_only_where_its_own_policy_learned_something_since(model: Any) -> None:
    made = decoder(model)
    answer(made)
    path = keep(made)
    path.unlink()
    keep(made)
    policy, made.policy = made.policy, build("round-robin", made.arms)  # as --compare does for plain decoding
    answer(made)
    keep(made)
    assert not path.exists()
    made.policy = policy
    answer(made)
    assert keep(made).exists()


def test_a_decoder_that_nobody_holds_any_more_leaves_what_it_learned(model: Any) -> None:
    made = decoder(model)
    answer(made)
    path, learned = file_of(made), state(made)
    assert not path.exists()
    del made
    gc.collect()
    assert json.loads(path.read_text())["state"] == learned


def test_it_is_saved_when_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_memory as t\n"
        "made = t.decoder(t.tiny(), memory=sys.argv[2]); t.answer(made)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), str(path)], capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(path.read_text())["format"] == FORMAT


def test_a_writer_that_is_stopped_leaves_the_old_file_whole_and_nothing_beside_it(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = decoder(model)
    answer(made)
    path = keep(made)
    before = path.read_text()

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    answer(made)
    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        keep(made)
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    keep(made)
    assert path.read_text() != before, "what could not be saved is saved the next time"


def test_a_reader_never_sees_half_of_what_two_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    contents = [{"who": who, "much": [who] * 20_000} for who in (0, 1)]
    files.write_json(path, contents[0])
    writers = [threading.Thread(target=lambda c=c: [files.write_json(path, c) for _ in range(20)]) for c in contents]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        assert files.read_json(path) in contents
        reads += 1
    assert reads > 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nobody(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "file" / "cache"))
    made = decoder(model)
    assert made.memory is not None
    made.memory.clock = lambda: 1e9
    with pytest.warns(MemoryWarning) as said:  # noqa: PT031 - one warning for all of it
        for _ in range(3):
            made.memory._next = 0.0  # it is time
            assert len(answer(made)) > 1
        keep(made)
    assert len(said) == 1
    assert str(said[0].message).startswith(f"cannot keep what was learned in {file_of(made)}: ")


# -- forgetting


def test_forgetting_and_remembering_at_once_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="leave out one"):
        decoder(model, forget=True)


def test_reset_goes_back_to_what_was_loaded(model: Any) -> None:
    first = decoder(model)
    answer(first)
    path = keep(first)
    second = decoder(model)
    arms = answer(second)
    for _ in range(2):
        second.reset()
        assert state(second) == state(first)
        assert answer(second) == arms
    saved = path.read_text()
    second.reset()
    keep(second)
    assert path.read_text() == saved, "nothing was learned since"
    fresh = decoder(model, lengths=(3,))
    begun = answer(fresh)
    fresh.reset()
    assert answer(fresh) == begun, "nothing was loaded: from nothing"


# -- policies of the user's own


class Counting(Policy):
    """The last arm always; it counts the rounds."""

    learned = ("count",)
    count: Any = 0

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.reset()

    def choose(self, context: Context) -> Arm:
        return context.arms[-1]

    def observe(self, round: Round) -> None:
        self.count += 1


def counting(model: Any) -> Counting:
    return Counting(decoder(model, memory=False).arms)


def test_a_policy_that_learns_nothing_has_no_memory(model: Any, cache: Path) -> None:
    made = decoder(model, policy="round-robin")
    assert made.memory is not None
    made = decoder(model, policy="random")
    answer(made)
    assert made.memory is None
    assert not cache.exists()


def test_a_policy_that_is_none_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="a policy is a name or"):
        decoder(model, policy={})


def test_a_policy_of_ones_own_is_remembered(model: Any) -> None:
    first = decoder(model, policy=counting(model))
    rounds = len(answer(first))
    keep(first)
    own = counting(model)
    decoder(model, policy=own)
    assert own.count == rounds > 0


def test_a_state_that_is_no_json_is_said_and_stops_nobody(model: Any) -> None:
    own = counting(model)
    made = decoder(model, policy=own)
    answer(made)
    own.count = {1, 2}
    with pytest.warns(MemoryWarning, match="its state is not JSON"):
        keep(made)
