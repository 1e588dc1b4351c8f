"""What `wager lab simulate` and `wager lab replay` share: policies, runs, seeds and processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from wager.cli.parameters import opt
from wager.cli.screen import bar
from wager.simulation import Comparison, Scenario, compare

_RUN = "Experiment"


@dataclass(frozen=True, slots=True)
class Experiment:
    """Policies to compare, and how often."""

    policy: list[str] | None = opt(
        None,
        "NAME or NAME:parameter=value,…; repeat it. See wager policies.",
        "--policy",
        "-p",
        shown="several of them",
    )
    runs: int = opt(5, "Runs per policy, each with a seed of its own.")
    seed: int = opt(0, "Seed of the first run.", min=0, panel=_RUN)
    jobs: int | None = opt(None, "Processes.", min=1, panel=_RUN, shown="one per core")

    def compare(self, what: str, scenario: Scenario, policies: list[str], **given: Any) -> Comparison:
        """Compare policies in as many processes as told, or one a core, with a bar."""
        with bar(f"{what}: runs") as update:
            return compare(
                scenario,
                policies,
                jobs=self.jobs or os.cpu_count() or 1,
                progress=lambda done, of: update(completed=done, total=of),
                runs=self.runs,
                seed=self.seed,
                **given,
            )
