"""The file that names the policy of a running engine: whatever is in it, and wherever it is, the engine goes on."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from wager.vllm import policy_file
from wager.vllm.policy_file import PolicyFile
from wager.vllm.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of an engine that looks at its file in every step."""
    monkeypatch.setattr(policy_file, "INTERVAL", 0.0)
    return Settings(("ngram",), policy="off", control=str(tmp_path / "policy"))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as an error since this was last asked."""
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    caplog.clear()
    return said


def test_a_control_file_changes_the_policy(settings: Settings) -> None:
    first = settings.build_policy()
    control = PolicyFile(settings, first)
    assert control.policy() is first

    def say(spec: str, at: int) -> Any:
        Path(settings.control).write_text(spec)
        os.utime(settings.control, ns=(at, at))
        return control.policy()

    robin = say("round-robin", 1)
    assert type(robin).__name__ == "RoundRobin"
    assert say("off", 2) is first
    assert say("round-robin", 3) is robin
    again = say("+round-robin", 4)
    assert again is not robin, "a plus starts anew"
    assert say("clairvoyant", 5) is again, "a running engine does not stop for a wrong name"
    assert type(say("nightjar", 5)).__name__ == "Nightjar", "a file may be read while it is written"


@pytest.mark.parametrize("error", [ValueError, TypeError, OverflowError, ZeroDivisionError, MemoryError])
def test_no_specification_ends_a_running_engine(
    settings: Settings, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = settings.build_policy()
    control = PolicyFile(settings, first)

    def refuse(self: Settings, spec: str) -> None:
        raise error

    monkeypatch.setattr(Settings, "build_policy", refuse)
    Path(settings.control).write_text("auto")
    assert control.policy() is first
    assert control.policy() is first
    (said,) = errors(caplog)
    assert said.endswith(f"names no policy for this engine, the policy stays as it is: {error.__name__}")


def test_a_file_that_cannot_be_read_is_said_once_and_read_once_it_can_be(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(settings.control)
    first = settings.build_policy()
    control = PolicyFile(settings, first)
    for _ in range(2):
        path.mkdir()
        for _ in range(3):
            assert control.policy() is first
        path.rmdir()
        (said,) = errors(caplog)
        assert "the policy stays as it is" in said
        path.write_text("+off")
        first, before = control.policy(), first
        assert first is not before
        path.unlink()
    path.write_bytes(b"\xff\xff")
    assert control.policy() is control.policy() is first
    assert len(errors(caplog)) == 1
    path.write_text("nightjar")
    assert type(control.policy()).__name__ == "Nightjar"
    assert errors(caplog) == []
