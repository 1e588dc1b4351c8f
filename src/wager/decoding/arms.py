"""The arms a decoder plays: its drafters, and the lengths they draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wager.core import OFF, Arm
from wager.drafters import Drafter, registry
from wager.models import load


def build_drafters(wanted: str | Sequence[str | Drafter], model: Any, tokenizer: Any) -> dict[str, Drafter]:
    """The drafters by name."""

    def load_draft_model(name: str) -> Any:
        draft, theirs = load(name, dtype=str(model.dtype).removeprefix("torch."), device=str(model.device))
        if tokenizer is not None and theirs.get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"draft model {name!r} has another vocabulary than the target; choose one of the same family"
            )
        return draft

    names = wanted.split(",") if isinstance(wanted, str) else wanted
    built: dict[str, Drafter] = {}
    for item in names:
        drafter = (
            registry.build(item.strip(), load=load_draft_model, tokenizer=tokenizer) if isinstance(item, str) else item
        )
        if drafter is None:
            continue
        if drafter.name in built:
            raise ValueError(f"two drafters are called {drafter.name!r}; give each a name of its own")
        built[drafter.name] = drafter
    return built


def build_arms(
    arms: Sequence[Arm | str] | None, drafters: Mapping[str, Drafter], lengths: Sequence[int]
) -> tuple[Arm, ...]:
    """Plain decoding first, then every drafter with every length, or the arms asked for."""
    if arms is None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"draft lengths are 1 or more, not {list(lengths)}")
        return OFF, *(Arm(name, length) for name in drafters for length in sorted(set(lengths)))
    given = [Arm.parse(arm) if isinstance(arm, str) else arm for arm in arms]
    for arm in given:
        if arm != OFF and (arm.drafter not in drafters or arm.tree is not None):
            raise ValueError(
                f"no drafter here for arm {arm}; there are {', '.join(drafters) or 'none'}, drafting chains"
            )
    return OFF, *dict.fromkeys(arm for arm in given if arm != OFF)
