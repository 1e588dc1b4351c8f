"""The command line."""

import os
import sys


def main() -> None:
    """Run the command line; bad input ends in one sentence and exit code 2."""
    from wager.cli.app import app
    from wager.cli.ending import USAGE, failed_output, sentence, usage

    said, code = "", 0
    try:
        code = app(prog_name="wager", standalone_mode=False) or 0
    except USAGE as error:
        said, code = usage(error), 2
    except (ValueError, OSError) as error:
        if os.environ.get("WAGER_DEBUG"):
            raise
        said, code = sentence(error), 2
    lost = failed_output()
    if lost is not None and code in (0, 2):
        gone = isinstance(lost, BrokenPipeError)  # nobody reads it any more, as after `| head -1`
        said, code = ("", 1) if gone else (f"cannot write to standard output: {lost.strerror}", 2)
    if said:
        print(f"wager: {said}", file=sys.stderr)
    sys.exit(code)
