"""What commands say while they work: a bar or a spinner on a terminal, lines of standard error elsewhere."""

import pytest

from wager.cli import screen


def test_without_a_terminal_a_stage_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.stage("loading [bold] " + "x" * 200) as now:
        now("preparing …")
    assert capsys.readouterr() == ("", "loading [bold] " + "x" * 200 + "\npreparing …\n")


def test_without_a_terminal_a_bar_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(screen, "monotonic", lambda: now[0])
    with screen.bar("answering", 100, done=2) as update:
        for _ in range(40):
            now[0] += 1.0
            update(advance=1, description="answers")
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == [
        "answers: 3 of 100", "answers: 18 of 100", "answers: 33 of 100",
    ]  # fmt: skip
    with screen.bar("reading") as update:
        update(advance=1)
    assert capsys.readouterr().err == "reading: 1\n"
