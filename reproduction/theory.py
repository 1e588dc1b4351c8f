"""`python -m reproduction.theory`: what two of the papers prove, computed beside simulated regret."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from reproduction import theory_charts, theory_lemmas, theory_onthefly, theory_runs
from wager.cli.files import write_json
from wager.core import require
from wager.core.provenance import provenance

PAPERS = ("metasd", "onthefly")
Tell = Callable[[str], None]


def metasd(seeds: int, tokens: int, tell: Tell = lambda what: None) -> dict[str, Any]:
    """Theorems 2 to 8 of MetaSD and the lemmas behind them."""
    horizons = (*tuple(t for t in (100, 1000, 10000, 100000) if t < tokens), tokens)
    curves = []
    for case in theory_runs.cases():
        tell(f"{case.theorem}: {case.name}")
        runs = 3 * seeds if case.arms is theory_runs.NOISY else seeds  # few of them settle on the wrong drafter
        curves.append(theory_runs.ucb_curve(case, horizons, runs))
    tell("Theorem 6")
    curves.append(theory_runs.random_length(tuple(t for t in (100, 1000, 5000) if 5 * t <= tokens), seeds))
    tell("Theorem 8")
    curves += theory_runs.committed(horizons[1:] or horizons, seeds)
    tell("section H.2")
    curves += theory_runs.changing(tuple(max(50, tokens // part) for part in (16, 4, 1)), seeds)
    tell("lemmas")
    lemmas = {
        "rewards": theory_lemmas.rewards(seeds, 500),
        "signals": theory_lemmas.signals(),
        "stopping_time": theory_lemmas.stopping_time(10 * seeds),
        "two_regrets": theory_lemmas.two_regrets(seeds),
    }
    return {"seeds": seeds, "tokens": tokens, "curves": [curve.json() for curve in curves], "lemmas": lemmas}


def onthefly(seeds: int, tokens: int, tell: Tell = lambda what: None) -> dict[str, Any]:
    """Theorems 1 to 3 of on-the-fly adaptation."""
    tell("theorems 1 to 3")
    texts = min(tokens, 5000)
    return {
        "seeds": seeds,
        "theorem_1": {"seeds": 20 * seeds, "rows": theory_onthefly.theorem_1(20 * seeds)},
        "theorem_2": theory_onthefly.theorem_2(seeds, texts),
        "theorem_3": theory_onthefly.theorem_3(theory_onthefly.pairs()),
        "theorem_3_simulated": theory_onthefly.theorem_3_simulated(seeds, texts),
    }


MAKE = {"metasd": metasd, "onthefly": onthefly}


def command(
    papers: Annotated[list[str] | None, typer.Argument(help="metasd, onthefly.", show_default="both")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each policy.", min=2)] = 20,
    tokens: Annotated[int, typer.Option(help="Tokens of the longest text.", min=1000)] = 40_000,
    out: Annotated[Path | None, typer.Option(help="Folder for theory-PAPER.json and its picture.")] = None,
) -> None:
    """Bounds of MetaSD's and on-the-fly adaptation's theorems beside simulated regret; no model needed."""
    chosen = papers or list(PAPERS)
    for paper in chosen:
        require(paper in PAPERS, f"no paper {paper!r} here; choose from {', '.join(PAPERS)}")
    if out is not None:
        require(out.is_dir(), f"no folder {out} to write to")
    console = Console(stderr=True)
    for paper in chosen:
        found = MAKE[paper](seeds, tokens, lambda what: console.print(what, style="dim"))
        show(paper, found)
        if out is not None:
            write_json(out / f"theory-{paper}.json", {**provenance("python -m reproduction.theory"), **found})
            theory_charts.DRAW[paper](found, out / f"theory-{paper}.png")


def show(paper: str, found: dict[str, Any]) -> None:
    """Print a paper's figures."""
    if paper == "metasd":
        rows = [_curve_row(curve) for curve in found["curves"]]
        _table(("theorem", "policy", "tokens", "regret, rounds", "95 %", "bound"), rows)
        return
    rows = []
    for row in found["theorem_1"]["rows"]:
        ours, fixed = row["adaptive"], row["fixed"]
        about = f"{row['beta']:g}", f"{row['c']:g}", str(row["fixed_window"])
        assumed = "yes" if row["windows_at_least_fixed"] else "no"
        rows.append((*about, assumed, f"{ours['variance'] / fixed['variance']:.2f}", row["verdict"]))
    _table(("beta", "c", "fixed window", "assumption", "variance ratio", "Theorem 1"), rows)
    literal = [(f"{r['beta']:g}", f"{r['c']:g}", f"{r['literal']['relative_error']:.1%}") for r in found["theorem_2"]]
    _table(("beta", "c", "eq. 3 as stated is off by"), literal)
    for name, part in found["theorem_3"].items():
        Console().print(f"Theorem 3, {name}: {part}", highlight=False)


def _curve_row(curve: dict[str, Any]) -> tuple[str, ...]:
    last = curve["horizons"][-1]
    low, high = last["interval"]
    bound = "none"
    if last["bound"] is not None:
        verdict = "" if last["holds"] else " (exceeded)" if last["exceeded"] else " (undecided)"
        bound = f"{last['bound']:,.0f}{verdict}"
    about = curve["theorem"] or "none", curve["name"], f"{last['tokens']:,}"
    return *about, f"{last['regret']:,.1f}", f"{low:,.1f} to {high:,.1f}", bound


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(command)


def main() -> None:
    try:
        app()
    except ValueError as error:
        Console(stderr=True).print(f"error: {error}", highlight=False)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
