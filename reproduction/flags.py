"""What would make a figure say something else than it seems to; computed from results and printed beside verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.inference import LEAST

NO_BANDITS = ("fixed", "dsd", "tetris")  # decide by what they were given, and need not try an arm
FROZEN = 0.99  # share of one arm from which a policy counts as frozen on it, if it never played some other


def frozen(policy: str, shares: Mapping[str, float], arms: Sequence[str]) -> str:
    """A policy that played one arm nearly always and some other never: what it says is about that arm."""
    top = max(shares, key=lambda arm: shares[arm], default="")
    never = [arm for arm in arms if not shares.get(arm)]
    if not top or shares[top] < FROZEN or not never:
        return ""
    return f"{policy} played {top} in {shares[top]:.1%} of its rounds and never played {', '.join(never)}"


def of_run(result: Mapping[str, Any]) -> dict[str, str]:
    """Of a run made here: what is to be said of a policy, by policy."""
    arms, shares = result.get("arms", ()), result.get("shares", {})
    found = {name: frozen(name, own, arms) for name, own in shares.items()}
    return {name: says for name, says in found.items() if says and name not in arms and not name.startswith(NO_BANDITS)}


def of_older(name: str, content: Mapping[str, Any]) -> list[str]:
    """Of a result of `wager bench generate` that has no figures a prompt."""
    methods, found = content.get("methods"), []
    if not isinstance(methods, list):
        return []
    arms = content.get("arms") or []
    policies = [row for row in methods if row.get("kind") == "policy"]
    stuck = (frozen(row["method"], row.get("arms", {}), arms) for row in policies)
    found += [f"{name}: {says}" for says in stuck if says]
    cells = [cell for row in methods for cell in row.get("tasks", {}).values()]
    if cells and not all(cell.get("steady") for cell in cells):
        found.append(
            f"{name}: speeds of single tasks are wall-clock, in which one stall decides, not medians of rounds"
        )
    tasks = len({task for row in methods for task in row.get("tasks", {})})
    if tasks and content.get("prompts", 0) / tasks < LEAST["prompts"]:
        found.append(f"{name}: {content['prompts'] / tasks:g} prompts a task")
    if "reset_per_request" not in content and policies:
        found.append(f"{name}: what a policy learned was kept from prompt to prompt")
    return found
