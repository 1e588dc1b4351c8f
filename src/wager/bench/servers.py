"""Real servers, started as a user would start them, and suspended while another one is measured."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

START_SECONDS = 600.0  # a first start compiles


class Server:
    """One server in a process group of its own, at a free port of this machine; a context manager."""

    def __init__(self, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        with socket.socket() as listener:  # a port nobody listens on
            listener.bind(("127.0.0.1", 0))
            self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.command = [sys.executable, "-m", *arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def wager(cls, *arguments: str, **more: Any) -> Self:
        """`wager serve` with these arguments."""
        return cls(["wager", "serve", *arguments], **more)

    @classmethod
    def vllm(cls, *arguments: str, **more: Any) -> Self:
        """Stock `vllm serve` with these arguments."""
        return cls(["wager.vllm.server", *arguments], **more)

    def wait(self, seconds: float = START_SECONDS) -> Self:
        """Until it answers; ValueError with the end of its log if it does not."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and self._process is not None and self._process.poll() is None:
            try:
                with urlopen(f"{self.url}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                time.sleep(0.25)
        tail = self.log.read_text(errors="replace")[-3000:]
        self.stop()
        raise ValueError(f"the server did not start within {seconds:g} s: {' '.join(self.command)}\n{tail}")

    def suspend(self) -> None:
        """Stop all its processes: even an idle engine polls for work."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def stop(self, seconds: float = 30.0) -> None:
        """End it as an operator would, by force if it takes too long."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def metrics(self) -> str:
        with urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return str(answer.read(), "utf-8")

    def memory(self) -> int:
        """Bytes of memory its processes hold, shared pages counted once for each."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
                if self._process is not None and int(fields[2]) == self._process.pid:
                    total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, ValueError):
                continue  # it ended while being looked at
        return total

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def __enter__(self) -> Self:
        """Start it without waiting for it."""
        with open(self.log, "wb") as log:
            how: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            self._process = subprocess.Popen(self.command, env=self._environment, **how)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
