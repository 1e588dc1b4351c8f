"""Which way to run each operation at each width: measured once per machine in bounded time, and cached on disk."""

import itertools
import logging
import math
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from wager.core import files
from wager.models.embedded import cache
from wager.models.packed import FUSED, PACKED, PLAIN, Weight, product, usable

log = logging.getLogger("wager")

WIDTHS = (1, 2, 4, 8, 16, 64)  # tokens at which the ways are timed; a width in between goes by the next larger one
ORDER = (4, 1, 8, 2, 16, 64)  # the usual ones first: a busy machine may not get far
BUDGET = 0.5  # seconds of wall time for all operations of a model
REPEATS = 3  # of every way at every width, interleaved; the first also warms up
HOPELESS = 10  # a way whose call takes this many times as long as the plain one is not called again ...
NOISE = 0.005  # ... unless it took less than so many seconds: first calls create kernels
GAIN = 0.95  # a way is chosen if it takes less than this share of the plain one's time
SAMPLE = 1 << 20  # numbers of a weight that are timed: rows of one layer, so that a hopeless call stays short
FILE = "packed.json"  # in the user's cache folder
VERSION = 2  # of the ways and of how they are timed

Way = Callable[[int], object]  # runs one operation once for so many tokens
Operations = Mapping[str, Mapping[str, Callable[[], Way]]]  # operation -> way -> what prepares it; plain comes first
Plan = dict[str, list[str]]  # operation -> way at each of WIDTHS


def way_at(ways: list[str] | None, width: int) -> str:
    """The way for this many tokens; whatever has no ways takes the plain one."""
    if ways is None:
        return PLAIN
    return ways[next((at for at, measured in enumerate(WIDTHS) if measured >= width), -1)]


def ways_of(
    make: Callable[[str], Callable[..., torch.Tensor]], weight: Weight, *, fused: bool = False, residual: bool = False
) -> dict[str, Callable[[], Way]]:
    """The ways of an operation, each made from its name, for ``measure``; with ``residual`` it takes one too."""
    sizes = weight.shape[::-1] if residual else weight.shape[1:]
    given = {width: [torch.zeros(width, size) for size in sizes] for width in WIDTHS}

    def prepare(way: str) -> Way:
        run = make(way)
        return lambda width: run(*given[width])

    return {way: partial(prepare, way) for way in (PLAIN, PACKED, *((FUSED,) if fused else ()))}


class CalibratedProduct:
    """The product with a weight, run for every number of tokens in the way that is the fastest here."""

    def __init__(self, weight: Weight, ways: list[str] | None = None) -> None:
        self.weight, self.ways = weight, ways

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(width, inputs) to (width, outputs)."""
        way = way_at(self.ways, len(x))
        if way != PLAIN:
            try:
                self.weight.packed()
            except RuntimeError as error:  # no memory for a copy
                log.warning("a weight could not be packed (%s): its products will be slower", error)
                self.ways, way = None, PLAIN
        return product(self.weight, way)(x)

    @property
    def nbytes(self) -> int:
        """Of the packed copy."""
        return self.weight.nbytes


def of_products(weights: Mapping[str, Weight]) -> dict[str, CalibratedProduct]:
    """Products outside a model's layers, timed together in a fifth of the time that a model's operations may take."""
    if not all(usable(part) for weight in weights.values() for part, _ in weight.parts):
        return {name: CalibratedProduct(weight) for name, weight in weights.items()}
    samples = {name: weight.sample(SAMPLE) for name, weight in weights.items()}
    operations = {name: ways_of(partial(product, sample), sample) for name, sample in samples.items()}
    plan = calibrated({name: weight.shape for name, weight in weights.items()}, operations, BUDGET / 5)
    return {name: CalibratedProduct(weight, plan[name]) for name, weight in weights.items()}


def calibrated(shapes: Mapping[str, tuple[int, int]], operations: Operations, budget: float = BUDGET) -> Plan:
    """The fastest way of every operation, from the cache or by measuring."""
    # The plan is kept for this processor, torch, number of threads and these shapes.
    sizes = ", ".join(f"{name} {outputs}x{inputs}" for name, (outputs, inputs) in shapes.items())
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, float32, v{VERSION}, {sizes}"
    path, known = cache() / FILE, {}
    with suppress(OSError, ValueError):  # a damaged file is replaced
        known = files.read_json(path)
    if _sound(known.get(key), operations):
        found: Plan = known[key]
        return found
    plan, complete = measure(operations, budget)
    if complete:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, {**known, key: plan})
        except OSError as error:
            log.info("the calibration of packed weights is not kept: %s", error)
    return plan


def _sound(plan: object, operations: Operations) -> bool:
    """Whether something read from a file is a plan for these operations."""
    if not isinstance(plan, dict) or plan.keys() != operations.keys():
        return False
    return all(
        isinstance(ways, list) and len(ways) == len(WIDTHS) and all(str(way) in operations[name] for way in ways)
        for name, ways in plan.items()
    )


def measure(
    operations: Operations,
    budget: float = BUDGET,
    clock: Callable[[], float] = time.perf_counter,
    timer: Callable[[], float] = time.thread_time,  # not wall time: another process may run in between
) -> tuple[Plan, bool]:
    """The fastest way of every operation at each width, and whether there was time to measure them all."""
    deadline = clock() + budget
    alive = {name: dict(ways) for name, ways in operations.items()}
    ready: dict[tuple[str, str], Way] = {}
    # Seconds of the best call, by operation, width and way.
    best: dict[str, dict[int, dict[str, float]]] = {name: {} for name in operations}
    for width, _, (name, ways) in itertools.product(ORDER, range(REPEATS), alive.items()):
        seconds = best[name].setdefault(width, {})
        for way in list(ways):
            if clock() > deadline:
                return {name: _chosen(best[name], len(ways)) for name, ways in alive.items()}, False
            try:
                run = ready.get((name, way)) or ready.setdefault((name, way), ways[way]())
                began = timer()
                run(width)
                taken = timer() - began
            except RuntimeError as error:  # this processor has no such kernel
                if way == PLAIN:
                    raise
                log.warning("the %s kernel for %s does not work here (%s)", way, name, error)
                taken = math.inf
            if way != PLAIN and taken > max(NOISE, HOPELESS * seconds[PLAIN]):
                del ways[way]
                seconds.pop(way, None)
            else:
                seconds[way] = min(taken, seconds.get(way, taken))
    return {name: _chosen(best[name], len(ways)) for name, ways in alive.items()}, True


def _chosen(measured: Mapping[int, Mapping[str, float]], ways: int) -> list[str]:
    """The way at each width; one at which not all ways were timed goes by the nearest other one, or is plain."""
    known = {}
    for width, seconds in measured.items():
        if len(seconds) >= ways:
            fastest = min(seconds, key=seconds.__getitem__)
            known[width] = fastest if seconds[fastest] < GAIN * seconds[PLAIN] else PLAIN
    return [known[min(known, key=lambda near: abs(near - width))] if known else PLAIN for width in WIDTHS]


def processor() -> str:
    """The processor's name where the system gives it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "CPU implementer", "CPU part")  # ARM has numbers in place of a name
    found = [line.partition(":")[2].strip() for line in lines if line.startswith(wanted)]
    names = list(dict.fromkeys(found))  # every core says the same
    return " ".join([platform.machine(), *(names or [platform.processor()])]).strip()
