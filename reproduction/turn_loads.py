"""The loads that an engine of reproduction.turns is put under: closed, open, changing at random, and many samples."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from reproduction.turn_plans import Order

TOKENS = {"chat": (100, 400), "copy": (60, 170), "short": (2, 24), "open": (30, 150)}  # of an output, least and most
LONGEST = {"prompt": 1024, "output": 200}  # tokens: what a request of the trace is cut to
CROWDS = (1, 2, 3, 5, 9, 17, 33, 64, 100, 128)  # requests of a changing load
STALL = 100.0  # milliseconds of one step
WAVE = 32  # samples that are started together


class Live:
    """The requests of one turn, and the steps that an engine makes with them."""

    def __init__(self, served: Any) -> None:
        self.served, self.engine = served, served.engine
        self.names: set[str] = set()
        self.added = self.emitted = self.finished = self.aborted = 0
        self.stamps: list[float] = []
        self.kinds: list[str] = []
        self.stalls: list[dict[str, Any]] = []
        self.outputs: list[Any] = []  # of the last step, as vLLM has them
        self.slowest = 0.0  # milliseconds of a step
        self._new = 0  # requests added since the last step
        served.live = self
        served.wait()
        self.before = served.accepted, served.expected_accepted
        self.began = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds since the turn began."""
        return time.perf_counter() - self.began

    def add(self, prompt: list[int], tokens: int, **sampling: Any) -> str:
        """Another request."""
        name = f"request {self.served.made}"
        self.served.made += 1
        self.engine.add_request(name, {"prompt_token_ids": prompt}, self.served.params(tokens, **sampling))
        self.names.add(name)
        self.added, self._new = self.added + 1, self._new + 1
        return name

    def step(self) -> list[tuple[str, list[int], bool]]:
        """One step of the engine: requests, their new tokens, and whether they are over."""
        began, live, new = time.perf_counter(), len(self.names), self._new
        outputs, self._new = self.engine.step(), 0
        self.outputs = outputs
        self.stamps.append(time.perf_counter())
        self.kinds.append("{}>{} {} {}".format(*self.served.step))
        took = 1000 * (self.stamps[-1] - began)
        self.slowest = max(self.slowest, took)
        if took > STALL:
            at = {"second": self.stamps[-1] - self.began, "step": len(self.stamps), "ms": took}
            self.stalls.append({**at, "requests": live, "new": new, "kind": self.kinds[-1]})
        made = [(one.request_id, list(one.outputs[0].token_ids), one.finished) for one in outputs]
        for name, tokens, over in made:
            self.emitted += len(tokens)
            if over:
                self.names.discard(name)
                self.finished += 1
        return made

    def abort(self, names: list[str]) -> None:
        """Give up some requests."""
        self.engine.abort_request(names)
        self.names.difference_update(names)
        self.aborted += len(names)

    def clear(self) -> None:
        """Give up all, and let the engine finish what is under way."""
        if self.names:
            self.engine.abort_request(list(self.names))
        for _ in range(4):
            self.engine.step()
        self.names.clear()

    def result(self) -> dict[str, Any]:
        """What every kind of turn reports."""
        gaps = [1000 * (after - before) for before, after in pairwise(self.stamps)]
        by_kind: dict[str, list[float]] = {}  # length verified > drafted, whether a prefill is in it, CUDA graph
        for kind, gap in zip(self.kinds[1:], gaps, strict=True):
            by_kind.setdefault(kind, []).append(gap)
        return {
            "tokens": self.emitted, "took": (self.stamps or [self.began])[-1] - self.began, "steps": len(self.stamps),
            "requests": self.added, "finished": self.finished, "aborted": self.aborted,
            "accepted": self.served.accepted - self.before[0],
            "expected_accepted": self.served.expected_accepted - self.before[1],
            "step_ms": statistics.median(gaps or [0.0]), "slowest_ms": self.slowest, "stalls": self.stalls,
            "kinds": {kind: (len(own), statistics.median(own)) for kind, own in by_kind.items()},
        }  # fmt: skip


def closed(served: Any, order: Order) -> dict[str, Any]:
    """So many requests at any moment, for so long; one that is finished is replaced."""
    kind, batch = order["kind"], order["batch"]
    prompts, first = served.prompts[kind], (order["turn"] + 1) * 3 * batch
    live = Live(served)
    while live.now < order["seconds"]:
        while len(live.names) < batch:
            number = first + live.added
            live.add(prompts[number % len(prompts)], random.Random(number).randint(*TOKENS[kind]))
        live.step()
    made = live.result()
    live.clear()
    return made


def stress(served: Any, order: Order) -> dict[str, Any]:
    """Short requests in batches that grow and shrink, some of them aborted, until a count or the time is reached."""
    rng, prompts = random.Random(order["seed"]), served.prompts["chat"]
    crowds = [crowd for crowd in CROWDS if crowd <= served.most]
    live, crowd, hold = Live(served), 1, 0
    lengths: Counter[str] = Counter()

    def reached(what: str, count: int) -> bool:
        return bool(order[what]) and count >= order[what]

    while live.now < order["seconds"] and not (
        reached("until_steps", len(live.stamps)) or reached("until_requests", live.finished + live.aborted)
    ):
        if not hold:
            crowd, hold = rng.choice(crowds), rng.randint(1, 16)
            excess = sorted(live.names)[: max(0, len(live.names) - crowd)]
            if excess and rng.random() < 0.5:
                live.abort(excess)
            while len(live.names) < crowd:
                tokens = rng.randint(*TOKENS["short"])
                warm = {"temperature": 1.0, "seed": rng.randrange(1 << 30)} if rng.random() < 0.1 else {}
                live.add(rng.choice(prompts), tokens, **warm)
        hold = hold - 1 if live.names else 0  # until then the batch shrinks: steps with prefill may not draft
        if live.names:
            live.step()
            lengths[str(served.step[0])] += 1
    made = live.result()
    live.clear()
    return {**made, "lengths": dict(lengths)}


