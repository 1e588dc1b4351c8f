"""Runs of the simulator, told seed by seed: policies and lengths under a load, with stated costs or fitted ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.fitted import BAND, FILES, Fit, Requests
from reproduction.fitted import of as fitted_costs
from reproduction.workspace import NotHereError
from wager.policies import fixed
from wager.simulation import Costs, Drafter, Serving, Stream, VerifyCost, load_trace, play
from wager.simulation import Run as Played
from wager.simulation.experiment import even_marks
from wager.simulation.serving import DRAFTER, Arrival

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

DEFAULT = Costs()
TRACE = "azure_llm_2023_conv.csv"
SD = f"fixed:drafter={DRAFTER},length=3"  # standard speculative decoding as Nightjar compares with: 3 tokens, always
HARDWARE = "simulated, stated costs"
MEASURED = "simulated, costs fitted to step times of an H200 with vLLM 0.32"


@dataclass(frozen=True, slots=True)
class Served:
    """Continuous batching under a load: seconds a token, latency, speed by stretch and arms, seed by seed.

    With ``fitted``, costs are those that were fitted to measured steps, or of the band around them.
    """

    load: tuple[int, ...]  # concurrent requests, each for an equal share of the tokens; empty: arrivals as traced
    tokens: int
    policies: tuple[str, ...]
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5)
    alone: bool = True  # also every length alone, and off
    acceptance: tuple[float, ...] = (0.7,)
    costs: Costs = DEFAULT
    warmup: int = 0
    seeds: int = 5
    speed: float = 1.0  # of the trace
    seed: int = 0
    fitted: str = ""  # FITTED of reproduction.fitted, or an entry of its BAND, in place of ``costs``
    max_batch: int = 64
    beside: bool = False  # no verdict rests on it alone

    @property
    def files(self) -> tuple[str, ...]:
        """Results that the run depends on."""
        return FILES if self.fitted else ()

    @property
    def command(self) -> str:
        if self.fitted:  # the command line has no costs of its own
            return "python -m reproduction nightjar-table2 nightjar-table3 nightjar-figure10"
        load = ",".join(map(str, self.load))
        how = f"--load {load}" if self.load else f"--trace {TRACE} --speed {self.speed:g}"
        named = " ".join(f"-p {policy}" for policy in self.policies)
        arms = ",".join(f"{p:g}" for p in self.acceptance)
        return (
            f"wager lab simulate --env serving {how} --arms {arms} --lengths {','.join(map(str, self.lengths))} "
            f"--tokens {self.tokens} --warmup {self.warmup} --runs {self.seeds} {named}"
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        fit = fitted_costs(workspace.recordings.parent, self.fitted) if self.fitted else None
        scenario = self._scenario(workspace, fit)
        names = {str(arm): fixed(arm) for arm in scenario.arms} if self.alone else {}
        names |= {policy: policy for policy in self.policies}
        marks = even_marks(self.tokens, 40)
        units, shares = {}, {}
        for i, (name, spec) in enumerate(names.items()):
            workspace.tell(f"simulating {name}", i, len(names))
            runs = [play(scenario, spec, self.seed + s, warmup=self.warmup, marks=marks) for s in range(self.seeds)]
            units[name] = {
                "seconds": [run.seconds / run.tokens for run in runs],
                "rounds": [run.rounds / run.tokens for run in runs],
                "latency": [run.facts.get("latency_mean", 0.0) for run in runs],
                "stretches": [_stretches(run, marks, max(1, len(self.load))) for run in runs],
            }
            pulls = {str(arm): float(np.mean([run.pulls[arm] / run.rounds for run in runs])) for arm in runs[0].pulls}
            shares[name] = dict(sorted(pulls.items(), key=lambda each: -each[1]))
        return {
            "labels": [""] * self.seeds, "units": units, "seeds": self.seeds, "unit": "seeds", "shares": shares,
            "arms": [str(arm) for arm in scenario.arms], "load": list(self.load), "beside": self.beside,
            "protocol": {} if self.fitted in BAND else self.protocol if fit is None else self._protocol_of(fit),
        }  # fmt: skip

    def _scenario(self, workspace: Workspace, fit: Fit | None) -> Serving:
        traces, trace = workspace.folder("traces"), ()
        if not self.load:
            if traces is None:
                raise NotHereError(f"needs {TRACE}: --data or WAGER_DATA names a folder with traces/")
            trace: tuple[Arrival, ...] = load_trace(traces / TRACE, speed=self.speed)  # type: ignore[no-redef]
        shape: dict[str, Any] = {
            "lengths": self.lengths,
            "acceptance": self.acceptance,
            "load": self.load,
            "trace": trace,
        }
        shape |= {"goal": self.tokens, "max_batch": self.max_batch}
        if fit is not None:
            return Requests(costs=fit.costs, per_request=fit.per_request, **shape)
        return Serving(costs=self.costs, **shape)

    def _protocol_of(self, fit: Fit) -> dict[str, str]:
        """What a run with fitted costs does, field by field."""
        lengths = f"0 to {max(self.lengths)}, measured to 4"
        hardware = f"{MEASURED} ({fit}; beside it {', '.join(BAND)})"
        return {**self.protocol, "target": "the shape of Llama 3 8B", "lengths": lengths, "hardware": hardware}

    @property
    def protocol(self) -> dict[str, str]:
        """What the run does, field by field."""
        costs = ", ".join(f"{name} {1000 * seconds:g} ms" for name, seconds in asdict(self.costs).items())
        load = (
            f"{', '.join(map(str, self.load))} requests kept up"
            if self.load
            else f"Azure's trace, speed {self.speed:g}"
        )
        return {
            "target": "none: stated costs", "drafters": f"acceptance {', '.join(f'{p:g}' for p in self.acceptance)}",
            "lengths": f"0 to {max(self.lengths)}", "tokens": f"{self.tokens:,} a run", "seeds": str(self.seeds),
            "hardware": f"{HARDWARE} ({costs})", "load": load, "reset": "never",
        }  # fmt: skip


def _stretches(run: Played, marks: tuple[int, ...], count: int) -> list[float]:
    """Seconds a token in each of so many equal stretches of a run."""
    curve = [(0, 0.0), *((tokens, seconds) for tokens, (_, seconds) in zip(marks, run.curve, strict=True))]
    edges = [curve[round(len(marks) * k / count)] for k in range(count + 1)]
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The load trace itself: requests a second in windows of ten seconds."""

    seconds: int = 10

    @property
    def command(self) -> str:
        return f"wager lab simulate --env serving --trace {TRACE} -p off"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        traces = workspace.folder("traces")
        if traces is None:  # traffic that is made up says nothing about traffic
            raise NotHereError(f"needs {TRACE}: --data or WAGER_DATA names a folder with traces/")
        at = [arrival.at for arrival in load_trace(traces / TRACE)]
        windows = np.bincount((np.array(at) // self.seconds).astype(int))
        return {"rates": (windows / self.seconds).tolist()[:-1], "requests": len(at)}


@dataclass(frozen=True, slots=True)
class Routing:
    """Prompts of as many kinds as their vectors have room for: a quick drafter is best for some, a slow one for others.

    On-the-fly adaptation's table 13: what the length of a prompt's vector does to the choice of a drafter.
    """

    sizes: tuple[int, ...]  # of a prompt's vector: its length, its perplexity, and a number for every kind
    prompts: int
    tokens: int  # a prompt
    seeds: int = 5

    @property
    def command(self) -> str:
        return (
            "wager lab simulate --env piecewise --arms quick=0.8/0.3@1,slow=0.85/0.85@8 --length 4 "
            f"--every {self.tokens} --tokens {self.prompts * self.tokens} --runs {self.seeds} -p prompt-router"
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        units = {}
        for i, size in enumerate(self.sizes):
            workspace.tell(f"{size} numbers a prompt", i, len(self.sizes))
            kinds = size - 2
            quick = tuple(0.8 if kind % 2 else 0.3 for kind in range(kinds))
            drafters = (Drafter("quick", quick, 0.001), Drafter("slow", (0.85,) * kinds, 0.008))
            verify, goal = VerifyCost(((1, 0.03), (5, 0.034))), self.prompts * self.tokens
            scenario = Stream(drafters, lengths=(1, 2, 4), goal=goal, verify=verify, phase_tokens=self.tokens)
            runs = [play(scenario, "prompt-router", seed) for seed in range(self.seeds)]
            units[str(size)] = {"seconds": [run.seconds / run.tokens for run in runs]}
        told = {
            "target": "none: stated costs", "drafters": "two, simulated", "hardware": HARDWARE,
            "seeds": str(self.seeds), "prompts": f"{self.prompts} simulated", "tokens": f"{self.tokens} a prompt",
        }  # fmt: skip
        return {"labels": [""] * self.seeds, "units": units, "seeds": self.seeds, "unit": "seeds", "protocol": told}
