"""Speed-up bars: a panel over all tasks, then one a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from wager.report.charts import Bar, bar_chart
from wager.report.figures.base import Cell, Figure, Key, Table, Value
from wager.report.scales import TIMES
from wager.report.views import Measure, Method, Speedups

EVERY = "all tasks"
MOST = 9  # bars a panel of one task; the table has all
KINDS = {
    "policy": ("wager's policies", "var(--c1)"),
    "bound": ("the clairvoyant choice, a bound", "color-mix(in oklab, var(--c3) 45%, var(--card))"),
    "arm": ("a fixed arm", "color-mix(in oklab, var(--c1) 42%, var(--card))"),
    "off": ("wager without drafts", "var(--c0)"),
    "peer": ("transformers' own ways", "color-mix(in oklab, var(--c0) 55%, var(--card))"),
    "plain": ("plain decoding", "color-mix(in oklab, var(--c0) 30%, var(--card))"),
}


def speed(view: Speedups) -> Figure:
    """Speed-ups as a figure."""
    chosen = shown(view.methods)
    overall = [(m, m.overall) for m in view.methods]
    panels: list[tuple[str, Callable[[int], Markup]]] = [
        ("All tasks" if len(view.tasks) > 1 else "", _panel(overall, view.base, view.interval, EVERY))
    ]
    if len(view.tasks) > 1:
        for task in view.tasks:
            rows = [(m, m.tasks[task]) for m in chosen if task in m.tasks]
            if rows:
                panels.append((task, _panel(rows, view.base, view.task_interval, task)))
    best = max((m for m in view.methods if m.kind == "policy"), key=lambda m: m.overall.value, default=None)
    says = f"Times as fast as {view.base}; the line marks 1{TIMES}."
    if best is not None:
        says = f"{best.name} is {best.overall.value:.2f} times as fast as {view.base}. The line marks 1{TIMES}."
    if view.interval:
        says += f" Whiskers: {view.interval}."
    if len(chosen) < len(view.methods) and len(view.tasks) > 1:
        says += f" The panels of single tasks show {len(chosen)} of {len(view.methods)} methods; the table has all."
    title = "Speed-up by task and method" if len(view.tasks) > 1 else "Speed-up by method"
    kinds = list(dict.fromkeys(m.kind for m in view.methods))
    legend = [Key(KINDS[kind][0], KINDS[kind][1]) for kind in KINDS if kind in kinds]
    return Figure(
        "speed", title, says, view.source, _table(view), panels, legend=legend, note=view.how,
    )  # fmt: skip


def shown(methods: Sequence[Method]) -> list[Method]:
    """The methods of a single task's panel: all where they are few; else policies, off, and the best of the rest."""
    if len(methods) <= MOST:
        return list(methods)
    first = [m for m in methods if m.kind in ("plain", "off", "bound")]
    policies = sorted((m for m in methods if m.kind == "policy"), key=lambda m: (m.name != "auto", -m.overall.value))
    rest = sorted((m for m in methods if m.kind in ("arm", "peer")), key=lambda m: -m.overall.value)
    kept = [*first, *policies[:4]]
    kept += rest[: MOST - len(kept)]
    return [m for m in methods if m in kept]


def _panel(rows: Sequence[tuple[Method, Measure]], base: str, interval: str, task: str) -> Callable[[int], Markup]:
    bars = [
        Bar(
            m.name,
            v.value,
            v.low,
            v.high,
            KINDS[m.kind][1],
            m.kind == "policy",
            f"{v.value:.2f}{TIMES}",
            _told(m.name, task, v, base, interval),
            m.name.removeprefix("transformers ") if m.kind == "peer" else "",
        )
        for m, v in rows
    ]
    most = 1.02 * max(max(v.value, v.high or 0.0) for _, v in rows)  # a panel's axis ends just beyond its longest bar
    return lambda width: bar_chart(bars, most, width, f"Speed-up over {base}, {task}", TIMES)


def _told(name: str, task: str, value: Measure, base: str, interval: str) -> str:
    lines = [f"{name}, {task}", f"{value.value:.3f} times as fast as {base}"]
    if value.low is not None and value.high is not None:
        lines.append(f"{interval}: {value.low:.3f} to {value.high:.3f}")
    return "\n".join(lines)


def _table(view: Speedups) -> Table:
    rows: list[list[Cell]] = []
    several = len(view.tasks) > 1
    for method in view.methods:
        cells: list[Cell] = [method.name, _value(method.overall)]
        cells += [_value(method.tasks.get(task)) for task in view.tasks] if several else []
        rows.append(cells)
    return Table(["method", "all tasks", *(view.tasks if several else ())], rows)


def _value(measure: Measure | None) -> Value | None:
    if measure is None:
        return None
    said = f"{measure.value:.3f}"
    if measure.low is not None and measure.high is not None:
        said += f" ({measure.low:.2f} to {measure.high:.2f})"
    return Value(measure.value, said)
