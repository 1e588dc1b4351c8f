"""How commands end that cannot go on: misused options, Ctrl-C, and output that nobody takes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from commands import Done, Wager, one_sentence

from wager.simulation import experiment

WAGER = (sys.executable, "-m", "wager")
HERE = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "WAGER_DEBUG")}
MISUSED = [
    ("generat", "unknown command 'wager generat' (did you mean 'generate'?); choose from generate, chat, serve, "),
    ("frobnicate", "unknown command 'wager frobnicate'; choose from generate, "),
    ("lab simulat", "unknown command 'wager lab simulat' (did you mean 'simulate'?); choose from simulate, "),
    ("train x", "unknown command 'wager train x'; choose from answers, "),
    ("--frob", "unknown option --frob of wager; see wager --help"),
    ("generate --modle x", "unknown option --modle of wager generate (did you mean '--model'?); see wager generate "),
    ("generate -Q", "unknown option -Q of wager generate; see wager generate --help"),
    ("lab simulate --tokens", "option '--tokens' requires an argument"),
    ("lab simulate --tokens x", "invalid value for '--tokens': "),
    ("lab simulate --jobs 0", "invalid value for '--jobs': "),
    ("chat --state=3", "option '--state' does not take a value"),
    ("lab trace", "missing argument '"),  # in capitals or not, as typer has it
    ("policies a b", "got unexpected extra argument(s) (b); see wager policies --help"),
]


@pytest.mark.parametrize(("words", "says"), MISUSED)
def test_misused_options_and_arguments_are_told_in_one_sentence(cli: Wager, words: str, says: str) -> None:
    done = cli(*words.split())
    one_sentence(done, f"wager: {says}")
    assert "─" not in done.err


@pytest.mark.parametrize("words", ["", "lab", "train"])
def test_a_group_without_a_command_shows_its_help(cli: Wager, words: str) -> None:
    done = cli(*words.split())
    assert (done.code, done.err) == (2, "")
    assert "Usage: wager" in done.out


def test_ctrl_c_is_said_and_ends_with_130(cli: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wager.cli.policies.table", interrupt)
    assert cli("policies") == Done(130, "", "wager: interrupted\n")
    monkeypatch.setattr("wager.cli.simulate.Simulation.compare", interrupt)
    assert cli("lab", "simulate", "--tokens", "100") == Done(130, "", "wager: interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal to send")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_a_simulation_within_a_second_or_so(jobs: str) -> None:
    words = ("lab", "simulate", "--tokens", "30000", "--runs", "2000", "--jobs", jobs)

    def hearing() -> None:  # what runs in the background of a shell is started deaf to it
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    how: Any = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, "preexec_fn": hearing}
    with subprocess.Popen([*WAGER, *words], env=HERE, **how) as under_way:
        assert under_way.stderr is not None
        assert under_way.stderr.readline().startswith("simulating: runs: 1 of ")
        began = monotonic()
        os.killpg(under_way.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert under_way.stderr.read().splitlines()[-1] == "wager: interrupted"
        assert under_way.wait() == 130
        assert monotonic() - began < 5


def linger(spec: str, seed: int) -> int:
    """A run that takes a minute, but for the first."""
    sleep(60 * (seed > 0))
    return seed


def test_nobody_waits_for_runs_that_are_under_way() -> None:
    runs: Iterator[object] = experiment._map(linger, [("", seed) for seed in range(4)], 2)  # type: ignore[arg-type]
    assert next(runs) == 0
    began = monotonic()
    runs.close()  # type: ignore[attr-defined]
    assert monotonic() - began < 30


FULL = Path("/dev/full")
LONG = ("lab", "simulate", "--tokens", "50", "--runs", "1", "--jobs", "1")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("--version",), ("policies",), ("policies", "--json"), LONG], ids=" ".join)
def test_output_that_cannot_be_written_is_told_in_one_sentence(words: tuple[str, ...], unbuffered: str) -> None:
    with FULL.open("w") as full:
        env = {**HERE, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run([*WAGER, *words], env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    one_sentence(Done(done.returncode, "", done.stderr), "wager: cannot write")
    assert done.stderr.splitlines()[-1].endswith(": No space left on device")


@pytest.mark.parametrize("words", [("--version",), ("policies",), ("policies", "--json"), LONG], ids=" ".join)
def test_output_that_nobody_reads_any_more_ends_the_command_quietly(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*WAGER, *words], env=HERE, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if not line.startswith("simulating: ")] == []
