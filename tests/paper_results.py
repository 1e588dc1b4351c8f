"""Results as the papers' claims are checked against, made up."""

from typing import Any


def board(speeds: dict[str, dict[str, float]]) -> dict[str, Any]:
    """A result as `wager bench generate --json` writes it; tokens a round are as many as the speed."""
    rows = []
    for method, tasks in {"off": dict.fromkeys(next(iter(speeds.values())), 1.0), **speeds}.items():
        mean = sum(tasks.values()) / len(tasks)
        cells = {task: {"speedup": x, "mat": x} for task, x in tasks.items()}
        rows.append({"method": method, "speedup": mean, "steady": mean, "mat": mean, "tasks": cells})
    return {"methods": rows}


def flat(tasks: tuple[str, ...], **speeds: float) -> dict[str, dict[str, float]]:
    return {name: dict.fromkeys(tasks, x) for name, x in speeds.items()}


def selected(ucb: float, home: float = 1.9) -> dict[str, Any]:
    tasks = ("humaneval", "math_reasoning", "qa")
    speeds = {"eagle:ofa:4": dict.fromkeys(tasks, 1.5), "meta-ucb": dict.fromkeys(tasks, ucb)}
    speeds["eagle:code:4"] = {"humaneval": home, "math_reasoning": 1.2, "qa": 1.2}
    speeds["eagle:math:4"] = {"humaneval": 1.2, "math_reasoning": home, "qa": 1.2}
    speeds["random"] = dict.fromkeys(tasks, 1.3)
    return board(speeds)
