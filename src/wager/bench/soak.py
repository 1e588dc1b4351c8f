"""The same text, and flat memory, over many requests of the real model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from wager.bench.methods import PLAIN, Target, transformers_generator
from wager.decoding.decoder import Decoder
from wager.decoding.identity import difference
from wager.drafters import Drafter


def check_texts(
    model: Any,
    drafters: Sequence[Drafter],
    policies: Sequence[str],
    prompts: Sequence[torch.Tensor],
    count: int,
    *,
    every: bool,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Each prompt answered by plain ``model.generate`` and by wager; one record for every text compared.

    ``random`` changes arms every round and answers every prompt; of the other policies each prompt gets two, in turn,
    or all with ``every``.
    """
    plain, lengths = transformers_generator(PLAIN, Target(model)), (1, 2, 3, 5, 8)
    decoders = {spec: Decoder(model, drafters=drafters, policy=spec, lengths=lengths, seed=seed) for spec in policies}
    others = [spec for spec in policies if spec != "random"]
    for at, ids in enumerate(prompts):
        theirs = plain.run(ids, count).tokens
        turn = others if every else [others[(2 * at + i) % len(others)] for i in range(2)]
        for spec in dict.fromkeys(("random", *turn)):
            made = decoders[spec].generate(ids, max_new_tokens=count, do_sample=False)
            differs = difference(model, ids[0].tolist(), made.tokens, theirs)
            yield {
                "prompt": at,
                "policy": spec,
                "tokens": len(theirs),
                "drafters": sorted({r.arm.drafter for r in made.rounds if r.drafted}),
                "same": differs is None,
                "tie": None if differs is None else differs.tie,
                "gap": None if differs is None else differs.gap,
            }


def memory_over(decoder: Decoder, requests: int, *, seed: int = 0) -> Iterator[int]:
    """Resident bytes after each of many requests; every fiftieth brings all but 24 tokens of the model's context."""
    draw = random.Random(seed)
    limit, vocabulary = decoder.target.limit, decoder.target.vocabulary
    for number in range(requests):
        full = number % 50 == 10
        length = limit - 24 if full else draw.randint(20, 200)
        phrase = [draw.randrange(vocabulary) for _ in range(40)]
        prompt = (phrase * (length // len(phrase) + 1))[:length]
        decoder.generate(prompt, max_new_tokens=64 if full else 24, do_sample=False)
        yield resident_bytes()


def resident_bytes() -> int:
    """Memory this process holds, in bytes; on CUDA with what the allocator holds there."""
    held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return held + (torch.cuda.memory_reserved() if torch.cuda.is_available() else 0)
