"""Recordings made up for tests: drafters that agree with the text in stretches of a known mean length."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wager.core.recording import RecordingWriter, Text, Track

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "humaneval", "debug_bench", "xsum",
         "alpaca")  # fmt: skip
HOME = {"humaneval": "code", "debug_bench": "code", "math_reasoning": "math", "translation": "translation",
        "summarization": "summarization", "xsum": "summarization", "qa": "chat"}  # fmt: skip
CHEAP = ("suffix", "prompt-lookup", "retrieval")
MODELS = ("draft:ofa", "draft:code", "draft:math")
HEADS = ("eagle:ofa", "eagle:mixed", "eagle:code", "eagle:translation", "eagle:summarization", "eagle:chat",
         "eagle:math")  # fmt: skip
LONGEST = 8


def track(rng: np.random.Generator, positions: int, rate: float, *, cheap: bool, heads: bool = False) -> Track:
    """A drafter whose every token is right with probability ``rate``."""
    right = rng.random(positions + LONGEST) < rate
    agreed = []
    for at in range(positions):
        run = right[at : at + min(LONGEST, positions - at)]
        agreed.append(int(len(run) if run.all() else run.argmin()))
    trees = {f"{d}@4x8": [min(d, n + 1, positions - at) for at, n in enumerate(agreed)] for d in (2, 4) if heads}
    size = [LONGEST] * positions
    sure = [tuple(float(0.9 if right[at + i] else 0.3) for i in range(LONGEST)) for at in range(positions)]
    overlap = [] if cheap else np.clip(rng.normal(rate, 0.1, positions), 0, 1).round(3).tolist()
    return Track(size, agreed, [0] * positions, sure, overlap, cheap=cheap, trees=trees, head=heads)


def text(
    rng: np.random.Generator, task: str, tokens: int, *, home: float = 0.75, away: float = 0.4, repeats: bool = True
) -> Text:
    """A text on which the task's own specialist is the best drafter."""
    tracks = {name: track(rng, tokens - 1, 0.3, cheap=True) for name in CHEAP}
    for name in (*MODELS, *HEADS):
        domain = name.partition(":")[2]
        rate = 0.55 if domain in ("ofa", "mixed") else home if domain == HOME.get(task) else away
        tracks[name] = track(rng, tokens - 1, rate, cheap=False, heads=name in HEADS)
    known = (np.random.default_rng(tokens).random(tokens - 1) < 0.4).astype(int).tolist()
    return Text(task, 40, tokens, tracks, repeats=known if repeats else [])


def recording(
    path: Path, prompts: int, *, tokens: int = 32, seed: int = 0, tasks: Sequence[str] = TASKS,
    alike: bool = False, of: str = "tasks", repeats: bool = True, **meta: object,
) -> Path:  # fmt: skip
    """A recording of so many prompts of every task with every drafter; ``alike``: specialists are no better at home."""
    rng = np.random.default_rng(seed)
    told = {"model": "smollm2-135m", "device": "made up", "max_tokens": tokens, "prompts": of, **meta}
    path.parent.mkdir(parents=True, exist_ok=True)
    with RecordingWriter(path, told) as writer:
        for _ in range(prompts):
            for task in tasks:
                writer.write(text(rng, task, tokens, home=0.4 if alike else 0.75, repeats=repeats))
    return path
