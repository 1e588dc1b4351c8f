"""How commands end that cannot go on: options and arguments that do not exist, and output that nobody takes."""

import errno
import os
import re
import sys
from typing import Any

import typer

# What typer raises for every misuse of options and arguments; it has no public name.
USAGE: type[Any] = typer.BadParameter.__bases__[0]
FULL = (errno.ENOSPC, errno.EFBIG)  # where a file, perhaps standard output, takes no more


def usage(error: Any) -> str:
    """A misuse of options or arguments in one sentence."""
    from wager.core.require import nearest  # --help needs none of it

    context = error.ctx
    see = f"; see {context.command_path} --help" if context is not None else ""
    if context is not None and hasattr(error, "possibilities"):  # it does not exist
        names = (name for param in context.command.params for name in (*param.opts, *param.secondary_opts))
        wrong = error.option_name
        return f"unknown option {wrong} of {context.command_path}{nearest(wrong, ['--help', *names])}{see}"
    said = " ".join(error.format_message().split()).removesuffix(".")
    said = re.sub(r"(^|: )[A-Z]", lambda begin: begin[0].lower(), said)
    return said + see


def sentence(error: ValueError | OSError) -> str:
    """What is wrong, without the system's number for it."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"cannot write: {error.strerror}" if error.errno in FULL else str(error)


def failed_output() -> OSError | None:
    """Why standard output could not be written to its end, None where it could; what is left of it is dropped."""
    if sys.stdout is None:
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it exits
        return error
    return None
