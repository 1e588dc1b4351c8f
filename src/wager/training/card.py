"""A drafter's card: what it was trained on, how, and what it is worth."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wager.training.config import Plan


def card(folder: Path, plan: Plan, rows: Mapping[str, Mapping[str, Any]], how: str) -> str:
    """The card of the drafter in a folder, in Markdown; ``rows`` holds its judgement by task, ``how`` its command."""
    try:
        notes = json.loads((folder / "config.json").read_text(encoding="utf-8"))["wager"]
        recipe = notes["recipe"]
        domains = recipe["domains"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder} holds no drafter that `wager train` made: config.json says no recipe") from None
    sources = dict.fromkeys(
        f"- {domain}: {source.file} ({source.origin or 'origin not stated'})"
        for domain in domains
        for source in plan.domains.get(domain, ())
    )
    kind = "An EAGLE head" if notes["kind"] == "eagle" else "A small Llama model"
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
    settings = ", ".join(f"{key} {value}" for key, value in recipe.items() if key not in ("domains", "name", "kind"))
    lines = [
        f"# {folder.name}",
        "",
        f"{kind} that drafts for {notes['target']}; {size:.1f} MB in bfloat16. Used as `--drafters "
        f"{folder.name.replace('-', ':', 1)}`.",
        "",
        "## Data",
        "",
        f"The target's own answers to prompts made from these files, at temperatures "
        f"{', '.join(f'{t:g}' for t in plan.answers.temperatures)}:",
        "",
        *sources,
        "",
        "The weights are under Apache-2.0; they hold none of the texts.",
        "",
        "## Recipe",
        "",
        f"`wager train answers` and `wager train drafters` with training/{plan.target}.toml: {settings}.",
        "",
        "## Tokens a round",
        "",
        f"Greedy drafts on prompts it was not trained on: {how}.",
        "",
        "| task | 1 | 2 | 3 | 4 | 5 tokens | acceptance at each position |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task, row in rows.items():
        mats = " | ".join(f"{mat:.2f}" for mat in row["mat"].values())
        lines.append(f"| {task} | {mats} | {', '.join(f'{share:.2f}' for share in row['acceptance'])} |")
    return "\n".join(lines) + "\n"
