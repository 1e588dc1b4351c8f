"""Speed-up bars: a panel over all tasks, then one a task."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from wager.report.charts import Bar, bar_chart
from wager.report.scales import TIMES
from wager.report.views import Cell, Figure, Key, Measure, Method, Source, Table, measured

EVERY = "all tasks"
MOST = 9  # bars a panel of one task; the table has all
KINDS = {
    "policy": ("wager's policies", "var(--c1)"),
    "bound": ("the clairvoyant choice, a bound", "color-mix(in oklab, var(--c3) 45%, var(--card))"),
    "arm": ("a fixed arm", "color-mix(in oklab, var(--c1) 42%, var(--card))"),
    "off": ("wager without speculation", "var(--c0)"),
    "peer": ("transformers' own methods", "color-mix(in oklab, var(--c0) 55%, var(--card))"),
    "plain": ("plain decoding", "color-mix(in oklab, var(--c0) 30%, var(--card))"),
}


def speed(methods: Sequence[Method], interval: str, task_interval: str, how: str, source: Source) -> Figure:
    """Methods as ratios to the speed of the first, over all tasks and by task; the intervals say what whiskers are."""
    base, tasks = methods[0].name, list(methods[0].tasks)
    chosen, tasks = shown(methods), tasks if len(tasks) > 1 else []
    overall = [(m, m.overall) for m in methods]
    panels = [("All tasks" if tasks else "", _panel(overall, base, interval, EVERY))]
    for task in tasks:
        rows = [(m, m.tasks[task]) for m in chosen if task in m.tasks]
        if rows:
            panels.append((task, _panel(rows, base, task_interval, task)))
    best = max((m for m in methods if m.kind == "policy"), key=lambda m: m.overall.value, default=None)
    says = f"Times as fast as {base}; the line marks 1{TIMES}."
    if best is not None:
        says = f"{_over_off(best, methods)}{best.overall.value:.2f} times as fast as {base}. The line marks 1{TIMES}."
    if interval:
        says += f" Whiskers: {interval}."
    if len(chosen) < len(methods) and tasks:
        says += f" The panels of single tasks show {len(chosen)} of {len(methods)} methods; the table has all."
    kinds = {m.kind for m in methods}
    legend = [Key(*words) for kind, words in KINDS.items() if kind in kinds]
    table: list[list[Cell]] = []
    for method in methods:
        values = [method.overall, *(method.tasks.get(task) for task in tasks)]
        table.append([method.name, *(measured(value, lambda v: f"{v:.3f}", lambda v: f"{v:.2f}") for value in values)])
    head, title = ["method", EVERY, *tasks], "Speed-up by task and method" if tasks else "Speed-up by method"
    return Figure("speed", title, says, source, Table(head, table), panels, legend=legend, note=how)


def _over_off(best: Method, methods: Sequence[Method]) -> str:
    """The beginning of a sentence on a method's speed; where ``off`` is not the base, with the ratio to it first."""
    off = next((m.overall.value for m in methods[1:] if m.kind == "off"), None)
    if not off:
        return f"{best.name} is "
    return f"{best.name} is {best.overall.value / off:.2f} times as fast as wager without speculation, and "


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
    bars = []
    for m, v in rows:
        told = [f"{m.name}, {task}", f"{v.value:.3f} times as fast as {base}"]
        told += [f"{interval}: {spread}"] if (spread := v.range(lambda x: f"{x:.3f}")) else []
        short = m.name.removeprefix("transformers ") if m.kind == "peer" else ""
        said, strong = f"{v.value:.2f}{TIMES}", m.kind == "policy"
        bars.append(Bar(m.name, v.value, v.low, v.high, KINDS[m.kind][1], strong, said, "\n".join(told), short))
    most = 1.02 * max(max(v.value, v.high or 0.0) for _, v in rows)  # a panel's axis ends just beyond its longest bar
    return lambda width: bar_chart(bars, most, width, f"Speed-up over {base}, {task}", TIMES)
