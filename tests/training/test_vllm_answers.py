"""vLLM's processes end with `wager train answers`, also those that would not end by themselves."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from time import monotonic, sleep

import pytest

# An engine as vLLM's: processes that do not listen to SIGTERM, for which the interpreter waits when it ends.
SCRIPT = """
import multiprocessing, signal, sys, time, weakref
from types import SimpleNamespace

def core(ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.put(None)
    time.sleep(600)

def shut_down(processes):
    for process in processes:
        process.terminate()
        process.join()

class LLM:
    def __init__(self, **settings):
        context = multiprocessing.get_context("fork")
        ready = context.SimpleQueue()
        self.processes = [context.Process(target=core, args=(ready,), daemon=daemon) for daemon in (True, False)]
        for process in self.processes:
            process.start()
            ready.get()
        weakref.finalize(self, shut_down, self.processes)

    def generate(self, asked, how, use_tqdm):
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])]) for _ in asked]

sys.modules["vllm"] = SimpleNamespace(LLM=LLM, SamplingParams=dict)
from wager.training import vllm_answers
from wager.training.answers import Part

if "left alone" in sys.argv:
    vllm_answers._end_processes = lambda: None
engine = vllm_answers.vllm_engine("model", longest=8, dtype="auto", cache=None, eager=True)
assert engine(Part("t0-0000", 0.0, [("chat", [1, 2])]), 4) == [[1, 2, 7]]
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
if "fails" in sys.argv:
    raise ValueError("the disk is full")
"""
PATIENCE = 60.0  # seconds in which a process ends that ends at all
WAITED = 2.0  # seconds after which one counts as hanging


def started(*how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The command, and the processes of its engine."""
    command = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    pids = [int(word) for word in command.stdout.readline().split()]
    assert len(pids) == 2, command.communicate()[1]
    return command, pids


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("how", "code"), [("", 0), ("fails", 1)])
def test_processes_that_would_not_end_are_killed_with_the_command(how: str, code: int) -> None:
    command, pids = started(how)
    try:
        command.communicate(timeout=PATIENCE)
        assert command.returncode == code
        until = monotonic() + PATIENCE
        while any(map(alive, pids)) and monotonic() < until:
            sleep(0.05)
        assert not any(map(alive, pids))
        pids = []  # these numbers may belong to others by now
    finally:
        ended(command, pids)


def test_without_that_the_command_hangs() -> None:
    command, pids = started("left alone")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(WAITED)
        assert all(map(alive, pids))
    finally:
        ended(command, pids)


def ended(command: subprocess.Popen[str], pids: list[int]) -> None:
    """Nothing of a test that failed goes on."""
    command.kill()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    command.communicate()
