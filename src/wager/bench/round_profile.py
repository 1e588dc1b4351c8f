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
LENGTHS = range(1, 9)  # of the other drafters' arms, where a policy chooses
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
    policies: Sequence[str] = (),
    beside: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Medians over texts for each arm, temperature and path, interleaved; policies have the arms of these other
    drafters too."""
    decoders = {arm: _decoder(model, tokenizer, head, arm) for arm in arms}
    policies = [policy for policy in policies if policy not in decoders]
    for policy in policies:
        decoders[policy] = _choosing(model, tokenizer, [head, *beside], policy, arms)
    cases = [(arm, t, path) for t in temperatures for arm in arms for path in ("host", "device") if _has(arm, path)]
    cases += [(policy, t, "device") for t in temperatures for policy in policies]
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


def _choosing(model: Any, tokenizer: Any, drafters: list[str], policy: str, arms: Sequence[str]) -> Decoder:
    """A Decoder whose policy has the head's arms, and of every other drafter all lengths."""
    lengths = [f"{drafter.partition('=')[0]}:{n}" for drafter in drafters[1:] for n in LENGTHS]
    return Decoder(model, tokenizer, drafters=",".join(drafters), policy=policy, arms=[*arms, *lengths])


def _played(decoder: Decoder, prompt: Any, case: tuple[str, float, str], tokens: int) -> dict[str, float]:
    """Seconds a round of one text."""
    _, temperature, path = case
    how: dict[str, Any] = {"do_sample": False}
    if temperature:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    heads = [drafter for drafter in decoder.drafters.values() if isinstance(drafter, Eagle)]
    for drafter in heads:
        drafter.on_device = path == "device"
    for one in decoder.drafters.values():  # what it wrote before would be there to copy
        one.forget()
    own: list[float] = []
    exposed: list[float] = []  # seconds in which the device waits for the host before a round
    with timed_stages(heads) as stages, timed_idling(heads) as idling:
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
                by_head = any(head.name == step.round.arm.drafter for head in heads)
                waited = idling.take() if idling is not None else None
                if waited is None:  # where it reads back before, it waits for all that the host does
                    waited = own[-1] + (0.0 if by_head else step.round.draft_seconds)
                exposed.append(waited)
        seconds = perf_counter() - began
    count = max(1, len(rounds))
    return {
        "mat": emitted / count,
        "round_seconds": seconds / count,
        "tokens_per_second": emitted / seconds,
        "draft_seconds": statistics.mean(r.draft_seconds for r in rounds),
        "verify_seconds": statistics.mean(r.verify_seconds for r in rounds),
        "own_seconds": statistics.mean(own),
        "exposed_seconds": statistics.mean(exposed),
        "launch_seconds": (stages["play"] - stages["wait"]) / count,
        "wait_seconds": stages["wait"] / count,
    }


class Idling:
    """How long the device waits for the host before rounds that are played on it.

    That is from the end of the draft that was begun ahead, or of reading where none was, to the round's first forward.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None  # before the latest round, if it and the one before stayed on the device
        event: Any = torch.cuda.Event
        self._ends = [event(enable_timing=True) for _ in range(2)]
        self._before: Any = None  # recorded at the end of the round before
        self._latest: Any = None

    def take(self) -> float | None:
        """Of the round that was just played; None where it, or the one before, did not stay on the device."""
        seconds, self.seconds = self.seconds, None
        self._before, self._latest = self._latest, None
        return seconds

    def watch(self, one: Any) -> None:
        """Record when these rounds begin and end, until it is undone."""
        one._begun, one._read_ahead = self._ending(one._begun), self._ending(one._read_ahead)
        found = one._found

        def run(*given: Any) -> Any:
            made = found(*given)
            if self._before is not None:
                self.seconds = max(0.0, self._before.elapsed_time(one.clock[0]) / 1e3)
            return made

        one._found = run

    def _ending(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            made = call(*given)
            self._latest = next(end for end in self._ends if end is not self._before)
            self._latest.record()
            return made

        return run


@contextmanager
def timed_idling(heads: Sequence[Eagle]) -> Iterator[Idling | None]:
    """How long the device waits before rounds of these heads; None where nothing is played on a device."""
    rounds = [head._rounds for head in heads if head._rounds is not None and head._rounds.cuda]
    idling = Idling() if rounds else None
    found = [(one, vars(one).get("_found")) for one in rounds]
    for one in rounds:
        if idling is not None:
            idling.watch(one)
    try:
        yield idling
    finally:
        for one, before in found:
            del one._begun, one._read_ahead, one._found
            if before is not None:  # somebody else's
                one._found = before  # type: ignore[method-assign]


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
