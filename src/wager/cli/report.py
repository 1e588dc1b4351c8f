"""`wager report`: one page of charts from result files."""

from pathlib import Path
from typing import Annotated

from rich.console import Console

from wager.cli.files import check_writable
from wager.cli.parameters import argument, option
from wager.core.files import write_text
from wager.policies.base import require
from wager.report.colours import Palette
from wager.report.live import follow
from wager.report.page import is_report, render
from wager.report.read import READS, read


def command(
    files: Annotated[list[Path] | None, argument("Runs or their folders, traces, texts, results.", "RUN…")] = None,
    out: Annotated[Path, option("The page to write.", "--out", "-o")] = Path("report.html"),
    live: Annotated[Path | None, option("Follow this trace while it is written; the page reloads itself.")] = None,
    every: Annotated[float, option("With --live: seconds between two pages.")] = 3.0,
    force: Annotated[bool, option("Overwrite a file that is not a report of wager's.", "--force")] = False,
    idle: Annotated[float, option("With --live: the trace is finished when nothing came for so long.")] = 60.0,
) -> None:
    """Make one self-contained page of charts from runs, traces and results."""
    given = list(files or ())
    require((live is None) == bool(given), f"name files to report, or one trace with --live; a report reads {READS}")
    if not 0.2 <= every <= 3600 or not idle >= every:
        raise ValueError(f"--every is 0.2 to 3,600 seconds and --idle no less than it, not {every} and {idle}")
    check_writable(out)
    if any(path.resolve() == out.resolve() for path in [*given, *([live] if live else [])]):
        raise ValueError(f"{out} is one of the files to read; name another page with -o")
    if not force and out.is_file() and not is_report(out):
        raise ValueError(f"{out} exists and is not a report that wager wrote; name another with -o, or give --force")
    told, done = Console(stderr=True, highlight=False), "replaced" if out.is_file() else "wrote"
    if live is not None:
        told.print(f"following {live}; open {out} in a browser, and end with Ctrl-C", markup=False, soft_wrap=True)
        with told.status("waiting for rounds …") as status:
            follow(live, out, every=every, idle=idle, told=status.update)
    else:
        palette = Palette()
        materials = [read(path, palette) for path in given]
        write_text(out, render(materials))
        for one in (each for each in materials if each.verdict and not each.source.complete):
            told.print(f"{one.verdict[0]} To resume it: {one.source.command}", markup=False, soft_wrap=True)
    told.print(f"{done} {out} ({out.stat().st_size / 1024:,.0f} KB)", markup=False, soft_wrap=True)
