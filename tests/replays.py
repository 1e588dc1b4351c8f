"""Made-up recordings to replay."""

from random import Random
from typing import Any

from wager.core.recording import Text, Track
from wager.simulation import Replay, RoundCost, VerifyCost

LONGEST = 6
PROMPTS = ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2], [7, 8, 7, 8, 9], [1, 2, 3, 4, 1, 2, 3, 5, 1, 2])
COSTS = RoundCost(
    VerifyCost(((1, 0.05), (2, 0.06), (4, 0.08), (9, 0.12))),
    propose={"suffix": 2e-3, "lookup": 1e-3},
    step={"model": 0.004},
    lag={"model": 5e-4},
)


def text(rng: Random, label: str = "a", tokens: int = 30, *, model: bool = True, longest: int = LONGEST) -> Text:
    """Any text whose drafters agree with it now and then."""
    tracks = {}
    for name in ("suffix", "lookup", *(("model",) if model else ())):
        track = Track([], [], [], [], cheap=name != "model")
        for at in range(tokens - 1):
            size = longest if name == "model" else rng.choice((0, 1, 3, longest))
            run = 0
            while run < min(size, tokens - 1 - at) and rng.random() < 0.55:
                run += 1
            track.size.append(size)
            track.agreed.append(run)
            track.match.append(size and rng.randrange(1, 9))
            track.confidence.append(tuple(round(rng.random(), 3) for _ in range(size if name == "suffix" else 0)))
            if name == "model":
                track.overlap.append(round(rng.random(), 3))
        tracks[name] = track
    one, other = (tracks[name].size for name in ("suffix", "lookup"))
    shared = {"suffix": {"lookup": [rng.randint(0, min(pair)) for pair in zip(one, other, strict=True)]}}
    return Text(label, rng.randrange(5, 50), tokens, tracks, tokens + rng.choice((0, 0, 1, 20)), shared)


def replay(count: int = 6, seed: int = 0, noise: float = 0.0, **more: Any) -> Replay:
    rng = Random(seed)
    texts = tuple(text(rng, "abc"[i % 3]) for i in range(count))
    return Replay(texts, COSTS, tuple(range(1, LONGEST + 1)), noise, **more)
