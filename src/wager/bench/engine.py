"""The engine measured: a forward of every width, its own Python, the same texts as plain decoding, flat memory."""

import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from wager.bench.methods import PLAIN, Target, decoder_generator, transformers_generator
from wager.core.provenance import provenance
from wager.decoding.decoder import Decoder
from wager.decoding.identity import difference
from wager.drafters import Drafter
from wager.models.runner import Runner


def forward_seconds(
    runners: dict[str, Runner], widths: Sequence[int], *, context: int, repeats: int
) -> dict[str, dict[int, list[float]]]:
    """Seconds of one forward and its argmax, for each runner and width, interleaved."""
    taken: dict[str, dict[int, list[float]]] = {name: {w: [] for w in widths} for name in runners}
    for runner in runners.values():
        runner.begin()
        runner.prefill(_tokens(runner, context))
        runner.pack()
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
    target = Target(model)
    plain, off = transformers_generator(PLAIN, target), decoder_generator("off", decoder, target)
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
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"median": middle, "low": low, "high": high, "least": min(values)}


def _tokens(runner: Runner, count: int) -> list[int]:
    return [(11 + 37 * i) % runner.vocabulary for i in range(count)]


def described(model: Any) -> dict[str, Any]:
    """What a measurement ran on."""
    name = torch.cuda.get_device_name() if model.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"device": name, "dtype": str(model.dtype).removeprefix("torch."), **versions}


def measured(model: Any) -> dict[str, Any]:
    """Where a result comes from and what it ran on, the versions of torch and transformers among the others."""
    about, ran = provenance(), described(model)
    about["versions"] |= {key: ran.pop(key) for key in ("torch", "transformers")}
    return about | ran


def check_texts(
    model: Any, drafters: Sequence[Drafter], policies: Sequence[str], prompts: Sequence[Any], count: int, *, every: bool
) -> Iterator[dict[str, Any]]:
    """Each prompt answered by plain ``model.generate`` and by wager; one record for every text compared."""
    # ``random`` changes arms every round and answers every prompt; of the other policies each prompt gets two, in turn,
    # or all with ``every``.
    plain, lengths = transformers_generator(PLAIN, Target(model)), (1, 2, 3, 5, 8)
    decoders = {spec: Decoder(model, drafters=drafters, policy=spec, lengths=lengths) for spec in policies}
    others = [spec for spec in policies if spec != "random"]
    for at, ids in enumerate(prompts):
        theirs = plain.run(ids, count).tokens
        turn = others if every else [others[(2 * at + i) % len(others)] for i in range(2)]
        for spec in dict.fromkeys(("random", *turn)):
            made = decoders[spec].generate(ids, max_new_tokens=count, do_sample=False)
            differs = difference(model, ids[0].tolist(), made.tokens, theirs)
            about = {"same": differs is None, "tie": differs and differs.tie, "gap": differs and differs.gap}
            used = sorted({r.arm.drafter for r in made.rounds if r.drafted})
            yield {"prompt": at, "policy": spec, "tokens": len(theirs), "drafters": used, **about}


def memory_over(decoder: Decoder, requests: int, *, seed: int = 0) -> Iterator[int]:
    """Bytes held, by CUDA's allocator too, after each of many requests; every fiftieth fills the context."""
    draw = random.Random(seed)
    limit, vocabulary = decoder.target.limit, decoder.target.vocabulary
    for number in range(requests):
        full = number % 50 == 10
        length = limit - 24 if full else draw.randint(20, 200)
        phrase = [draw.randrange(vocabulary) for _ in range(40)]
        prompt = (phrase * (length // len(phrase) + 1))[:length]
        decoder.generate(prompt, max_new_tokens=64 if full else 24, do_sample=False)
        held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        yield held + (torch.cuda.memory_reserved() if torch.cuda.is_available() else 0)
