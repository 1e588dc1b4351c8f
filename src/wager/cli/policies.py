"""`wager policies`: every policy, or one with its parameters."""

import json
from inspect import Parameter
from typing import Annotated, Any

from rich.console import Console

from wager.cli.parameters import argument, option
from wager.cli.screen import table
from wager.core.require import nearest
from wager.policies import POLICIES
from wager.policies.parameters import meaning


def command(
    name: Annotated[str | None, argument("Show this one with its parameters.")] = None,
    as_json: Annotated[bool, option("Print JSON instead of a table.", "--json")] = False,
) -> None:
    """List every policy with the paper it comes from, or one with its parameters."""
    if name is not None and name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}{nearest(name, POLICIES)}; choose from {', '.join(POLICIES)}")
    entries = POLICIES if name is None else {name: POLICIES[name]}
    if as_json:
        told = []
        for key, entry in entries.items():
            parameters = {k: None if v is Parameter.empty else v for k, v in entry.parameters.items()}
            about = {"policy": key, "summary": entry.summary, "source": entry.source}
            told.append({**about, "parameters": parameters, "rewards": list(entry.rewards)})
        print(json.dumps(told, indent=2, ensure_ascii=False))
    elif name is None:
        rows = [(f"[bold]{key}", entry.source, entry.summary) for key, entry in entries.items()]
        Console().print(table("", ("policy", "from", "what it does"), rows, left=3, box=None, pad_edge=False))
    else:
        _explain(name, entries[name])


def _explain(name: str, entry: Any) -> None:
    print(f"{name}: {entry.summary}\nfrom {entry.source}")
    for key, default in entry.parameters.items():
        said = "must be given" if default is Parameter.empty else f"default {default}" if default != "" else ""
        among = f"one of {', '.join(entry.rewards)}" if key == "reward" else ""
        print(f"  {key}: " + "; ".join(filter(None, (said or "optional", meaning(name, key), among))))
