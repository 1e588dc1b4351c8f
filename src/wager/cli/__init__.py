"""The command line."""

import os
import sys


def main() -> None:
    """Run the command line; bad input ends in one sentence and exit code 2."""
    from wager.cli.app import app

    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("WAGER_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            print(f"wager: {error.filename}: {error.strerror}", file=sys.stderr)
        else:
            print(f"wager: {error}", file=sys.stderr)
        sys.exit(2)
