"""Rounds of a head, stage by stage: on the device, and with every draft read back and verified by itself."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from wager.core import Arm
from wager.decoding.decoder import Decoder
from wager.eagle.drafter import Eagle
from wager.policies.plain import fixed

PROMPTS = (
    "Explain in a few sentences why the sea is salty.",
    "Natalia sold clips to 48 of her friends in April, and half as many in May. How many did she sell altogether?",
    "Translate to French: the weather is fine today, and we are going to the market.",
)
CHATS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]


def profile(
    model: Any,
    tokenizer: Any,
    head: str,
    arms: Sequence[str],
    temperatures: Sequence[float],
    tokens: int,
    repeats: int,
    prompts: Sequence[Any] = CHATS,
) -> list[dict[str, Any]]:
    """Medians over texts for each arm, temperature and path, interleaved."""
    decoders = {arm: _decoder(model, tokenizer, head, arm) for arm in arms}
    cases = [(arm, t, path) for t in temperatures for arm in arms for path in ("host", "device") if _has(arm, path)]
    found: dict[tuple[str, float, str], list[dict[str, float]]] = {case: [] for case in cases}
    for turn in range(repeats + 1):
        for prompt in prompts:
            for case in cases:
                played = _played(decoders[case[0]], prompt, case, tokens)
                if turn:  # the first warms up
                    found[case].append(played)
    rows = []
    for (arm, temperature, path), texts in found.items():
        medians = {name: statistics.median(text[name] for text in texts) for name in texts[0]}
        rows.append({"arm": arm, "temperature": temperature, "path": path, **medians})
    return rows


def _has(arm: str, path: str) -> bool:
    return path == "host" or arm != "off"


def _decoder(model: Any, tokenizer: Any, head: str, arm: str) -> Decoder:
    if arm == "off":
        return Decoder(model, tokenizer, drafters="off", policy="off")
    return Decoder(model, tokenizer, drafters=head, policy=fixed(Arm.parse(arm)), arms=[arm])


def _played(decoder: Decoder, prompt: Any, case: tuple[str, float, str], tokens: int) -> dict[str, float]:
    """Seconds a round of one text."""
    _, temperature, path = case
    how: dict[str, Any] = {"do_sample": False}
    if temperature:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    heads = [drafter for drafter in decoder.drafters.values() if isinstance(drafter, Eagle)]
    for drafter in heads:
        drafter.on_device = path == "device"
    own: list[float] = []
    with timed_stages(heads) as stages:
        prepared = decoder.prepare(prompt, {"max_new_tokens": tokens, **how})
        steps = decoder.run(prepared, decoder.target, seed=1)
        emitted, rounds = 0, []
        next(steps)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = perf_counter()
        for step in steps:
            if step.round is not None:
                emitted += len(step.tokens)
                rounds.append(step.round)
                own.append(decoder.loop.overhead)
        seconds = perf_counter() - began
    count = max(1, len(rounds))
    return {
        "mat": emitted / count,
        "round_seconds": seconds / count,
        "tokens_per_second": emitted / seconds,
        "draft_seconds": statistics.mean(r.draft_seconds for r in rounds),
        "verify_seconds": statistics.mean(r.verify_seconds for r in rounds),
        "own_seconds": statistics.mean(own),
        "launch_seconds": (stages["play"] - stages["wait"]) / count,
        "wait_seconds": stages["wait"] / count,
    }


@contextmanager
def timed_stages(heads: Sequence[Eagle]) -> Iterator[Mapping[str, float]]:
    """Seconds of playing rounds on the device, and of waiting for it in them."""
    stages = {"play": 0.0, "wait": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            began = perf_counter()
            try:
                return call(*given)
            finally:
                stages[name] += perf_counter() - began

        return run

    rounds = [head._rounds for head in heads if head._rounds is not None]
    for one in rounds:
        one.play, one._found = timed("play", one.play), timed("wait", one._found)  # type: ignore[method-assign]
    try:
        yield stages
    finally:
        for one in rounds:
            del one.play, one._found
