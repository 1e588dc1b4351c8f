"""What reproduction.turns measures: the engines, and for each plan the turns that they take."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Order = dict[str, Any]  # one turn: plan, engine, what to do, policy, load; engines answer with the same and results

PROFILES = {"well": [0.9, 0.8, 0.7, 0.6], "fair": [0.75, 0.55, 0.4, 0.28], "bad": [0.4, 0.18, 0.08, 0.03]}
NOTHING = {"nothing": [0.05, 0.02, 0.01, 0.005]}  # a text in which nothing is to be matched
COMPARED = ("off", "2", "4", "auto", "nightjar", "dsd", "ucbspec", "ada-bingreedy")  # under rates: Nightjar's peers
AZURE_SPEED, AZURE_START = 4.0, 60.0  # times as fast as recorded: about 20 requests a second; from that second on
PEERS = ("nightjar", "dsd", "ucbspec:reward=goodput", "ada-bingreedy", "linucb", "lints")  # under closed loads
LEARN = 2.0  # seconds in which a policy of those learns a load before it is measured
DRAIN = 1.0  # seconds that the requests of an open loop have left after the last arrival


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: SmolLM2, or the shape of Llama 3 8B with random weights and synthetic acceptance."""

    drafters: tuple[str, ...] = ()  # none: no speculation
    length: int = 5  # maximum, tokens
    stock: str = ""  # vLLM's own speculation with that drafter: table, adaptive or fixed; empty: wager's
    large: bool = False


