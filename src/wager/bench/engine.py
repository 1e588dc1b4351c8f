"""What the engine itself costs: a forward of every width, wager's own Python, and plain decoding through wager."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
import transformers

from wager.bench.methods import PLAIN, Target, decoder_generator, transformers_generator
from wager.decoding.decoder import Decoder
from wager.models.runner import Runner


def forward_seconds(
    runners: dict[str, Runner], widths: Sequence[int], *, context: int = 300, repeats: int = 15
) -> dict[str, dict[int, list[float]]]:
    """Seconds of one forward and its argmax, for each runner and width, interleaved."""
    taken: dict[str, dict[int, list[float]]] = {name: {w: [] for w in widths} for name in runners}
    for runner in runners.values():
        runner.begin()
        runner.prefill(_tokens(runner, context))
        for width in widths:  # warm up: kernels, graphs
            runner.forward(_tokens(runner, width), width)
            runner.crop(context)
    for _ in range(repeats):
        for width in widths:
            for name, runner in runners.items():
                began = perf_counter()
                runner.forward(_tokens(runner, width), width).argmax(-1).tolist()
                taken[name][width].append(perf_counter() - began)
                runner.crop(context)
    return taken


def own_seconds(decoder: Decoder, prompt: Sequence[int], count: int) -> list[float]:
    """Seconds of each round that are neither drafting, nor the forward, nor taking tokens from its logits."""
    prepared = decoder.prepare(list(prompt), {"max_new_tokens": count, "do_sample": False})
    endless = [c for c in prepared.criteria if isinstance(c, transformers.MaxLengthCriteria)]
    steps = decoder.run(replace(prepared, criteria=endless), decoder.target)
    return [decoder.loop.overhead for step in steps if step.round is not None]


def off_against_plain(
    model: Any, decoder: Decoder, prompt: Sequence[int], count: int, repeats: int
) -> list[tuple[float, float]]:
    """Seconds per token: plain ``model.generate``, then wager with plain decoding only; interleaved."""
    ids = torch.tensor([list(prompt)], device=model.device)
    plain, off = transformers_generator(PLAIN, Target(model)), decoder_generator("off", decoder)
    pairs = [(plain.run(ids, count), off.run(ids, count)) for _ in range(repeats + 1)]
    return [(a.seconds / len(a.tokens), b.seconds / len(b.tokens)) for a, b in pairs[1:]]  # the first warms up


def widths(taken: Mapping[str, Mapping[int, Sequence[float]]]) -> list[dict[str, Any]]:
    """For every width the spread of each runner's seconds, and wager's median over that of its width 1."""
    found = []
    for width in next(iter(taken.values())):
        spreads = {name: spread(times[width]) for name, times in taken.items()}
        one = spread(taken["wager"][1])["median"]
        found.append({"width": width, "seconds": spreads, "to_width_1": spreads["wager"]["median"] / one})
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"median": middle, "low": low, "high": high, "least": min(values)}


def _tokens(runner: Runner, count: int) -> list[int]:
    return [(11 + 37 * i) % runner.vocabulary for i in range(count)]


def described(model: Any) -> dict[str, Any]:
    """What a measurement ran on."""
    name = torch.cuda.get_device_name() if model.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"device": name, "dtype": str(model.dtype).removeprefix("torch."), **versions}
