"""What a round costs, as it is written: by name, as pairs, or in a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wager.simulation.outcomes import RoundCost
from wager.simulation.stream import VerifyCost

# Example shapes of verification time by width: (tokens, seconds). Measured once with a 135M model; yours will differ.
VERIFY = {
    "flat": ((1, 0.070), (2, 0.072), (4, 0.072), (5, 0.076)),
    "cpu": ((1, 0.047), (2, 0.098), (4, 0.107), (5, 0.118), (8, 0.119), (16, 0.200), (32, 0.270)),
    "gpu": ((1, 0.0030), (2, 0.0036), (8, 0.0037), (16, 0.0038), (64, 0.0040)),
}
BY_DRAFTER = ("propose", "step", "lag", "lag_fixed", "draft")  # seconds by drafter; draft: by tree


def parse_verify(text: str) -> VerifyCost:
    """A verify cost by name or as ``WIDTH:MS`` pairs."""
    if text in VERIFY:
        return VerifyCost(VERIFY[text])
    try:
        pairs = [item.split(":") for item in text.split(",")]
        return VerifyCost(tuple((int(width), float(ms) / 1000) for width, ms in pairs))
    except ValueError as error:
        raise ValueError(f"--verify takes {', '.join(VERIFY)} or WIDTH:MS pairs, not {text!r} ({error})") from None


def parse_cost(text: str, head: Mapping[str, Any]) -> RoundCost:
    """Costs by name, or from a file; what a file leaves out is as it was when the texts were recorded."""
    body: dict[str, Any] = costs if isinstance(costs := head.get("costs"), dict) else {}
    where = "the recording's header"
    if text in VERIFY:
        body = {**body, "verify": VERIFY[text]}
    elif Path(text).is_file():
        body, where = {**body, **_read(text)}, text
    elif text != "measured":
        raise ValueError(f"--cost is measured, {', '.join(VERIFY)} or a file, and there is no file {text!r}")
    elif "verify" not in body:
        raise ValueError(f"the recording holds no measured costs; choose --cost {', '.join(VERIFY)} or a file")
    try:
        body = {**body, **_by_drafter(body, [str(name) for name in head.get("drafters", ())])}
        verify = VerifyCost(tuple((int(width), float(seconds)) for width, seconds in body["verify"]))
        drafting = {key: {str(k): float(v) for k, v in body.get(key, {}).items()} for key in BY_DRAFTER}
        return RoundCost(verify, **drafting)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"the costs in {where} are not seconds by width and by drafter ({error})") from None


def _by_drafter(body: Mapping[str, Any], drafters: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Seconds of every drafter and tree; what has none of its own has that of its kind: ``eagle`` for eagle:code."""
    found: dict[str, dict[str, Any]] = {}
    for key in BY_DRAFTER:
        known = found[key] = dict(body.get(key, {}))
        for name in drafters:
            kind, _, own = name.partition(":")
            for entry in [entry for entry in known if own and entry.partition(":")[0] == kind]:
                rest = entry.removeprefix(kind)  # nothing, or the shape of a tree
                if not rest or (key == "draft" and rest.count(":") == 1):
                    known.setdefault(name + rest, known[entry])
    return found


def _read(path: str) -> dict[str, Any]:
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        if "widths" in body:
            return {"verify": [[row["width"], row["seconds"]["wager"]["median"]] for row in body["widths"]]}
        return {"verify": body["verify"], **body}
    except (ValueError, KeyError, TypeError):
        known = 'neither {"verify": [[WIDTH, SECONDS], …], …} nor results of wager lab engine'
        raise ValueError(f"{path} holds no costs: {known}") from None
