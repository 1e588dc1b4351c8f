"""A drafter's card: what it was trained on, how, and what it is worth."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wager.core import Arm, files
from wager.core.recording import Text
from wager.drafters.kinds import Kinds
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
TREES = """
## Trees

Acceptance at each depth of its trees (breadth x nodes): {how}.

| tree | task | acceptance at each depth |
| --- | --- | --- |
"""
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
        text += f"| {task} | {mats} | {_listed(row['acceptance'])} |\n"
    return text


def note_acceptance(folder: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the acceptance at each position, by task, into the drafter's config.json, where policies start from it."""
    path = folder / "config.json"
    content = files.read_json(path)
    shares = {task: [round(share, 2) for share in row["acceptance"]] for task, row in rows.items()}
    content["wager"] = {**content.get("wager", {}), "acceptance": shares}
    files.write_text(path, json.dumps(content, indent=2) + "\n")


def note_kinds(folder: Path, kinds: Kinds) -> None:
    """Write by what prompts of each kind are told apart into the drafter's config.json."""
    path = folder / "config.json"
    content = files.read_json(path)
    content["wager"] = {**content.get("wager", {}), "kinds": kinds.notes()}
    files.write_text(path, json.dumps(content, indent=2) + "\n")


def tree_acceptance(texts: Iterable[Text], drafter: str) -> dict[str, dict[str, list[float]]]:
    """Shape of the drafter's recorded trees -> task -> share accepted at each depth, walking each text in rounds."""
    counts: dict[tuple[str, str], list[list[int]]] = {}  # shape, task -> at each depth: tried, accepted
    for text in texts:
        recorded = text.tracks[drafter].trees if drafter in text.tracks else {}
        arms = sorted((Arm.parse(f"{drafter}:{name}") for name in recorded), key=lambda arm: arm.length)
        for shape, arm in {str(arm.tree): arm for arm in arms}.items():  # the deepest of each shape
            own = counts.setdefault((shape, text.label), [])
            own += [[0, 0] for _ in range(arm.length - len(own))]  # recordings may have trees of several depths
            accepted, at = recorded[f"{arm.length}@{shape}"], 0
            while at < len(accepted):
                for depth in range(min(accepted[at] + 1, arm.length, len(accepted) - at)):
                    own[depth][0] += 1
                    own[depth][1] += depth < accepted[at]
                at += accepted[at] + 1
    found: dict[str, dict[str, list[float]]] = {}
    for (shape, task), own in counts.items():
        found.setdefault(shape, {})[task] = [round(kept / tried, 2) if tried else 0.0 for tried, kept in own]
    return found


def note_trees(folder: Path, found: Mapping[str, Mapping[str, list[float]]], how: str) -> None:
    """Write the acceptance of trees into the drafter's config.json, where policies start from it, and onto its card."""
    path, card_path = folder / "config.json", folder / "README.md"
    content = files.read_json(path)
    content["wager"] = {**content.get("wager", {}), "trees": found}
    section = TREES.format(how=how)
    for shape, tasks in found.items():
        section += "".join(f"| {shape} | {task} | {_listed(rates)} |\n" for task, rates in tasks.items())
    before = card_path.read_text(encoding="utf-8") if card_path.is_file() else f"# {folder.name}\n"
    files.write_text(card_path, before.removesuffix(trees_told(folder)) + section)
    files.write_text(path, json.dumps(content, indent=2) + "\n")


def trees_told(folder: Path) -> str:
    """What the drafter's card says of its trees, its last section."""
    path, (heading, _, _) = folder / "README.md", TREES.partition("Acceptance")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text[text.index(heading) :] if heading in text else ""


def _listed(shares: Iterable[float]) -> str:
    return ", ".join(f"{share:.2f}" for share in shares)
