"""A real browser for tests: headless Chromium, spoken to over the DevTools protocol's pipe. Standard library only."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FETCHED = Path(sys.prefix) / "browser" / "chromium"  # where get_browser.py puts one
PATIENCE = 30.0  # seconds for any one answer, on a busy machine too
READ, WRITE = 3, 4  # where Chromium expects its pipe


@cache
def find() -> str | None:
    """The browser that WAGER_CHROMIUM names, else one on the path or one that was fetched, if it starts at all."""
    if named := os.environ.get("WAGER_CHROMIUM"):
        return named
    there = [*filter(None, map(shutil.which, NAMES)), str(FETCHED)]
    return next(filter(works, there), None)


def works(binary: str) -> bool:
    """Whether it starts; what Ubuntu calls chromium-browser only asks for a snap."""
    try:
        told = subprocess.run([binary, "--no-sandbox", "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return told.returncode == 0


class Browser:
    """One browser process."""

    def __init__(self, binary: str, profile: str) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (commands, answers)]  # clear of 3 and 4

        def join() -> None:
            os.dup2(high[0], READ)
            os.dup2(high[1], WRITE)

        self.process = subprocess.Popen(
            [binary, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=join, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (commands, answers, *high):
            os.close(fd)
        self._number, self._held = 0, b""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and wait for its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.events.append(answer)

    def wait(self, method: str) -> dict[str, Any]:
        """The next event of that name."""
        for i, event in enumerate(self.events):
            if event.get("method") == method:
                return self.events.pop(i)
        while (event := self.receive()).get("method") != method:
            self.events.append(event)
        return event

    def receive(self) -> dict[str, Any]:
        end = monotonic() + PATIENCE
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - monotonic()))
            read = os.read(self._from, 1 << 20) if ready else b""
            if not read:
                raise TimeoutError("the browser does not answer")
            self._held += read
        message, _, self._held = self._held.partition(b"\0")
        return dict(json.loads(message))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)


@contextmanager
def browser(binary: str) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = Browser(binary, profile)
        try:
            yield running
        finally:
            running.close()


class Page:
    """One tab, at one size and colour scheme."""

    def __init__(self, running: Browser, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        self.browser = running
        target = running.ask("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = running.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        running.events.clear()
        self.ask("Page.navigate", url=url)
        running.wait("Page.loadEventFired")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.ask(method, self.session, **parameters)

    def size(self, width: int, height: int) -> None:
        """Set the window's size; a narrow one is a phone's."""
        how = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **how)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors in the console, uncaught exceptions, and everything that was fetched besides the page itself."""
        self.run("1")  # events that are on their way arrive first
        bad: dict[str, Callable[[Any], bool]] = {
            "Runtime.exceptionThrown": lambda body: True,
            "Log.entryAdded": lambda body: body["entry"]["level"] == "error",
            "Runtime.consoleAPICalled": lambda body: body["type"] in ("error", "warning"),
            "Network.requestWillBeSent": lambda body: body["type"] != "Document",
        }
        events = [(bad.get(event.get("method", "")), event.get("params", {})) for event in self.browser.events]
        return [json.dumps(body) for wrong, body in events if wrong is not None and wrong(body)]

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        """Touch the screen there, and let go."""
        self.ask("Emulation.setTouchEmulationEnabled", enabled=True)
        self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """Press a key by its name."""
        codes = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
        code = dict.fromkeys(("windowsVirtualKeyCode", "nativeVirtualKeyCode"), codes[key])
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **code)

    def shot(self, path: Path, *, top: float = 0, height: float | None = None) -> None:
        """A picture of the page, or of a part of it."""
        whole = self.run("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": whole[0], "height": height or whole[1] - top, "scale": 1}
        made = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(made["data"]))

    def close(self) -> None:
        self.browser.ask("Target.closeTarget", targetId=self.target)
        self.browser.events.clear()
