"""Azure's trace on a real engine: the open loops of `reproduction.turns`, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reproduction.turned import FILE, PROFILE, turns_made

if TYPE_CHECKING:
    from reproduction.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Opened:
    """Policies and lengths by turns under a piece of the trace, another in every round; a unit is a round.

    Rounds that not every method had are left out: pieces of the trace differ. ``latency`` is the median over requests
    of the seconds a token takes after the first.
    """

    policies: tuple[str, ...]
    file: str = FILE
    plan: str = "rates"

    @property
    def command(self) -> str:
        return f"python -m reproduction.turns {self.plan} --out results/{self.file}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        own: dict[str, dict[int, dict[str, Any]]] = {policy: {} for policy in self.policies}
        for turn in turns_made(workspace, self.file, self.command)["turns"]:
            traced = turn["plan"] == self.plan and turn["do"] == "open" and not turn["rate"]
            name = f"draft:{turn['policy']}" if turn["policy"].isdigit() else turn["policy"]
            if traced and turn["profile"] == PROFILE and name in own and turn["tpot_ms"] and not turn.get("error"):
                own[name][int(turn["turn"])] = turn
        rounds = sorted(set.intersection(*(set(turns) for turns in own.values())))
        units = {
            name: {
                "seconds": [turns[n]["took"] / turns[n]["tokens"] for n in rounds],
                "latency": [turns[n]["tpot_ms"]["p50"] / 1000 for n in rounds],
            }
            for name, turns in own.items()
        }
        return {"labels": [""] * len(rounds), "units": units, "seeds": len(rounds), "unit": "seeds", "beside": True}
