"""Environment variables that turn something off."""

import os


def switched_off(variable: str) -> bool:
    """Whether the variable says so: 0, off, no or false."""
    return os.environ.get(variable, "").lower() in ("0", "off", "no", "false")
