"""The command line in this process: what a call gives back, and what bad input must look like."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

SHORT = ("--max-tokens", "6")
COPY = "Repeat this exactly: the cat sat on the mat, the cat sat on the mat, the cat sat on the mat."


class Done(NamedTuple):
    code: int
    out: str
    err: str


Wager = Callable[..., Done]


def called(capture: Any) -> Done:
    """What the command in sys.argv ends with: its code, and what it wrote to both streams."""
    from wager.cli import main

    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    return Done(int(code or 0), *capture.readouterr())


UNDER_WAY = re.compile(r"^[a-z].* …$|^[a-z ]+: (runs: )?\d+( of \d+)?(, about \d+ s left)?$")  # stages and bars


def one_sentence(done: Done, names: str) -> None:
    """Bad input ends in one sentence on standard error, after what was under way, and exit code 2."""
    assert done.code == 2, done.out + done.err
    assert names in done.err
    assert done.out == ""
    said = [line for line in done.err.strip().splitlines() if not UNDER_WAY.search(line)]
    assert len(said) == 1
    assert said[0].startswith("wager: ")
