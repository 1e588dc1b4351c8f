"""What a run's answers come to: every number that its table and its verdict hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wager.bench.answers import Answer, mat, ratio, ratio_interval, regret, regret_interval, tokens_per_second

EVERY = "all"  # stands for all tasks together
FIXED = ("off", "arm")  # kinds of methods that play one arm throughout


def summarize(
    methods: Sequence[Mapping[str, str]],
    prompts: Sequence[Mapping[str, Any]],
    answers: Mapping[tuple[str, str], Answer],
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Speed-up over the first method, MAT, tokens a second and regret of every method, for all and for each task.

    Only prompts that every method has answered count. Regret is in seconds, against the fixed arm (``off`` is one) that
    was the fastest over the same prompts; intervals are by bootstrap over prompts, seeded.
    """
    names = [method["name"] for method in methods]
    whole = [prompt for prompt in prompts if all((prompt["id"], name) in answers for name in names)]
    tasks: dict[str, list[str]] = {}
    for prompt in whole:
        tasks.setdefault(prompt["task"], []).append(prompt["id"])
    parts = [(EVERY, [prompt["id"] for prompt in whole]), *tasks.items()]  # a task of the user's may be called so too
    return {
        "base": names[0],
        "prompts": len(whole),
        "tasks": [
            _task(task, ids, methods, {name: [answers[at, name] for at in ids] for name in names}, seed)
            for task, ids in parts
            if ids
        ],
        "unsteady": max(
            _unsteady([answers[prompt["id"], method["name"]] for prompt in whole])
            for method in methods
            if method["name"] == names[0] or method["kind"] == "off"
        ),
    }


def _task(
    task: str,
    ids: Sequence[str],
    methods: Sequence[Mapping[str, str]],
    by: Mapping[str, Sequence[Answer]],
    seed: int,
) -> dict[str, Any]:
    plain = by[methods[0]["name"]]
    fixed = [method["name"] for method in methods if method["kind"] in FIXED]
    best = max(fixed, key=lambda name: tokens_per_second(by[name]), default=None)
    off = next((by[method["name"]] for method in methods if method["kind"] == "off"), None)
    rows = []
    for method in methods:
        ours = by[method["name"]]
        row: dict[str, Any] = {
            "method": method["name"],
            "kind": method["kind"],
            "prompts": len(ours),
            "speedup": ratio(ours, plain),
            "interval": _rounded(ratio_interval(ours, plain, seed=seed)) if ours is not plain else None,
            "mat": mat(ours),
            "tokens_per_second": tokens_per_second(ours),
            "tokens": sum(len(a.tokens) for a in ours),
            "seconds": sum(a.seconds for a in ours),
            "regret_seconds": None,
            "regret_interval": None,
            "over_off": None,  # speed-up over wager's own plain decoding: what drafts bring
            "over_off_interval": None,
        }
        if off is not None and method["kind"] in ("arm", "policy"):
            row["over_off"] = ratio(ours, off)
            row["over_off_interval"] = _rounded(ratio_interval(ours, off, seed=seed))
        if best is not None and method["kind"] in (*FIXED, "policy"):
            row["regret_seconds"] = regret(ours, by[best])
            row["regret_interval"] = _rounded(regret_interval(ours, by[best], seed=seed, among=len(fixed)))
        rows.append({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return {"task": task, "prompts": len(ids), "best_arm": best, "methods": rows}


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 4) for end in interval]


def _unsteady(plain: Sequence[Answer]) -> float:
    """How many times as fast decoding without drafts was on its fastest prompt as on its slowest.

    Every token after the first takes one forward, so what differs is the machine.
    """
    paces = [
        (a.seconds - a.prefill_seconds) / (len(a.tokens) - 1)
        for a in plain
        if len(a.tokens) > 1 and a.seconds > a.prefill_seconds
    ]
    return round(max(paces) / min(paces), 2) if paces else 1.0
