"""The command line."""

import os
import sys

# Turns in which a thread of a forward waits awake for the others. OpenMP's own number is so large that on a busy
# machine threads keep those off the cores that they wait for. Read when torch is loaded.
SPINS = "20000"


def main() -> None:
    """Run the command line; bad input ends in one sentence and exit code 2."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
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
