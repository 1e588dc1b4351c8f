"""A drafter's card: what it was trained on, how, and what it is worth."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wager.core import files
from wager.training.config import Plan

KINDS = {"eagle": "An EAGLE head", "eagle3": "An EAGLE-3 head", "draft": "A small Llama model"}
CARD = """# {name}

{kind} that drafts for {target}; {size:.1f} MB in bfloat16. Used as `--drafters {used}`.

## Data

{scope} The target's own answers to prompts made from these files, at temperatures {temperatures}:

{sources}

The weights are under Apache-2.0; they hold none of the texts.

## Recipe

`wager train answers` and `wager train drafters` with training/{plan}: {settings}.

## Tokens a round

Greedy drafts on prompts it was not trained on: {how}.

| task | 1 | 2 | 3 | 4 | 5 | 6 tokens | acceptance at each position |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


SCOPES = ("Trained on all of its domains.", "A specialist, trained on {domain} alone.")
UNTOLD = ("domains", "name", "kind", "hidden", "layers", "heads", "intermediate", "patience", "evaluate")


def card(folder: Path, plan: Plan, file: str, rows: Mapping[str, Mapping[str, Any]], how: str) -> str:
    """The card of the drafter in a folder, in Markdown; ``rows`` holds its judgement by task, ``how`` its command."""
    try:
        notes = json.loads((folder / "config.json").read_text(encoding="utf-8"))["wager"]
        recipe = notes["recipe"]
        domains = recipe["domains"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder} holds no drafter that `wager train` made: config.json says no recipe") from None
    files = [(domain, source) for domain in domains for source in plan.domains.get(domain, ())]
    sources = dict.fromkeys(f"- {domain}: {one.file} ({one.origin or 'origin not stated'})" for domain, one in files)
    text = CARD.format(
        name=folder.name, target=notes["target"], used=folder.name.replace("-", ":", 1), plan=file, how=how,
        kind=KINDS[notes["kind"]],
        size=sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6,
        scope=SCOPES[len(domains) == 1].format(domain=domains[0]) if domains else "",
        temperatures=", ".join(f"{t:g}" for t in plan.answers.temperatures), sources="\n".join(sources),
        settings=", ".join(f"{key} {value}" for key, value in recipe.items() if key not in UNTOLD and value != ""),
    )  # fmt: skip
    for task, row in rows.items():
        mats = " | ".join(f"{mat:.2f}" for mat in row["mat"].values())
        text += f"| {task} | {mats} | {', '.join(f'{share:.2f}' for share in row['acceptance'])} |\n"
    return text


def note_acceptance(folder: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the acceptance at each position, by task, into the drafter's config.json, where policies start from it."""
    path = folder / "config.json"
    content = files.read_json(path)
    shares = {task: [round(share, 2) for share in row["acceptance"]] for task, row in rows.items()}
    content["wager"] = {**content.get("wager", {}), "acceptance": shares}
    files.write_text(path, json.dumps(content, indent=2) + "\n")
