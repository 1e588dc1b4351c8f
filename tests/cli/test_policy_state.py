"""`wager generate` and `wager chat` start from the policy state of earlier runs."""

import json
from pathlib import Path

import pytest
from commands import SHORT, Done, Wager

# a policy that looks at no clock: it tries every arm once, so that it shows where it begins
LEARNING = ("Name a colour.", "--policy", "ucbspec", "--max-tokens", "9", "--json")


def _arms(done: Done) -> list[str]:
    return list(json.loads(done.out)["summary"]["arms"])


def test_what_one_run_learns_the_next_begins_with_unless_told_not_to(wager: Wager, states: Path) -> None:
    first = wager("generate", *LEARNING)
    (file,) = states.iterdir()
    saved = file.read_text()
    forgetful = [wager("generate", *LEARNING, *words) for words in (("--no-state",), ("--seed", "0"))]
    assert file.read_text() == saved
    second = wager("generate", *LEARNING)
    assert [json.loads(done.out)["remembered"] for done in (first, second, *forgetful)] == [False, True, False, False]
    assert [_arms(done) for done in forgetful] == [_arms(first)] * 2
    assert not set(_arms(first)) & set(_arms(second))
    assert json.loads(first.out)["text"] == json.loads(second.out)["text"]
    assert json.loads(wager("generate", *LEARNING, "--seed", "0", "--state").out)["remembered"] is True


def told(err: str) -> list[str]:
    """The lines of standard error but for those that say what is being done."""
    return [line for line in err.splitlines() if not line.endswith("…")]


def test_what_a_chat_learns_generate_begins_with(wager: Wager, states: Path) -> None:
    assert wager("chat", "--no-state", *SHORT, stdin="Hello\n").code == 0
    assert not states.exists()
    assert wager("chat", *SHORT, stdin="Hello\n").code == 0
    assert json.loads(wager("generate", "Hi", "--json", *SHORT).out)["remembered"] is True


def test_a_damaged_memory_and_one_that_cannot_be_kept_are_told_in_a_line_each(wager: Wager, states: Path) -> None:
    wager("generate", *LEARNING)
    (file,) = states.iterdir()
    file.write_text("{")
    done = wager("generate", *LEARNING)
    assert done.code == 0
    (line,) = told(done.err)
    assert line.startswith(
        f"wager: policy state {file} is not used and will be replaced: it is no policy state, or a damaged"
    )
    assert told(wager("generate", *LEARNING).err) == []
    file.unlink()
    states.rmdir()
    states.write_text("")
    done = wager("generate", *LEARNING)
    assert done.code == 0
    (line,) = told(done.err)
    assert line.startswith(f"wager: cannot save policy state to {file}: ")


def test_every_run_of_a_comparison_starts_from_the_memory_and_one_of_them_is_kept(
    wager: Wager, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulls() -> int:
        (file,) = states.iterdir()
        return int(sum(json.loads(file.read_text())["state"]["learned"]["pulls"]))

    first = wager("generate", *LEARNING)
    learned = pulls()
    runs = json.loads(wager("generate", *LEARNING, "--compare").out)["compare"]["ways"]["wager"]["runs"]
    assert list(runs[0]["arms"]) == list(runs[1]["arms"])
    assert not set(runs[0]["arms"]) & set(_arms(first))
    assert pulls() == learned + runs[1]["rounds"]
    monkeypatch.setattr("wager.core.state_file.StateFile.restore", lambda self: None)
    runs = json.loads(wager("generate", *LEARNING, "--compare").out)["compare"]["ways"]["wager"]["runs"]
    assert list(runs[1]["arms"]) == _arms(first), "the test sees no memory"
