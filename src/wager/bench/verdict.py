"""A run's figures in plain words."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from wager.core import Arm

FASTER, SLOWER, EVEN, TOO_FEW = "faster", "slower", "no clear difference", "too few prompts"
FEWEST_PROMPTS = 5  # prompts; a bootstrap over fewer is surer of itself than it should be
NOISY = 1.6  # decoding of two prompts without drafts may differ by this factor before the machine is said to be busy
NOISY_RATIO = 1.15  # by which a method may seem faster than its tokens per round allow
TOO_NOISY = 3.0  # and by this one before nothing is concluded
# What printed figures mean.
MAT = "mean tokens emitted per round (one forward pass of the target), the target's own token included"
REGRET = (
    "seconds more than the fastest fixed arm, which is known only afterwards; negative: faster than every fixed arm"
)
Row = Mapping[str, Any]


def over(row: Row) -> tuple[float, list[float] | None]:
    """A method's speed as a multiple of the baseline's, with the 95 % interval.

    The baseline is ``off``, the same engine without speculation; for ``off`` itself, for methods that are not wager's,
    and in runs without ``off`` it is the first method.
    """
    if row["over_off"] is None:
        return row["speedup"], row["interval"]
    return row["over_off"], row["over_off_interval"]


def standing(row: Row) -> str:
    """Whether a method is faster than its baseline, slower, or neither beyond doubt."""
    _, interval = over(row)
    if interval is None or row["prompts"] < FEWEST_PROMPTS:
        return TOO_FEW
    low, high = interval
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
        measured = (
            f"Measured nevertheless: `{ours['method']}` is {_times(over(ours)[0])} as fast as {_base(summary, ours)}"
        )
        return [*filter(None, (_busy(summary), f"{measured}{_best(every, rows, ours)}.", same))]
    said = [f"On this machine {_stands(summary, ours)}{_best(every, rows, ours)}.", advice(summary, specs)]
    said += (_others(summary, rows, ours), _tasks(summary, ours))
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
    if every["prompts"] < FEWEST_PROMPTS:
        return f"There are too few prompts for a conclusion; measure at least {FEWEST_PROMPTS}."
    lost = ours["regret_interval"][0] > 0 if ours["regret_interval"] else False
    if best not in (None, "off", ours["method"]) and lost and standing(rows[best]) == FASTER:
        lost_seconds = f"which took {ours['regret_seconds']:.1f} of its {ours['seconds']:.1f} s longer"
        single = f"That single setting was clearly faster than `{ours['method']}`, {lost_seconds}"
        return f"{single}; use it with {option(best, specs)} if all your prompts are like these."
    if standing(ours) == FASTER:
        return "Use `auto`: there is nothing to set." if ours["method"] == "auto" else ""
    settings = [row for row in every["methods"] if row["kind"] in ("arm", "policy")]
    faster = [row for row in settings if standing(row) == FASTER]
    if faster:
        first = max(faster, key=lambda row: over(row)[0])
        reached = (
            f"`{first['method']}` was the fastest setting, {_times(over(first)[0])} as fast as {_base(summary, first)}"
        )
        return f"{reached}{_span(first)}; more prompts would show whether `{ours['method']}` is faster too."
    return _no_gain(summary, settings)


def _no_gain(summary: Mapping[str, Any], settings: Sequence[Row]) -> str:
    """What to do where no setting is faster beyond doubt, and whether that is for lack of speed or of certainty."""
    plainly = "decode without speculation, with `--policy off` or without wager"
    if not settings:
        return ""
    first = max(settings, key=lambda row: over(row)[0])
    base = _base(summary, first)
    if over(first)[0] <= 1:
        return f"No setting tried here was faster than {base}: {plainly}."
    reached = f"The fastest setting, `{first['method']}`, measured {_times(over(first)[0])} the speed of {base}"
    spread = f"{_span(first, bare=True)} contains 1: prompts differ too much to tell this from no gain"
    return f"{reached}, but its 95 % interval{spread}. Measure more prompts; until then, {plainly}."


def _base(summary: Mapping[str, Any], row: Row) -> str:
    """What a method's speed is compared with, in words."""
    if row["over_off"] is None and summary["base"] != "off":
        return f"{summary['base']} without speculation"
    return "`off`, the same engine without speculation"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times"


