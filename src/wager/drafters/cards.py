"""What a drafter's maker says of its acceptance: its card, in the notes beside its weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log
from operator import mul

from wager.drafters.kinds import Kinds, read_kinds

LEAST = 0.01  # share of tokens: none on a card is taken to be less, or more than all but this


@dataclass(frozen=True, slots=True)
class Card:
    """Shares of a drafter's tokens that its target accepts, those before them accepted."""

    # at each position, as the mean over the tasks: of chains under "", of trees under "@SHAPE" ("@4x16")
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    by_task: Mapping[str, float] = field(default_factory=dict)  # of a chain's first tokens
    # kind of text, which is a task of the card -> log odds of a chain's tokens there beyond those of the mean
    kinds: Mapping[str, float] = field(default_factory=dict)
    told_by: Kinds | None = None  # by what kinds are told apart


def read_card(notes: object) -> Card:
    """The card in a drafter's notes; what cannot be read is left out."""
    if not isinstance(notes, dict):
        return Card()
    trees = notes.get("trees")
    tables = {"": _rows(notes.get("acceptance"))}
    tables |= {f"@{shape}": _rows(tasks) for shape, tasks in trees.items()} if isinstance(trees, dict) else {}
    means = {shape: _means(list(rows.values())) for shape, rows in tables.items() if rows}
    first = {task: row[0] for task, row in tables[""].items()}
    told_by = read_kinds(notes.get("kinds"))
    told = tables[""] if told_by is None else told_by.table
    kinds = {task: _beyond(row, means[""]) for task, row in tables[""].items() if task in told}
    return Card(means, first, kinds, told_by)


def published(cards: Mapping[str, Card]) -> dict[str, tuple[float, ...]]:
    """What the cards of drafters say of their chains, under the drafter's name, and of their trees."""
    return {name + shape: rates for name, card in cards.items() for shape, rates in card.acceptance.items()}


def kinds_of(cards: Iterable[Card]) -> Callable[[Sequence[int]], Mapping[str, float]] | None:
    """How likely a prompt is of each kind of text on these cards; the first card that says by what counts."""
    return next((card.told_by.chances for card in cards if card.kinds and card.told_by is not None), None)


def apart(cards: Iterable[Card]) -> float | None:
    """By how much drafters differ in one kind of text beyond what they do in all: the variance of the log odds of their
    first tokens, once what is common to a drafter and to a task is taken out; None where their cards do not tell."""
    known = [card.by_task for card in cards if card.by_task]
    tasks = sorted(set.intersection(*map(set, known))) if known else []
    if len(known) < 2 or len(tasks) < 2:
        return None
    table = [[_log_odds(shares[task]) for task in tasks] for shares in known]
    of_drafters = [sum(row) / len(tasks) for row in table]
    of_tasks = [sum(column) / len(known) for column in zip(*table, strict=True)]
    mean = sum(of_drafters) / len(known)
    rest: list[float] = [
        x - by_drafter - by_task + mean
        for row, by_drafter in zip(table, of_drafters, strict=True)
        for x, by_task in zip(row, of_tasks, strict=True)
    ]
    return sum(x * x for x in rest) / ((len(known) - 1) * (len(tasks) - 1))


def _beyond(row: Sequence[float], mean: Sequence[float]) -> float:
    """The log odds of these shares beyond those of the mean; every position counts as often as it is reached."""
    reach = list(accumulate(row[:-1], mul, initial=1.0))
    each = [n * (_log_odds(x) - _log_odds(m)) for n, x, m in zip(reach, row, mean, strict=False)]
    return sum(each) / sum(reach[: len(each)])


def _log_odds(share: float) -> float:
    share = min(1.0 - LEAST, max(LEAST, share))
    return log(share / (1.0 - share))


def _rows(tasks: object) -> dict[str, list[float]]:
    """A table of shares by task; empty if it is none."""
    try:
        found = {str(task): [float(x) for x in row] for task, row in tasks.items()} if isinstance(tasks, dict) else {}
    except (TypeError, ValueError):
        return {}
    rows = {task: row for task, row in found.items() if row}
    return rows if all(0.0 <= share <= 1.0 for row in rows.values() for share in row) else {}


def _means(rows: list[list[float]]) -> tuple[float, ...]:
    """Of these rows, position by position."""
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=False))
