"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; bad input ends in one sentence and exit code 2."""
    from wager.cli.app import app

    try:
        app()
    except (ValueError, OSError) as error:
        print(f"wager: {error}", file=sys.stderr)
        sys.exit(2)
