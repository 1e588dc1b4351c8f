"""`wager lab costs`: what rounds take on a target of a given shape, for replay."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.cli.files import Output
from wager.cli.options import Device, Dtype
from wager.cli.parameters import option, options
from wager.cli.record import tree_shapes
from wager.cli.screen import table


@options
def command(
    shape: Annotated[str, typer.Argument(help="135m, 1b or 8b: a Llama of that shape with random weights.")],
    *,
    longest: Annotated[int, option("Longest chain.", min=1)] = 8,
    trees: Annotated[str, option("Trees, DEPTH@BREADTHxNODES, such as 4@4x16.", shown="none")] = "",
    dtype: Dtype = "auto",
    device: Device = "auto",
    output: Output,
) -> None:
    """Time the rounds of a target of a given shape: verification by width, a head's drafting and catching up."""
    shapes = tree_shapes(trees)
    import torch

    from wager.bench.engine import described
    from wager.bench.recording import round_costs
    from wager.bench.shapes import random_head, random_target
    from wager.decoding.decoder import Decoder
    from wager.decoding.recorder import Recorder
    from wager.eagle.drafter import Eagle

    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    kind = ("bfloat16" if place.startswith("cuda") else "float32") if dtype == "auto" else dtype
    model = random_target(shape, getattr(torch, kind), place)
    with TemporaryDirectory() as spare:
        drafters = {"eagle": Eagle(random_head(Path(spare) / "head", model))}
        recorder = Recorder(Decoder(model, drafters="off", policy="off"), drafters, longest, shapes)
        costs = round_costs(recorder)
    shown = table(f"{shape} in {kind}, milliseconds (median)", ("what", "ms"))
    rows: list[tuple[str, float]] = [(f"verify {width}", seconds) for width, seconds in costs["verify"]]
    rows += [("a drafted token", costs["step"]["eagle"])]
    rows += [("catching up, any number of entries", costs["lag_fixed"]["eagle"]), ("and each", costs["lag"]["eagle"])]
    rows += list(costs["draft"].items())
    for what, seconds in rows:
        shown.add_row(what, f"{seconds * 1e3:.3f}")
    Console().print(shown)
    about: dict[str, Any] = {"shape": shape, **described(model), "longest": longest}
    output.write({**about, **costs})
