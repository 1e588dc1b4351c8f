"""A policy's state file: what one run learned the next begins with."""

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from states import PROMPT, answer, decoder, file_of, keep, state

from wager import Decoder
from wager.core import Arm, Context, Round, files
from wager.core.state_file import EVERY, FORMAT, StateWarning
from wager.policies import Policy, build

pytestmark = pytest.mark.usefixtures("cache")


def test_a_second_decoder_starts_with_what_the_first_learned_and_chooses_likewise(model: Any) -> None:
    first = decoder(model)
    fresh = answer(first)
    path = keep(first)
    second = decoder(model)
    assert state(second) == state(first)
    for drafter in first.drafters.values():
        drafter.forget()  # drafters remember nothing, so that this is about the policy alone
    assert answer(second) == answer(first)
    assert answer(decoder(model)) != fresh, "the test sees no state"
    assert answer(decoder(model, where=False)) == fresh
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "wager", "of", "state"]
    assert path.parent.name == "state"
    assert path.name.startswith("llamaforcausallm-ucbspec-cpu-")


def test_nothing_is_kept_unless_asked_for_nor_where_nothing_was_learned(model: Any, cache: Path) -> None:
    answer(Decoder(model))
    keep(decoder(model))
    one_token = decoder(model)
    answer(one_token, 1)
    keep(one_token)
    for policy in ("fixed:drafter=suffix,length=2", "random"):
        made = decoder(model, policy=policy)
        answer(made)
        assert made.state is None
    gc.collect()
    assert not (cache / "state").exists()  # what rounds cost is kept, no matter what was asked for


def test_the_text_is_the_same_with_a_state_file_and_without(model: Any) -> None:
    def text(decoder: Decoder) -> list[int]:
        return decoder.generate(PROMPT, max_new_tokens=40, do_sample=False).tokens

    first = Decoder(model, state=True)
    texts = [text(Decoder(model)), text(first)]
    keep(first)
    assert state(second := Decoder(model, state=True)) == state(first)
    assert text(second) == texts[0] == texts[1]


def test_it_is_saved_after_a_text_when_the_last_time_is_ten_seconds_ago(model: Any) -> None:
    now = 0.0
    made = decoder(model)
    made.state.clock = lambda: now
    made.state._next = EVERY
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
        "import sys; sys.path.insert(0, sys.argv[1]); import states as t\n"
        "made = t.decoder(t.tiny(), where=sys.argv[2]); t.answer(made)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parents[1]), str(path)], capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(path.read_text())["format"] == FORMAT


def test_a_writer_that_is_stopped_leaves_the_old_file_whole(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_folder_that_cannot_be_written_stops_nobody(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "file" / "cache"))
    made = decoder(model)
    made.state.clock = lambda: 1e9
    with pytest.warns(StateWarning) as said:  # noqa: PT031 - one warning for all of it
        for _ in range(3):
            made.state._next = 0.0  # it is time
            assert len(answer(made)) > 1
        keep(made)
    assert len(said) == 1
    assert str(said[0].message).startswith(f"cannot save policy state to {file_of(made)}: ")


def test_forgetting_and_remembering_at_once_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="leave out one"):
        decoder(model, reset_per_request=True)
    with pytest.raises(TypeError, match="a policy is a name or"):
        decoder(model, policy={})


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


def test_a_policy_of_ones_own_is_remembered_and_told_where_its_state_is_no_json(model: Any) -> None:
    arms = decoder(model, where=False).arms
    first, own = decoder(model, policy=Counting(arms)), Counting(arms)
    rounds = len(answer(first))
    keep(first)
    made = decoder(model, policy=own)
    assert own.count == rounds > 0
    answer(made)
    own.count = object()
    with pytest.warns(StateWarning, match="its state is not JSON"):
        keep(made)
