"""A run's figures in plain words."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from wager.core import Arm

FASTER, SLOWER, EVEN, TOO_FEW = "faster", "slower", "no clear difference", "too few prompts"
FEWEST_PROMPTS = 5  # prompts; a bootstrap over fewer is surer of itself than it should be
NOISY = 1.6  # decoding of two prompts without drafts may differ by this factor before the machine is said to be busy
TOO_NOISY = 3.0  # and by this one before nothing is concluded
POSSIBLE_GAIN = 1.2  # a speed-up that is not ruled out as long as an interval reaches above it
Row = Mapping[str, Any]


def standing(row: Row, interval: str = "interval") -> str:
    """Whether a method is faster than the first, slower, or neither beyond doubt; or than ``off`` by its interval."""
    if row[interval] is None or row["prompts"] < FEWEST_PROMPTS:
        return TOO_FEW
    low, high = row[interval]
    return FASTER if low > 1 else SLOWER if high < 1 else EVEN


def words(summary: Mapping[str, Any], specs: Sequence[str] = ()) -> list[str]:
    """The verdict: sentence after sentence, the most important first."""
    # ``specs`` are the drafters as they were given: ``draft-model=MODEL`` needs more than its name.
    if not summary["prompts"]:
        return ["No prompt has been answered by every method yet, so there is nothing to compare."]
    every = summary["tasks"][0]
    rows: dict[str, Row] = {row["method"]: row for row in every["methods"]}
    ours = headline(every["methods"])
    same = texts(summary)
    if summary["unsteady"] > TOO_NOISY:
        measured = f"Measured nevertheless: `{ours['method']}` {ours['speedup']:.2f}x"
        return [*filter(None, (_busy(summary), f"{measured}{_best(every, rows, ours)}.", same))]
    said = [f"On this machine {_stands(ours)}{_best(every, rows, ours)}.", advice(summary, specs)]
    if ours["over_off"] is not None:
        forward = f"wager's forward alone, `off`, runs at {rows['off']['speedup']:.2f}x"
        said.append(f"{forward}; drafts bring {ours['over_off']:.2f}x on top.")
    peers = [(name.replace("transformers ", ""), row["speedup"]) for name, row in rows.items() if row["kind"] == "peer"]
    listed = ", ".join(f"{name} {speedup:.2f}x" for name, speedup in peers)
    said += (_tasks(summary, ours), f"transformers' own speculative methods: {listed}." if listed else "")
    return [*filter(None, (*said, same, _busy(summary)))]


def headline(rows: Sequence[Row]) -> Row:
    """The method a user would take: auto, else the first policy, else the fastest after the first."""
    policies = [row for row in rows if row["kind"] == "policy"]
    auto = next((row for row in policies if row["method"].partition(":")[0] == "auto"), None)
    return auto or next(iter(policies), None) or max(rows[1:] or rows, key=lambda row: float(row["speedup"]))


def advice(summary: Mapping[str, Any], specs: Sequence[str] = ()) -> str:
    """What to do."""
    every = summary["tasks"][0]
    rows: dict[str, Row] = {row["method"]: row for row in every["methods"]}
    ours, best = headline(every["methods"]), every["best_arm"]
    arms = [row for row in every["methods"] if row["kind"] in ("arm", "policy", "off")]
    if every["prompts"] < FEWEST_PROMPTS:
        return f"So few prompts tell too little; measure at least {FEWEST_PROMPTS}."
    lost = ours["regret_interval"][0] > 0 if ours["regret_interval"] else False
    if best is not None and best != ours["method"] and lost and standing(rows[best]) == FASTER:
        lost_seconds = f"which lost {ours['regret_seconds']:.1f} of its {ours['seconds']:.1f} s to it"
        single = f"That single setting was clearly faster than `{ours['method']}`, {lost_seconds}"
        return f"{single}; take it with {option(best, specs)} if your prompts are all like these."
    if standing(ours) == FASTER:
        return f"Take `{ours['method']}`: nothing has to be set." if ours["method"] == "auto" else ""
    faster = [row for row in arms if standing(row) == FASTER]
    if not faster:
        most = max((row["interval"][1] for row in arms if row["kind"] != "off"), default=0.0)
        if most > POSSIBLE_GAIN:
            possible = f"Speculating shows no gain here, but one of up to {most:.2f}x is not ruled out"
            return f"{possible}: measure more prompts on a quiet machine, and until then decode plainly."
        return "Nothing is gained by speculating here: decode plainly, with `--policy off` or without wager."
    first = max(faster, key=lambda row: float(row["speedup"]))["method"]
    return f"`{first}` was the fastest, and faster; more prompts would tell whether `{ours['method']}` is too."


def _stands(row: Row) -> str:
    name, times = f"`{row['method']}`", f"{row['speedup']:.2f}x"
    if standing(row) == TOO_FEW:
        count = "one prompt" if row["prompts"] == 1 else f"{row['prompts']} prompts"
        return f"{name} ran at {times} the speed of plain decoding on the {count} measured"
    span = f"95 % interval {row['interval'][0]:.2f}x to {row['interval'][1]:.2f}x"
    return {
        FASTER: f"{name} is {times} faster than plain decoding ({span})",
        SLOWER: f"{name} is slower than plain decoding: {times} its speed ({span})",
        EVEN: f"{name} makes no clear difference to plain decoding: {times} its speed ({span})",
    }[standing(row)]


def _best(every: Mapping[str, Any], rows: Mapping[str, Row], ours: Row) -> str:
    best = every["best_arm"]
    if best is None or best == ours["method"]:
        return ""
    times = f"{rows[best]['speedup']:.2f}x"
    if best == "off":
        if not any(row["kind"] == "arm" for row in every["methods"]):
            return f"; wager's own plain decoding, `off`, runs at {times}"
        return f"; no single draft setting tried here beats `off`, wager's own plain decoding: {times}"
    played = Arm.parse(best)
    tree = f" in trees of {played.tree.nodes}" if played.tree else ""
    return f"; your best single setting would have been {played.drafter}, length {played.length}{tree}: {times}"


def option(arm: str, specs: Sequence[str] = ()) -> str:
    """How `wager generate` is told to play this arm and nothing else."""
    if arm == "off":
        return "`--policy off`"
    played = Arm.parse(arm)
    tree = f",tree={played.tree}" if played.tree else ""
    spec = next((spec for spec in specs if spec.partition("=")[0] == played.drafter), played.drafter)
    return f"`--drafters {shlex.quote(spec)} --policy fixed:drafter={played.drafter},length={played.length}{tree}`"


def _tasks(summary: Mapping[str, Any], ours: Row) -> str:
    """Where it gains most and least."""
    rows = ((task["task"], row) for task in summary["tasks"][1:] for row in task["methods"])  # the first is all tasks
    gains = {task: row["speedup"] for task, row in rows if row["method"] == ours["method"]}
    if len(gains) < 2:
        return ""
    most, least = max(gains, key=lambda task: gains[task]), min(gains, key=lambda task: gains[task])
    return f"It gains most on {most} ({gains[most]:.2f}x) and least on {least} ({gains[least]:.2f}x)."


def texts(summary: Mapping[str, Any]) -> str:
    """Whether the texts were plain decoding's."""
    differences = summary.get("differences")
    if differences is None:
        return ""
    many, differ = differences["answers"], differences["texts"]
    if not differ:
        return f"All {many} texts are plain decoding's own, token for token."
    if not differences["unexplained"]:
        return f"{differ} of {many} texts differ from plain decoding's, each where two logits tie within float error."
    unexplained = f"{differences['unexplained']} of {many} texts differ from plain decoding's"
    return f"{unexplained}, and no tie of two logits explains it: this is a bug, please report it."


def _busy(summary: Mapping[str, Any]) -> str:
    if summary["unsteady"] <= NOISY:
        return ""
    wild = summary["unsteady"] > TOO_NOISY
    quiet, trust = "nothing can be said; measure again when it is quiet", "trust the intervals more than the figures"
    differ = f"Decoding without drafts was {summary['unsteady']:.1f} times as fast on one prompt as on another"
    return f"{differ}: something else uses this machine, so {quiet if wild else trust}."
