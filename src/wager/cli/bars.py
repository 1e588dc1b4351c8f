"""The bar that `simulate` and `replay` draw while policies run."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wager.simulation import Comparison, Scenario, compare


def compared(what: str, scenario: Scenario, policies: list[str], jobs: int | None, **given: Any) -> Comparison:
    """Compare policies in as many processes as told, or one a core; the bar goes to standard error."""
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        return compare(
            scenario,
            policies,
            jobs=jobs or os.cpu_count() or 1,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
            **given,
        )
