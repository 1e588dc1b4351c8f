"""`wager lab costs`: what rounds take on a target of a given shape, for replay; `wager lab rounds`: stage by stage."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.cli.files import Output
from wager.cli.options import Device, Dtype, Target
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


@options
def rounds(
    target: Target,
    *,
    head: Annotated[str, option("The head that drafts.")] = "eagle:ofa",
    arms: Annotated[str, option("Lengths and trees of its arms, in addition to off.")] = "4,4@4x16,6@8x32",
    policy: Annotated[
        list[str] | None, option("A policy that chooses among all arms; repeat it.", "--policy", "-p", shown="none")
    ] = None,
    beside: Annotated[
        str, option("Drafters that policies have beside the head, with lengths 1 to 8.")
    ] = "suffix,prompt-lookup",
    temperatures: Annotated[str, option("Temperatures; 0 is greedy.")] = "0,1",
    tokens: Annotated[int, option("Tokens of each text.", min=8)] = 128,
    repeats: Annotated[int, option("Interleaved repetitions.", min=1)] = 3,
    output: Output,
) -> None:
    """Time rounds of a head on CUDA, stage by stage: on the device, and with every draft read back."""
    import torch

    from wager.bench.engine import described
    from wager.bench.round_profile import profile

    if not torch.cuda.is_available():
        raise ValueError("wager lab rounds needs an NVIDIA GPU: on a CPU no round stays on the device")
    model, tokenizer = target.load()
    names = ["off", *(f"{head}:{arm}" for arm in arms.split(","))]
    at, others = [float(t) for t in temperatures.split(",")], [name for name in beside.split(",") if name]
    rows = profile(model, tokenizer, head, names, at, tokens, repeats, policies=policy or (), beside=others)
    columns = ("arm", "T", "path", "MAT", "ms", "tok/s", "draft", "verify", "own", "launch", "wait", "exposed")
    shown = table(
        "rounds, medians: ms of a round, of drafting and verifying; µs of the host's own work", columns, left=3
    )
    for row in rows:
        figures = (f"{row['mat']:.2f}", f"{row['round_seconds'] * 1e3:.2f}")
        rest = (f"{row[name] * 1e3:.2f}" for name in ("draft_seconds", "verify_seconds"))
        host = (
            f"{row[name] * 1e6:.0f}" for name in ("own_seconds", "launch_seconds", "wait_seconds", "exposed_seconds")
        )
        case = row["arm"], f"{row['temperature']:g}", row["path"]
        shown.add_row(*case, *figures, f"{row['tokens_per_second']:.0f}", *rest, *host)
    Console().print(shown)
    about: dict[str, Any] = {
        "model": target.model,
        **described(model),
        "head": head,
        "beside": others if policy else [],
        "tokens": tokens,
        "repeats": repeats,
    }
    output.write({**about, "rounds": rows})