def _span(row: Row, *, bare: bool = False) -> str:
    """The interval of a method's speed in words; empty where there is none."""
    _, interval = over(row)
    if interval is None:
        return ""
    ends = f"{interval[0]:.2f} to {interval[1]:.2f}"
    return f" ({ends})" if bare else f" (95 % interval {ends})"


def _stands(summary: Mapping[str, Any], row: Row) -> str:
    name, base, times = f"`{row['method']}`", _base(summary, row), _times(over(row)[0])
    if standing(row) == TOO_FEW:
        count = "one prompt" if row["prompts"] == 1 else f"{row['prompts']} prompts"
        return f"{name} ran {times} as fast as {base}, on the {count} measured"
    return {
        FASTER: f"{name} is {times} as fast as {base}{_span(row)}",
        SLOWER: f"{name} is slower than {base}: {times} its speed{_span(row)}",
        EVEN: f"{name} is not clearly faster or slower than {base}: {times} its speed{_span(row)}",
    }[standing(row)]


def _best(every: Mapping[str, Any], rows: Mapping[str, Row], ours: Row) -> str:
    best = every["best_arm"]
    if best is None or best == ours["method"]:
        return ""
    if best == "off":
        if not any(row["kind"] == "arm" for row in every["methods"]):
            return ""
        return "; no single draft setting tried here was faster than `off`"
    played = Arm.parse(best)
    tree = f" in trees of {played.tree.nodes}" if played.tree else ""
    times = f"{over(rows[best])[0]:.2f}"
    return f"; the best single setting, known only now, was {played.drafter}, length {played.length}{tree}: {times}"


def _others(summary: Mapping[str, Any], rows: Mapping[str, Row], ours: Row) -> str:
    """The same in terms of transformers' own decoding, where that was run besides ``off``."""
    if ours["over_off"] is None:
        return ""
    shown = [ours["method"], "off", *(name for name, row in rows.items() if row["kind"] == "peer")]
    speeds = [f"`{name}` {rows[name]['speedup']:.2f}" for name in shown]
    return (
        "" if summary["base"] == "off" else f"Relative to plain {summary['base']}: {', '.join(speeds)} times as fast."
    )


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
    gains = {task: over(row)[0] for task, row in rows if row["method"] == ours["method"]}
    if len(gains) < 2:
        return ""
    most, least = max(gains, key=lambda task: gains[task]), min(gains, key=lambda task: gains[task])
    return f"By task it is between {gains[least]:.2f} ({least}) and {gains[most]:.2f} ({most}) times as fast."


def texts(summary: Mapping[str, Any]) -> str:
    """Whether the texts were plain decoding's."""
    differences = summary.get("differences")
    if differences is None:
        return ""
    many, differ = differences["answers"], differences["texts"]
    if not differ:
        return f"All {many} texts are identical to plain decoding's, token for token."
    if not differences["unexplained"]:
        return f"{differ} of {many} texts differ from plain decoding's, each where two logits tie within float error."
    unexplained = f"{differences['unexplained']} of {many} texts differ from plain decoding's"
    return f"{unexplained}, and no tie of two logits explains it: this is a bug, please report it."


def _busy(summary: Mapping[str, Any]) -> str:
    if summary["unsteady"] <= NOISY:
        # a round takes at least as long as one of plain decoding, so tokens per round bound the speed
        for row in summary["tasks"][0]["methods"]:
            if (ratio := row.get("over_off")) and row["kind"] != "off" and ratio > NOISY_RATIO * row["mat"]:
                impossible = f"`{row['method']}` measured {_times(ratio)} the speed of off with {row['mat']:.2f} tokens"
                return f"{impossible} per round, which cannot be: something else was using this machine."
        return ""
    wild = summary["unsteady"] > TOO_NOISY
    quiet, trust = (
        "no conclusion is possible; measure again when it is idle",
        "rely on the intervals, not on the figures",
    )
    differ = f"Decoding without drafts was {summary['unsteady']:.1f} times as fast on one prompt as on another"
    return f"{differ}: something else was using this machine, so {quiet if wild else trust}."
