"""Runs of the simulator: policies and lengths under a load, with stated costs (`wager simulate --env serving`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wager.policies import fixed
from wager.simulation import Costs, Drafter, Run, Serving, Stream, VerifyCost, load_trace, play
from wager.simulation.experiment import even_marks
from wager.simulation.serving import DRAFTER, Arrival

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

DEFAULT = Costs()
TRACE = "azure_llm_2023_conv.csv"
SD = f"fixed:drafter={DRAFTER},length=3"  # standard speculative decoding as Nightjar compares with: 3 tokens, always


@dataclass(frozen=True, slots=True)
class Served:
    """Continuous batching under a load: tokens a busy second, latency, tokens by stretch, and arms by policy."""

    load: tuple[int, ...]  # concurrent requests, each for an equal share of the tokens; empty: arrivals as traced
    tokens: int
    policies: tuple[str, ...]
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5)
    alone: bool = True  # also every length alone, and off
    acceptance: tuple[float, ...] = (0.7,)
    costs: Costs = DEFAULT
    warmup: int = 0
    runs: int = 1
    speed: float = 1.0  # of the trace
    seed: int = 0

    @property
    def command(self) -> str:
        load = ",".join(map(str, self.load))
        how = f"--load {load}" if self.load else f"--trace {TRACE} --speed {self.speed:g}"
        named = " ".join(f"-p {policy}" for policy in self.policies)
        arms = ",".join(f"{p:g}" for p in self.acceptance)
        other = {k: v for k, v in asdict(self.costs).items() if v != getattr(Costs(), k)}
        costs = f" (costs {', '.join(f'{k} {v:g} s' for k, v in other.items())})" if other else ""
        return (
            f"wager simulate --env serving {how} --arms {arms} --lengths {','.join(map(str, self.lengths))} "
            f"--tokens {self.tokens} --warmup {self.warmup} --runs {self.runs} {named}{costs}"
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        traces = workspace.folder("traces")
        load: tuple[int, ...] = self.load
        trace: tuple[Arrival, ...] = ()
        if not load and traces is not None:
            trace = load_trace(traces / TRACE, speed=self.speed)
        elif not load:
            load = (2, 8, 32, 4, 48, 12, 2, 24)  # no trace at hand: a load that changes as much
        scenario = Serving(
            goal=self.tokens, lengths=self.lengths, acceptance=self.acceptance, load=load, trace=trace, costs=self.costs
        )
        names = {str(arm): fixed(arm) for arm in scenario.arms} if self.alone else {}
        names |= {policy: policy for policy in self.policies}
        marks = even_marks(self.tokens, 40)
        found = {}
        for i, (name, spec) in enumerate(names.items()):
            workspace.tell(f"simulating {name}", i, len(names))
            runs = [play(scenario, spec, self.seed + s, warmup=self.warmup, marks=marks) for s in range(self.runs)]
            facts = [run.facts for run in runs]
            pulls = {str(arm): float(np.mean([run.pulls[arm] / run.rounds for run in runs])) for arm in runs[0].pulls}
            found[name] = {
                "goodput": float(np.mean([run.tokens / run.seconds for run in runs])),
                "mat": float(np.mean([run.tokens / run.rounds for run in runs])),
                "latency": float(np.mean([f["latency_mean"] for f in facts if "latency_mean" in f] or [0.0])),
                "wakes": float(np.mean([f["wakes"] for f in facts])),
                "pulls": pulls,
                "curve": [float(np.mean([run.curve[k][1] for run in runs])) for k in range(len(marks))],
            }
        return {"methods": found, "marks": list(marks), "load": list(load), "trace": len(trace)}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The load trace itself: requests a second in windows of ten seconds."""

    seconds: int = 10

    @property
    def command(self) -> str:
        return f"wager simulate --env serving --trace {TRACE} -p off"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        traces = workspace.folder("traces")
        if traces is None:  # traffic that is made up says nothing about traffic
            return {"rates": [], "traced": False, "requests": 0}
        at = [arrival.at for arrival in load_trace(traces / TRACE)]
        windows = np.bincount((np.array(at) // self.seconds).astype(int))
        return {"rates": (windows / self.seconds).tolist()[:-1], "traced": True, "requests": len(at)}


@dataclass(frozen=True, slots=True)
class Routing:
    """Prompts of as many kinds as their vectors have room for: a quick drafter is best for some, a slow one for others.

    On-the-fly adaptation's table 13: what the length of a prompt's vector does to the choice of a drafter.
    """

    sizes: tuple[int, ...]  # of a prompt's vector: its length, its perplexity, and a number for every kind
    prompts: int
    tokens: int  # a prompt
    runs: int = 1

    @property
    def command(self) -> str:
        return (
            f"wager simulate --env piecewise --arms quick=0.8/0.3@1,slow=0.85/0.85@8 --length 4 --every {self.tokens} "
            f"--tokens {self.prompts * self.tokens} -p prompt-router -p analytical"
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        found = {}
        for i, size in enumerate(self.sizes):
            workspace.tell(f"{size} numbers a prompt", i, len(self.sizes))
            kinds = size - 2
            quick = tuple(0.8 if kind % 2 else 0.3 for kind in range(kinds))
            drafters = (Drafter("quick", quick, 0.001), Drafter("slow", (0.85,) * kinds, 0.008))
            verify, goal = VerifyCost(((1, 0.03), (5, 0.034))), self.prompts * self.tokens
            scenario = Stream(drafters, lengths=(1, 2, 4), goal=goal, verify=verify, phase_tokens=self.tokens)
            found[str(size)] = {
                spec: float(np.mean([run.tokens / run.seconds for run in self._runs(scenario, spec)]))
                for spec in ("prompt-router", "analytical")
            }
        return {"sizes": found}

    def _runs(self, scenario: Stream, spec: str) -> list[Run]:
        return [play(scenario, spec, seed) for seed in range(self.runs)]
