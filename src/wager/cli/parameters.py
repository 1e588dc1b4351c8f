"""Options of a command, made from the frozen dataclasses that they fill."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer


def option(help: str, *names: str, panel: str | None = None, shown: str | None = None, **more: Any) -> Any:
    """An option for ``Annotated``: its help, perhaps its names, its panel, and the default as the help shows it."""
    if shown is not None:
        more["show_default"] = shown
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of its dataclass parameters, each of which it is given filled.

    A dataclass validates itself in ``__post_init__``. Its defaults are the options' defaults; an instance as the
    parameter's default gives the command defaults of its own.
    """
    hints = get_type_hints(command, include_extras=True)
    taken: list[Parameter] = []
    records: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in signature(command).parameters.items():
        kind: Any = hints[name]
        if not is_dataclass(kind):
            taken.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))
            continue
        own, inner = parameter.default, get_type_hints(kind, include_extras=True)
        given = [field for field in fields(kind) if field.init]
        records[name] = kind, [field.name for field in given]
        for field in given:
            default = field.default if own is Parameter.empty else getattr(own, field.name)
            default = Parameter.empty if default is MISSING else default
            taken.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=inner[field.name]))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (kind, names) in records.items():
            values[name] = kind(**{field: values.pop(field) for field in names})
        command(**values)

    run.__signature__ = Signature(taken)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {each.name: each.annotation for each in taken}
    return run


def integers(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise ValueError(f"{option} takes whole numbers separated by commas, not {text!r}") from None
