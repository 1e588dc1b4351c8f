"""A run's summary, made up."""

import random
from typing import Any

from wager.bench.summary import Answer, summarize


def summary_of(speeds: dict[str, float], *, noise: float = 0.02, prompts: int = 8) -> dict[str, Any]:
    """A run in which each method takes its time for 20 tokens, give or take."""
    kinds = {"transformers": "plain", "off": "off", "suffix:4": "arm", "suffix:8": "arm", "auto": "policy"}
    methods = [{"name": name, "kind": kinds[name]} for name in speeds]
    dice = random.Random(1)
    asked = [{"id": f"t-{n}", "task": "t"} for n in range(prompts)]
    answers = {
        (prompt["id"], name): Answer(
            [1] * 20, dice.lognormvariate(0, noise) / speed, 20 if kinds[name] in ("plain", "off") else 8
        )
        for prompt in asked
        for name, speed in speeds.items()
    }
    return summarize(methods, asked, answers)
