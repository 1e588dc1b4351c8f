"""Two things measured directly: memory of methods, and what waking an idle drafter takes."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wager.core import OFF, Arm
from wager.policies import fixed

if TYPE_CHECKING:
    from reproduction.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory held and weights read a second: a head alone, and policies over it and drafters without weights."""

    needs_model: ClassVar[bool] = True

    tasks: tuple[str, ...]
    count: int
    tokens: int
    alone: str  # arm
    others: tuple[str, ...]  # arms without weights
    policies: tuple[str, ...]
    orders: int = 5  # of the prompts; in each the methods take turns in another order, too

    @property
    def command(self) -> str:
        return "python -m reproduction banditspec-table2 --with-model --out results/reproduction"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        from wager.bench.methods import Target, wager_generator
        from wager.decoding.arms import build_drafters

        model, tokenizer = workspace.loaded()
        arms = [Arm.parse(arm) for arm in (self.alone, *self.others)]
        prompts = workspace.prompts(self.tasks, self.count)
        asked = [prompt.ids(tokenizer, 384, model.device) for prompt in prompts]
        target = sum(p.numel() * p.element_size() for p in model.parameters())
        plans: list[tuple[str, str, list[Arm]]] = [(self.alone, fixed(arms[0]), arms[:1])]
        plans += [(policy, policy, arms) for policy in self.policies]
        found = {plan[0]: {column: np.zeros(len(asked)) for column in ("bytes", "read")} for plan in plans}
        warm = wager_generator("warm", Target(model, tokenizer), "off", [str(OFF)])
        for ids in asked[:2]:
            warm.run(ids, self.tokens)  # what the engine itself takes is there before anything is compared
        for order in range(self.orders):
            rng = np.random.default_rng(order)
            numbers = rng.permutation(len(asked))
            for i, plan in enumerate(rng.permutation(len(plans))):
                name, spec, own = plans[plan]
                workspace.tell(f"order {order + 1}: {name}", i, len(plans))
                _reset(model)
                drafters = list(build_drafters([arm.drafter for arm in own], model, tokenizer).values())
                head = sum(_weights(drafter) for drafter in drafters)
                shared = Target(model, tokenizer, seed=order)
                generator = wager_generator(name, shared, spec, [str(arm) for arm in own], drafters=drafters)
                told = found[name]
                for at in numbers:
                    answer = generator.run(asked[at], self.tokens)
                    steps = sum(r.drafted for r in answer.rounds if r.arm.drafter == arms[0].drafter)
                    told["bytes"][at] += _held(model) / self.orders
                    told["read"][at] += (target * len(answer.rounds) + head * steps) / len(answer.tokens) / self.orders
                del generator, drafters
        return {
            "units": {name: {column: own[column].tolist() for column in own} for name, own in found.items()},
            "labels": [prompt.task for prompt in prompts],
            "seeds": self.orders,
            "protocol": {
                "target": workspace.model, "drafters": ", ".join(str(arm) for arm in arms), "reset": "every prompt",
                "prompts": str(len(asked)), "tokens": f"at most {self.tokens}", "seeds": str(self.orders),
                "temperature": "0", "hardware": device_name(model.device),
            },
        }  # fmt: skip


def device_name(device: Any) -> str:
    """The device as results name it."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def _weights(drafter: Any) -> int:
    tensors = getattr(getattr(getattr(drafter, "head", None), "file", None), "tensors", {})
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _reset(model: Any) -> None:
    import torch

    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _held(model: Any) -> float:
    """Bytes: the most of the GPU's memory, or what the process holds."""
    import torch

    if model.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if not status.exists():
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return 1024.0 * int(line.split()[1])


@dataclass(frozen=True, slots=True)
class Waking:
    """Seconds a draft model takes to read tokens it missed, by their number and by requests, repeat by repeat."""

    needs_model: ClassVar[bool] = True

    drafter: str
    missed: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int = 5

    @property
    def command(self) -> str:
        return "python -m reproduction nightjar-table1 --with-model --out results/reproduction"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        import torch

        from wager.decoding.arms import build_drafters

        model, tokenizer = workspace.loaded()
        drafter: Any = build_drafters([self.drafter], model, tokenizer)[self.drafter]
        draft = getattr(drafter, "model", None) or drafter.runner.model
        shapes = [(batch, missed) for batch in self.batches for missed in self.missed]
        asked = {shape: torch.randint(5, 1000, shape, device=model.device) for shape in shapes}
        taken: dict[str, dict[str, list[float]]] = {str(b): {str(m): [] for m in self.missed} for b in self.batches}
        for i in range(-1, self.repeats):  # by turns: what else the machine does meets all of them alike
            workspace.tell("waking", i, self.repeats)
            for (batch, missed), ids in asked.items():
                began = perf_counter()
                with torch.inference_mode():
                    draft(input_ids=ids, use_cache=True)
                if model.device.type == "cuda":
                    torch.cuda.synchronize()
                if i >= 0:
                    taken[str(batch)][str(missed)].append(perf_counter() - began)
        told = {"target": workspace.model, "drafters": self.drafter, "seeds": str(self.repeats)}
        told |= {"load": f"batches of {', '.join(map(str, self.batches))}", "hardware": device_name(model.device)}
        return {"seconds": taken, "seeds": self.repeats, "protocol": told}