HEAD = ("eagle=",)  # a random EAGLE head for the large shape
MATCHING = ("suffix", "prompt-lookup")
ENGINES = {
    "plain": Engine(),
    "matching": Engine(MATCHING),
    "head": Engine(("eagle:ofa",)),
    "plain again": Engine(),
    "head and matching": Engine((*MATCHING, "eagle:ofa")),
    "table": Engine(("eagle:ofa",), stock="table"),
    "adaptive": Engine(("eagle:ofa",), stock="adaptive"),
    "ngram": Engine(("ngram",), stock="fixed"),
    "draft model": Engine(("draft:ofa",), 3),
    "stock draft model": Engine(("draft:ofa",), 3, stock="fixed"),
    "8B plain": Engine(large=True),
    "8B head": Engine(HEAD, 4, large=True),
    "8B matching": Engine(MATCHING, 4, large=True),
    "8B adaptive": Engine(HEAD, 4, "adaptive", large=True),
    "8B table": Engine(HEAD, 4, "table", large=True),
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a plan is run; what is not given is the plan's own."""

    seconds: float | None = None  # of a turn in a closed loop
    rounds: int | None = None
    window: float = 1.2  # seconds of arrivals in an open loop; twice that at low rates
    stress: float = 80.0  # seconds with random lengths, at most; under the changing load half as many
    batches: tuple[int, ...] = (1, 8, 32, 128, 256)
    kinds: tuple[str, ...] = ("chat", "copy")  # of prompts, of SmolLM2's closed loads
    policies: tuple[str, ...] = COMPARED  # of the open loops
    profiles: tuple[str, ...] = tuple(PROFILES)  # of the large shape's closed loads
    rates: tuple[float, ...] = (4, 30, 100, 250)  # requests a second
    steps: int = 50_000  # of the stress, over all engines
    requests: int = 20_000
    samples: int = 4000  # of each prompt on each engine
    only: tuple[str, ...] = ()  # engines


def by_turns(own: list[Order], turn: int) -> list[Order]:
    """One round: every other one goes backwards, so that a drift of the machine meets all alike."""
    orders = [{**order, "turn": turn} for order in own]
    return orders if turn % 2 else orders[::-1]


def closed(plan: str, policies: Mapping[str, Iterable[str]], loads: Iterable[Order], extent: Extent) -> list[Order]:
    """Every engine and policy with a constant number of requests; the first round is not counted: policies learn."""
    rounds = 3 if extent.rounds is None else extent.rounds
    turns: list[Order] = []
    for load in loads:
        own = [
            {"plan": plan, "do": "closed", **load, "engine": name, "policy": policy}
            for name, choices in policies.items()
            for policy in choices
        ]
        for turn in range(-1, rounds):
            turns += [{**order, "seconds": _closed_seconds(order, extent.seconds)} for order in by_turns(own, turn)]
    return turns


def _closed_seconds(order: Order, seconds: float | None) -> float:
    """With synthetic acceptance one request is mostly chance, and takes twice as long; who learns gets time for it.

    All requests of a turn begin with their prompts at once: where they are many, turns are longer, so that those are
    no larger share of the time than in a server.
    """
    longer = 4 if order["batch"] >= 100 else 1
    if not order["profile"]:
        return (seconds or 0.4) * longer
    if order["turn"] < 0 and order["policy"] in PEERS:
        return LEARN
    if order["turn"] < 0:
        return 0.7 * min(longer, 2) if order["policy"] in ("auto", "adaptive") else 0.2
    return (seconds or 0.25) * (2 if order["batch"] == 1 else longer)


def default(extent: Extent) -> list[Order]:
    policies = {"matching": ("off", "auto"), "head": ("auto",), "head and matching": ("auto",)}
    given = {name: policies.get(name, ("none",)) for name in SMALL}
    kinds = [{"kind": kind, "batch": batch, "profile": ""} for kind in extent.kinds for batch in extent.batches]
    return closed("default", given, kinds, extent)


def large_default(extent: Extent) -> list[Order]:
    policies = {"8B plain": ("none",), "8B matching": ("off", "auto")}
    loads = [{"kind": "chat", "batch": batch, "profile": "nothing"} for batch in extent.batches]
    return closed("large-default", policies, loads, extent)


def heads(extent: Extent, plan: str = "heads", more: Mapping[str, tuple[str, ...]] | None = None) -> list[Order]:
    policies = {"8B plain": ("none",), "8B head": ("off", "1", "2", "4", "auto"), **(more or {})}
    each = ((profile, batch) for profile in extent.profiles for batch in extent.batches)
    loads = [{"kind": "chat", "batch": batch, "profile": profile} for profile, batch in each]
    return closed(plan, policies, loads, extent)


def peers(extent: Extent) -> list[Order]:
    """Nightjar beside what its paper compares it with, on one engine."""
    policies = {"8B plain": ("none",), "8B head": ("off", "1", "2", "4", "auto", *PEERS)}
    return closed("peers", policies, [{"kind": "chat", "batch": n, "profile": "fair"} for n in extent.batches], extent)


def adaptive(extent: Extent) -> list[Order]:
    # The table is last: it is made from what the fixed lengths of the first round measured.
    return heads(extent, "adaptive", {"8B adaptive": ("adaptive",), "8B table": ("table",)})


def stock(extent: Extent) -> list[Order]:
    """SmolLM2's own head beside stock vLLM: adaptive verification, n-gram, a table of lengths (last, as above)."""
    policies = {"plain": ("none",), "head": ("off", "1", "2", "4", "auto"), "adaptive": ("adaptive",)}
    policies |= {"ngram": ("ngram",), "table": ("table",)}
    loads = [{"kind": kind, "batch": batch, "profile": ""} for kind in extent.kinds for batch in extent.batches]
    return closed("stock", policies, loads, extent)


def draft_model(extent: Extent) -> list[Order]:
    """A small draft model: what it costs while it does not draft, beside stock vLLM's, which drafts in every step."""
    policies = {"plain": ("none",), "draft model": ("off", "1", "3", "auto"), "stock draft model": ("stock",)}
    loads = [{"kind": kind, "batch": batch, "profile": ""} for kind in extent.kinds for batch in extent.batches]
    return closed("draft-model", policies, loads, extent)


def open_loop(plan: str, policies: Mapping[str, tuple[str, ...]], profile: str, extent: Extent) -> list[Order]:
    """Poisson arrivals at every rate, then a piece of the Azure trace; before them a closed load to learn from."""
    rounds = 3 if extent.rounds is None else extent.rounds
    own = [
        {"plan": plan, "engine": name, "policy": policy, "profile": profile, "kind": "chat"}
        for name, choices in policies.items()
        for policy in choices
    ]
    learn = [{**order, "do": "closed", "batch": 16, "seconds": 0.5} for order in own]
    turns = by_turns(learn, -1)
    for turn in range(rounds):
        for rate in (*extent.rates, 0.0):  # 0: the trace
            seconds = extent.window * (2 if rate < 10 else 1)  # also of the trace
            start = AZURE_START + turn * seconds * AZURE_SPEED  # another piece in every round
            load = {"do": "open", "rate": rate, "speed": AZURE_SPEED, "start": start, "seconds": seconds}
            load["drain"] = DRAIN
            turns += by_turns([{**order, **load} for order in own], turn)
    return turns


def rates(extent: Extent) -> list[Order]:
    given = {"8B plain": ("none",), "8B head": extent.policies, "8B table": ("table",)}
    return open_loop("rates", given, "fair", extent)


def small_rates(extent: Extent) -> list[Order]:
    given = {"plain": ("none",), "head": extent.policies, "table": ("table",), "ngram": ("ngram",)}
    return open_loop("small-rates", given, "", extent)


def small_engines(extent: Extent) -> list[str]:
    """Wager's engines of SmolLM2 that are named, or else the usual ones."""
    named = {name: ENGINES[name] for name in extent.only or SMALL}
    return [name for name, engine in named.items() if not engine.stock and not engine.large]


def stress(extent: Extent) -> list[Order]:
    """All engines at once: first `auto` under a changing load, then lengths at random in every step."""
    names = [name for name in small_engines(extent) if ENGINES[name].drafters]
    orders: list[Order] = []
    for policy, what, count in (("auto", "until_requests", extent.requests), ("random", "until_steps", extent.steps)):
        each = {what: -(-count // max(1, len(names)))}
        load = {"plan": "stress", "do": "stress", "policy": policy, "profile": "", "kind": "short", "turn": 0}
        load |= {"until_steps": 0, "until_requests": 0, **each, "group": f"stress {policy}"}
        load["seconds"] = extent.stress / 2 if policy == "auto" else extent.stress
        orders += [{**load, "engine": name, "seed": seed} for seed, name in enumerate(names)]
    return orders


def sampled(extent: Extent) -> list[Order]:
    """Many samples of a few prompts that matching drafts for, with the maximum length in every step."""
    orders: list[Order] = []
    runs = [(name, "4" if ENGINES[name].drafters else "none", 1.0) for name in SMALL]
    runs += [("plain again", "planted", 0.8)]  # another distribution, which the test has to notice
    for prompt in range(2):
        load = {"plan": "sampled", "do": "sample", "kind": "copy", "prompt": prompt, "samples": extent.samples}
        load |= {"first": 6, "profile": "", "turn": prompt, "seconds": 30.0}  # at most
        for number, (name, policy, temperature) in enumerate(runs):
            seed = (10 * prompt + number) << 20
            orders.append({**load, "engine": name, "policy": policy, "temperature": temperature, "seed": seed})
    return orders


def texts(extent: Extent) -> list[Order]:
    """Greedy texts of every engine, with `auto` and with random lengths."""
    load = {"plan": "texts", "do": "texts", "profile": "", "kind": "both", "turn": 0, "prompts": 96, "first": 64}
    load |= {"batch": min(32, max(extent.batches)), "seconds": 30.0}  # at most
    return [
        {**load, "engine": name, "policy": policy, "with_leads": name == "plain"}
        for name in small_engines(extent)
        for policy in (("auto", "random") if ENGINES[name].drafters else ("none",))
    ]


SMALL = ("plain", "matching", "head", "plain again", "head and matching")
PLANS: dict[str, Callable[[Extent], list[Order]]] = {
    "default": default, "stock": stock, "draft-model": draft_model, "large-default": large_default, "heads": heads,
    "peers": peers, "adaptive": adaptive, "rates": rates, "small-rates": small_rates, "stress": stress,
    "sampled": sampled, "texts": texts,
}  # fmt: skip

# Several plans under one name: together they are the rows that serving on a GPU is judged by, each a few minutes.
TOGETHER = {"small": ("default", "texts", "sampled", "stress"), "large": ("large-default", "adaptive")}


def orders(plan: str, extent: Extent) -> list[Order]:
    """Every turn of a plan; with ``only``, those of some engines."""
    return [order for order in PLANS[plan](extent) if not extent.only or order["engine"] in extent.only]


def most_seconds(turns: Iterable[Order]) -> float:
    """What these turns take at most, loading left out."""
    groups = grouped(turns)
    return float(sum(max(order["seconds"] + order.get("drain", 0.0) for order in group) for group in groups))


def grouped(turns: Iterable[Order]) -> list[list[Order]]:
    """The turns one after another; those with the same group at once."""
    groups: list[list[Order]] = []
    for order in turns:
        together = groups and order.get("group") and groups[-1][0].get("group") == order["group"]
        if together:
            groups[-1].append(order)
        else:
            groups.append([order])
    return groups


def best_lengths(rows: Iterable[Order], profile: str) -> list[tuple[int, int]]:
    """vLLM's table from what fixed lengths measured so far: (requests, best length), by requests."""
    total: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        fixed = row["policy"].isdigit() or row["policy"] == "off"
        measured = row["do"] == "closed" and not row["plan"].endswith("rates") and row.get("took")
        if measured and fixed and row["profile"] == profile and row["engine"].endswith("head"):
            own = total.setdefault((row["batch"], int(row["policy"]) if row["policy"].isdigit() else 0), [0.0, 0.0])
            own[0], own[1] = own[0] + row["tokens"], own[1] + row["took"]
    goodput = {key: tokens / took for key, (tokens, took) in total.items()}
    batches = sorted({batch for batch, _ in goodput})
    return [(b, max((rate, n) for (batch, n), rate in goodput.items() if batch == b)[1]) for b in batches]


def dense_table(best: Iterable[tuple[int, int]], most: int) -> list[int]:
    """The length for each number of requests from 0 to ``most``: that of the nearest load measured, by ratio."""
    known = list(best) or [(1, 4), (64, 2)]  # what four rounds with the middling head on an H200 gave

    def nearest(requests: int) -> int:
        return min(known, key=lambda entry: max(entry[0] / requests, requests / entry[0]))[1]

    return [0, *(nearest(requests) for requests in range(1, most + 1))]
