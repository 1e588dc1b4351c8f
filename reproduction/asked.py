"""The prompts behind the recordings, as those see them who route by the prompt.

A recording holds how long every prompt was, not its words. Where WAGER_DATA has the prompts they are chosen again as
`wager lab record` chose them; each must be of the length that was recorded. Kept of it are the domain that a classifier
takes it for and, of the data sets that a router learns from while it answers, its perplexity and its tokens:

    python -m reproduction.asked --out results/recorded-prompts.json
"""

from __future__ import annotations

import json
import random
import shlex
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduction import recordings
from reproduction.perturb import reworded
from reproduction.recordings import Recording
from reproduction.workspace import NotHereError, Workspace
from wager.bench.workloads import ALL, Prompt, prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = "recorded-prompts.json"
LONGEST = 1024  # tokens; `wager lab record` cuts longer ones
COMMAND = f"python -m reproduction.asked --out results/{FILE}"


def read(file: str, workspace: Workspace) -> dict[str, Any]:
    """What is known of the recorded prompts."""
    path = workspace.recordings.parent / file
    if not path.is_file():
        raise NotHereError(f"needs results/{file}: `{COMMAND}`")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def told(
    file: str, workspace: Workspace, recording: Recording, at: Sequence[int]
) -> dict[int, tuple[list[int], float]]:
    """Tokens and perplexity of a recording's prompts, by their number."""
    texts, found, counts = read(file, workspace)["read"], {}, dict.fromkeys(recording.tasks, 0)
    for i, task in enumerate(recording.tasks):
        own, counts[task] = texts.get(task, [])[counts[task] : counts[task] + 1], counts[task] + 1
        if i in at:
            if not own or len(own[0]["tokens"]) != recording.texts[i].prompt:
                raise NotHereError(f"needs the prompts of {task} that were recorded: `{COMMAND}`")
            found[i] = (own[0]["tokens"], float(own[0]["perplexity"]))
    return found


@dataclass(frozen=True, slots=True)
class Domains:
    """The domain that a classifier takes every recorded prompt for, by task, in the order of the recordings."""

    file: str = FILE

    @property
    def command(self) -> str:
        return COMMAND

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        return {"domains": read(self.file, workspace)["domains"]}


def chosen(recording: Recording) -> list[Prompt]:
    """The prompts of a recording, in its order."""
    words = shlex.split(recording.meta["command"])
    given = {name: [after for word, after in pairwise(words) if word == name] for name in words}
    seed = int(given["--seed"][0])
    if recording.meta["prompts"] == "tasks":
        count = int(given["--prompts"][0])
        found = prompts(None, tasks=given.get("--task") or ALL, count=count, seed=seed, part=recording.meta["part"])
    else:
        found = reworded(len(recording.texts) // len(set(recording.tasks)))
    random.Random(seed).shuffle(found)
    return found


def _tokens(recording: Recording, tokenizer: Any) -> list[tuple[str, list[int]]]:
    """Task and tokens of every prompt; each must be as long as the one that was recorded."""
    found = [(prompt.task, prompt.ids(tokenizer, LONGEST, "cpu")[0].tolist()) for prompt in chosen(recording)]
    recorded = [(task, text.prompt) for task, text in zip(recording.tasks, recording.texts, strict=True)]
    if [(task, len(ids)) for task, ids in found] != recorded:
        raise ValueError(f"{recording.path.name} was made of other prompts than those in WAGER_DATA")
    return found


def main(out: Path) -> None:
    """Write what is known of the prompts of recordings that have every small draft model."""
    from reproduction.engine import classifier
    from reproduction.onthefly_claims import THREE
    from reproduction.runs import MODELS
    from wager.cli.files import write_json
    from wager.core.provenance import provenance
    from wager.decoding.decoder import Decoder

    workspace = Workspace()
    model, tokenizer = workspace.loaded()
    judge, target = classifier(workspace, 0), Decoder(model, tokenizer, drafters="off", policy="off").target
    domains: dict[str, dict[str, list[str]]] = {}
    known: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(workspace.recordings.glob("*.jsonl*")):
        one = recordings.load(path)
        kind = str(one.meta.get("prompts")).partition(".")[0]
        if one.meta.get("temperature") or kind == "long" or not set(MODELS) <= set(one.texts[0].tracks):
            continue
        for task, ids in _tokens(one, tokenizer):
            domains.setdefault(kind, {}).setdefault(task, []).append(judge(ids))
            if kind == "tasks" and task in THREE:
                target.begin()
                _, perplexity = target.prefill_scored(ids)
                known.setdefault(task, []).append({"perplexity": round(perplexity, 4), "tokens": ids})
    texts = sum(len(own) for each in domains.values() for own in each.values())
    about = {**provenance("python -m reproduction.asked"), "model": workspace.model, "texts": texts}
    write_json(out, {**about, "domains": domains, "read": known})


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--out":
        sys.exit(f"{COMMAND.partition(' --out')[0]} --out FILE")
    main(Path(sys.argv[2]))
