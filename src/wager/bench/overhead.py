"""What wager's loop adds to a token where the model runs through transformers' own forward."""

import statistics
from time import thread_time
from typing import Any, NamedTuple

import torch

from wager.bench.engine import spread
from wager.bench.methods import PLAIN, Target, TextGenerator, decoder_generator, transformers_generator
from wager.bench.shapes import random_family
from wager.decoding.decoder import Decoder


class Token(NamedTuple):
    """What a token took, on average over a text, in seconds."""

    wall: float
    cpu: float  # of the thread that decodes
    outside: float  # of that, what was not in the model's forward


class Watch:
    """Runs texts, and tells the time in the model's forward from the rest."""

    def __init__(self, model: Any) -> None:
        self.inside = self.entered = 0.0
        model.register_forward_pre_hook(self._enter)
        model.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self.entered = thread_time()

    def _leave(self, *_: Any) -> None:
        self.inside += thread_time() - self.entered

    def run(self, generator: TextGenerator, ids: torch.Tensor, count: int) -> Token:
        began, before = thread_time(), self.inside
        answer = generator.run(ids, count)
        cpu, tokens = thread_time() - began, len(answer.tokens)
        return Token(answer.seconds / tokens, cpu / tokens, (cpu - self.inside + before) / tokens)


def own_forward_overhead(family: str, prompt: int, count: int, repeats: int) -> dict[str, Any]:
    """Plain decoding by wager over ``model.generate``, pairs of texts in turn; each is the first every other time."""
    # Both run the same forward, so what wager adds is in the time outside of it. That can be told on a busy machine
    # too, where two forwards differ by more than all the rest takes.
    model = random_family(family)
    decoder = Decoder(model, drafters="suffix,prompt-lookup", policy="off")
    target, watch = Target(model), Watch(model)
    ids = torch.tensor([[(11 + 37 * i) % decoder.target.vocabulary for i in range(prompt)]])
    generators = transformers_generator(PLAIN, target), decoder_generator("off", decoder, target)
    pairs = []
    for number in range(repeats + 1):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {which: watch.run(generators[which], ids, count) for which in order}
        pairs.append((taken[0], taken[1]))
    del pairs[0]  # it warms up
    about = {"family": family, "parameters": sum(p.numel() for p in model.parameters())}
    outside = {name: statistics.median(pair[at].outside for pair in pairs) for at, name in enumerate((PLAIN, "off"))}
    return {
        **about,
        "runner": type(decoder.target).__name__,
        "plain_seconds_per_token": statistics.median(plain.wall for plain, _ in pairs),
        "off_to_plain": spread([off.wall / plain.wall for plain, off in pairs]),
        "outside_cpu_seconds_per_token": outside,
        # In shares of a token's seconds with model.generate.
        "added": spread([(off.outside - plain.outside) / plain.cpu for plain, off in pairs]),
    }
