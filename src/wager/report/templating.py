"""The report's Jinja2 templates; everything they are given is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

NONE = "\N{EN DASH}"  # where there is no number


@cache
def environment() -> Environment:
    """The templates in this package."""
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made = Environment(loader=PackageLoader("wager.report"), autoescape=True, undefined=StrictUndefined, **blocks)
    made.filters["px"] = lambda value: f"{value:.1f}"  # pixels
    made.globals["NONE"] = NONE
    return made


def page(name: str, **given: Any) -> str:
    return environment().get_template(name).render(**given)


def macro(template: str, name: str, *given: Any, **named: Any) -> Markup:
    """What one macro of a template makes; it is not escaped again where another template shows it."""
    made: Markup = getattr(environment().get_template(template).module, name)(*given, **named)
    return made