def arrivals(prompts: dict[str, Any], order: Order) -> list[tuple[float, list[int], int]]:
    """When each request comes, its prompt and its tokens: a Poisson process, or the recorded ones where rate is 0."""
    rng, chat = random.Random(f"{order['rate']} {order['turn']}"), prompts["chat"]
    if order["rate"]:
        made, at = [], rng.expovariate(order["rate"])
        while at < order["seconds"]:
            made.append((at, rng.choice(chat), rng.randint(*TOKENS["open"])))
            at += rng.expovariate(order["rate"])
        return made
    words = [token for prompt in chat for token in prompt]
    since = [((at - order["start"]) / order["speed"], size, tokens) for at, size, tokens in prompts["azure"]]
    found = [arrival for arrival in since if 0 <= arrival[0] < order["seconds"]]
    pieces = [(at, min(size, LONGEST["prompt"]), min(tokens, LONGEST["output"])) for at, size, tokens in found]
    starts = [rng.randrange(max(1, len(words) - size)) for _, size, _ in pieces]
    return [(at, words[s : s + size], tokens) for s, (at, size, tokens) in zip(starts, pieces, strict=True)]


def open_loop(served: Any, order: Order) -> dict[str, Any]:
    """Requests that arrive when they arrive; after the last there is some time left to finish."""
    coming = arrivals(served.prompts, order)
    live = Live(served)
    arrived: dict[str, float] = {}
    first: dict[str, float] = {}
    spacing: list[float] = []  # milliseconds a token after the first, of requests that are over
    counts: Counter[str] = Counter()
    end = order["seconds"] + order["drain"]
    while (now := live.now) < end and (len(arrived) < len(coming) or live.names):
        while len(arrived) < len(coming) and coming[len(arrived)][0] <= now:
            at, prompt, tokens = coming[len(arrived)]
            arrived[live.add(prompt, tokens)] = at
        if not live.names:
            time.sleep(min(0.0005, max(0.0, coming[len(arrived)][0] - now)))
            continue
        for name, tokens_made, over in live.step():
            now = live.now
            counts[name] += len(tokens_made)
            if tokens_made:
                first.setdefault(name, now)
            if over and counts[name] > 1:
                spacing.append(1000 * (now - first[name]) / (counts[name] - 1))
    # A request that has no token yet has waited until now at least.
    waits = [1000 * (first.get(name, end) - at) for name, at in arrived.items()]
    made = live.result()
    live.clear()
    return {
        **made, "arrived": len(arrived), "waiting": len(arrived) - len(first),
        "unfinished": len(arrived) - made["finished"], "ttft_ms": quantiles(waits), "tpot_ms": quantiles(spacing),
    }  # fmt: skip


def quantiles(values: list[float]) -> dict[str, float] | None:
    """Median and 99th percentile; None where there is no value."""
    return {"p50": float(np.quantile(values, 0.5)), "p99": float(np.quantile(values, 0.99))} if values else None


def sample(served: Any, order: Order) -> dict[str, Any]:
    """The first tokens of many sampled answers to one prompt, each with a seed of its own."""
    prompt = served.prompts[order["kind"]][order["prompt"]]
    live, texts = Live(served), dict[str, list[int]]()
    while live.finished < order["samples"] and live.now < order["seconds"]:
        # In waves: a step with prefill may not draft.
        while not live.names or (live.added % WAVE and live.added < order["samples"]):
            how = {"temperature": order["temperature"], "seed": order["seed"] + live.added}
            texts[live.add(prompt, order["first"], **how)] = []
        for name, tokens, _ in live.step():
            texts[name] += tokens
    made = live.result()
    seen = Counter(tuple(text) for name, text in texts.items() if name not in live.names)
    live.clear()
    return {**made, "texts": [[list(text), count] for text, count in seen.most_common()]}


def texts(served: Any, order: Order) -> dict[str, Any]:
    """Greedy texts of many prompts, so many at once; with ``with_leads`` how far ahead of the second each token was."""
    prompts = [prompt for kind in ("chat", "copy") for prompt in served.prompts[kind][: order["prompts"]]]
    live, names = Live(served), list[str]()
    written: dict[str, list[int]] = {}
    leads: dict[str, list[float]] = {}
    while live.finished < len(prompts) and live.now < order["seconds"]:
        while len(live.names) < order["batch"] and len(names) < len(prompts):
            how = {"logprobs": 2} if order["with_leads"] else {}
            names.append(live.add(prompts[len(names)], order["first"], **how))
            written[names[-1]], leads[names[-1]] = [], []
        live.step()
        for one in live.outputs:
            written[one.request_id] += one.outputs[0].token_ids
            for ranked in one.outputs[0].logprobs or ():
                best, second = sorted((token.logprob for token in ranked.values()), reverse=True)[:2]
                leads[one.request_id].append(best - second)
    made = live.result()
    live.clear()
    return {**made, "written": [written[name] for name in names], "leads": [leads[name] for name in names]}


LOADS: dict[str, Callable[[Any, Order], dict[str, Any]]] = {
    "closed": closed, "stress": stress, "open": open_loop, "sample": sample, "texts": texts,
}  # fmt: skip
