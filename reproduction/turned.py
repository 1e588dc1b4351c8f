"""Nightjar's loads on a real engine: what `reproduction.turns` measured, round by round of its turns."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reproduction.turn_plans import PROFILES
from reproduction.turn_summary import expected_share
from reproduction.workspace import NotHereError

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

FILE = "serving-8b-peers-h200.json"
PROFILE = "fair"


def turns_made(workspace: Workspace, file: str, command: str) -> dict[str, Any]:
    """The result of reproduction.turns that this command makes."""
    path = workspace.recordings.parent / file
    if not path.is_file():
        raise NotHereError(f"needs {file}: `{command}` on a GPU makes it")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True, slots=True)
class Turned:
    """Policies and lengths by turns on one vLLM engine, so many requests kept up; a unit is a round of turns.

    Seconds a token are those with as many drafts accepted as the given probabilities accept in the mean: the turns are
    short, and luck would be most of what tells the policies apart.
    """

    requests: int
    file: str = FILE
    plan: str = "peers"

    @property
    def command(self) -> str:
        return f"python -m reproduction.turns {self.plan} --out results/{self.file}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        found = turns_made(workspace, self.file, self.command)
        turns = [
            turn for turn in found["turns"]
            if turn["plan"] == self.plan and turn["batch"] == self.requests and turn["turn"] >= 0
            and turn["profile"] == PROFILE and turn["policy"] not in ("none", "auto") and not turn.get("error")
        ]  # fmt: skip
        if not turns:
            raise NotHereError(f"{self.file} has no turns of the plan {self.plan} with {self.requests} requests")
        units: dict[str, dict[str, list[float]]] = {}
        played: dict[str, Counter[str]] = {}
        rounds = sorted({turn["turn"] for turn in turns})
        for turn in sorted(turns, key=lambda turn: int(turn["turn"])):
            name = f"draft:{turn['policy']}" if turn["policy"].isdigit() else turn["policy"]
            tokens = turn["tokens"] * expected_share(turn)
            units.setdefault(name, {"seconds": []})["seconds"].append(turn["took"] / tokens)
            for kind, (steps, _) in turn["kinds"].items():
                length = kind.partition(">")[0]
                played.setdefault(name, Counter())["off" if length == "0" else f"draft:{length}"] += steps
        chances = ", ".join(map(str, PROFILES[PROFILE]))
        whole = {name: own for name, own in units.items() if len(own["seconds"]) == len(rounds)}
        shares = {name: {arm: n / own.total() for arm, n in own.most_common()} for name, own in played.items()}
        lengths = sorted(int(name.removeprefix("draft:")) for name in whole if name.startswith("draft:"))
        return {
            "labels": [""] * len(rounds), "units": whole, "seeds": len(rounds), "unit": "seeds", "shares": shares,
            "arms": ["off", *(f"draft:{n}" for n in range(1, max(lengths) + 1))], "load": [self.requests],
            "protocol": {
                "target": "the shape of Llama 3 8B, random weights",
                "drafters": f"an EAGLE head, accepted with given probabilities ({chances})",
                "lengths": f"0 to {max(lengths)}", "tree": "chains", "reset": "never",
                "tokens": "turns of 0.25 to 1 s, after 2 s of learning", "prompts": "192 of Alpaca",
                "seeds": f"{len(rounds)} rounds of turns", "hardware": f"{found['gpu']}, vLLM 0.32",
                "load": f"{self.requests} requests kept up",
            },
        }  # fmt: skip
