"""Options of a command, made from the frozen dataclasses that they fill."""

import functools
from collections.abc import Callable
from dataclasses import MISSING, field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer


def option(help: str, *names: str, panel: str | None = None, shown: str | None = None, **more: Any) -> Any:
    """An option for ``Annotated``: its help, perhaps its names, its panel, and the default as the help shows it."""
    if shown is not None:
        more["show_default"] = shown
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def argument(help: str, metavar: str | None = None, shown: str | bool = False) -> Any:
    """A positional argument for ``Annotated``: its help, its name there, and the default as the help shows it."""
    return typer.Argument(help=help, metavar=metavar, show_default=shown)


def opt(default: Any, help: str, *names: str, **more: Any) -> Any:
    """A dataclass's field with this default that is such an option."""
    return field(default=default, metadata={"option": option(help, *names, **more)})


def options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of its dataclass parameters, each of which it is given filled.

    A dataclass validates itself in ``__post_init__``. Its defaults are the options' defaults; an instance as the
    parameter's default gives the command defaults of its own. Its ``PANEL``, if it has one, is that of its options.
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
        records[name] = kind, [each.name for each in fields(kind)]
        for each in fields(kind):
            default = each.default if own is Parameter.empty else getattr(own, each.name)
            default = Parameter.empty if default is MISSING else default
            hint = inner[each.name]
            if "option" in each.metadata:
                info = each.metadata["option"]
                info.rich_help_panel = info.rich_help_panel or getattr(kind, "PANEL", None)
                hint = Annotated[hint, info]
            taken.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (kind, names) in records.items():
            values[name] = kind(**{each: values.pop(each) for each in names})
        command(**values)

    run.__signature__ = Signature(taken)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {each.name: each.annotation for each in taken}
    return run


MOST = 1000  # numbers of a range


def parse_ints(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas; of a range the first and the last, as in 1-8."""
    try:
        parts = [part.partition("-") for part in text.split(",")]
        pairs = [(int(first), int(last if dash else first)) for first, dash, last in parts]
    except ValueError:
        raise ValueError(
            f"{option} takes whole numbers separated by commas, or a range such as 1-8, not {text!r}"
        ) from None
    for first, last in pairs:
        if not 0 <= last - first < MOST:
            raise ValueError(f"the range {first}-{last} of {option} is empty or longer than {MOST:,}")
    return tuple(n for first, last in pairs for n in range(first, last + 1))
