"""`wager lab first-token`: what the first call takes over plain transformers, in new processes."""

import os
from typing import Annotated

from wager.cli.files import Output
from wager.cli.options import MODEL, Model
from wager.cli.parameters import option, options
from wager.cli.screen import table, tracked, wide

LIMIT = 2.0  # seconds that the first token may come later than with plain transformers


@options
def command(
    *,
    model: Model = MODEL,
    repeats: Annotated[int, option("Turns; each is a process of every kind.", min=1)] = 3,
    tokens: Annotated[int, option("Tokens of the text.", min=2)] = 32,
    output: Output,
) -> None:
    """Time the first token of new processes, plain and with wager, with an empty and a filled cache.

    From the first import on, loading the model left out, on the CPU in float32.
    """
    from wager.bench import first_token as measure
    from wager.models import resolve

    load = round(os.getloadavg()[0], 2)
    turns = measure.measured(str(resolve(model)), repeats, tokens)
    found = list(tracked("starting processes", turns, measure.processes(repeats)))
    rows = measure.summary(found)
    same = len({tuple(one["tokens"]) for _, one in found}) == 1
    columns = (
        "",
        "first token, s",
        "least to most",
        "over plain",
        "CPU s over plain",
        f"{tokens} tokens, s",
        "over plain",
    )
    shown = table("import to token, loading left out, medians", columns)
    for row in rows:
        first, cpu, text = (row[name] for name in ("first_token_seconds", "first_token_cpu_seconds", "text_seconds"))
        over = f"{'[red]' if first['over_plain'] > LIMIT else ''}{first['over_plain']:+.2f}"
        spread = f"{first['least']:.2f} to {first['most']:.2f}"
        whole = f"{text['median']:.2f}", f"{text['over_plain']:+.2f}"
        shown.add_row(row["kind"], f"{first['median']:.2f}", spread, over, f"{cpu['over_plain']:+.2f}", *whole)
    wide(120).print(shown)
    print(f"{repeats} processes of each kind, in turn; load average before: {load}; limit: +{LIMIT:g} s")
    print("all texts identical" if same else "the texts differ")
    about = {"model": model, "repeats": repeats, "tokens": tokens, "load_average": load, "limit_seconds": LIMIT}
    output.write({**about, "same_text": same, "rows": rows})
