"""One engine of reproduction.turns: vLLM in a process of its own, and the turns it takes."""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from reproduction.turn_loads import LOADS, Live
from reproduction.turn_plans import ENGINES, NOTHING, PROFILES, Order, dense_table
from wager.models import resolve
from wager.vllm import launch, placement
from wager.vllm.settings import Settings

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Served:
    """One engine in this process."""

    def __init__(self, name: str, prompts: dict[str, Any], folder: Path, most: int, *, tiny: bool) -> None:
        import torch
        import vllm

        self.spec, self.prompts, self.most, self.made = ENGINES[name], prompts, most, 0
        self.accepted, self.expected_accepted = 0, 0.0  # draft tokens; the second as the synthetic acceptance has it
        self.rates: list[float] = []
        self.live: Live | None = None  # of the turn under way
        self.settings: Settings | None = None
        self._params, self._policies = vllm.SamplingParams, dict[tuple[str, str], Any]()
        self.llm = vllm.LLM(**self._arguments(folder, tiny))
        self.engine = self.llm.llm_engine
        on_gpu = torch.cuda.is_available()
        self.wait = torch.cuda.synchronize if on_gpu else lambda: None
        self.gpu = torch.cuda.get_device_name() if on_gpu else "none"
        core = self.engine.engine_core.engine_core
        self.scheduler, self.runner = core.scheduler, core.model_executor.driver_worker.worker.model_runner
        self.matcher = getattr(getattr(self.runner, "speculator", None), "matcher", None)
        self.step: list[Any] = [0, 0, 0, "-"]  # the latest: lengths verified and drafted, whether mixed, its CUDA graph
        self.lengths = getattr(self.scheduler, "lengths", None)
        self._watch(getattr(self.runner, "cudagraph_manager", None))

    def _arguments(self, folder: Path, tiny: bool) -> dict[str, Any]:
        """What vLLM is started with."""
        spec, cpu = self.spec, launch.on_cpu()
        model = str(folder / "target") if spec.large else "smollm2-135m"
        given: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": self.most, "enable_prefix_caching": False}
        given |= {"dtype": "float32" if cpu else "bfloat16", "gpu_memory_utilization": 0.05}
        given["kv_cache_memory_bytes"] = (8 if spec.large and not tiny else 1 if cpu else 2) << 30
        if cpu:
            given["enforce_eager"] = True  # a rehearsal: nothing is measured
        if spec.large:
            given |= {"load_format": "dummy", "skip_tokenizer_init": True}
        if not spec.drafters:
            return {**given, "model": str(resolve(model))}
        drafters = tuple(f"eagle={folder / 'head'}" if drafter == "eagle=" else drafter for drafter in spec.drafters)
        if spec.large and not cpu:  # where vLLM's sampler has it
            rates = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": PROFILES["fair"]}
            given["speculative_config"] = rates
        inside = placement.in_speculator(drafters, on_cpu=cpu)
        self.settings = Settings(drafters, spec.length, "off", log_seconds=0.0, speculator=inside)
        made = launch.arguments(model, self.settings, given)
        return stock(made, spec.stock) if spec.stock else made

    def params(self, tokens: int, **sampling: Any) -> Any:
        """vLLM's parameters of a request with so many tokens; greedy unless a temperature is given."""
        from vllm.sampling_params import RequestOutputKind

        how = {"temperature": 0.0, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.DELTA}
        return self._params(max_tokens=tokens, **{**how, **sampling})

    def _watch(self, graphs: Any) -> None:
        """Have every step noted as it passes."""
        if graphs is not None:
            dispatch = graphs.dispatch

            def dispatched(*given: Any, **named: Any) -> Any:
                found = dispatch(*given, **named)
                self.step[3] = found.cg_mode.name.lower()
                return found

            graphs.dispatch = dispatched
        if self.lengths is None:
            return
        finish = self.lengths.finish

        def finished(step: Any, scheduled: float, accepted: int, *given: Any, **named: Any) -> None:
            self.step[:3] = step.arm.length, step.next_arm.length, int(step.mixed)
            whole = step.drafted == step.batch * step.arm.length and not step.mixed
            self.accepted += accepted
            known = whole and self.rates
            self.expected_accepted += step.batch * sum(self.rates[: step.arm.length]) if known else accepted
            finish(step, scheduled, accepted, *given, **named)

        self.lengths.finish = finished

    def expected(self) -> dict[str, tuple[float, float]]:
        """Tokens and milliseconds that the policy expects of the arms, where it says so."""
        policy = self.lengths.rounds.policy if self.lengths is not None else None
        if policy is None or not policy.explains:
            return {}
        return {str(option.arm): (option.tokens, 1000 * option.seconds) for option in policy.options()}

    def choose(self, order: Order) -> None:
        """The policy, or length, and the acceptance of this turn; every acceptance has policies of its own."""
        policy, profile = order["policy"], order["profile"]
        if profile and self.spec.drafters:
            self._accept({**PROFILES, **NOTHING}[profile])
        if policy == "table":
            self.scheduler.dynamic_sd_lookup[:] = dense_table(order.get("table", ()), self.most)
        if self.lengths is None or self.settings is None:
            return
        if (policy, profile) not in self._policies:
            drafter = self.settings.arm_names[-1]
            fixed = f"fixed:drafter={drafter},length={policy}" if policy.isdigit() else policy
            self._policies[policy, profile] = self.settings.build_policy(fixed)
        self.lengths.rounds.policy = self._policies[policy, profile]
        self.lengths._hold = 0  # of the policy before

    def _accept(self, rates: list[float]) -> None:
        """Synthetic acceptance from now on, where this engine has it."""
        now = self.runner.rejection_sampler.synthetic_conditional_rates
        if now is not None and rates != self.rates:
            self.rates = rates
            set_acceptance(rates, now, getattr(self.runner.speculator, "acceptance_estimator", None))

    def turn(self, order: Order) -> Order:
        """One turn: the order, and what came of it."""
        self.choose(order)
        if CORES:  # one for all engines in a round of closed loads: the cores of a machine may differ in speed
            os.sched_setaffinity(0, {CORES[order["turn"] % len(CORES)]} if order["do"] == "closed" else CORES)
        if self.matcher is not None:
            self.matcher.forget()  # what earlier turns wrote
        speed = processor_ms()
        made = LOADS[order["do"]](self, order)
        return {**order, **made, "processor_ms": (speed, processor_ms()), "expected": self.expected()}


def set_acceptance(rates: list[float], conditional: Any, estimator: Any) -> None:
    """Write synthetic acceptance where vLLM keeps it: of each position, given the one before it.

    vLLM's adaptive verification estimates acceptance from the drafter's confidence, and learns from what it verifies.
    A random head is never confident, so it would verify nothing and learn nothing. Its estimate starts at the truth.
    """
    import torch

    given = torch.tensor([after / before for before, after in zip([1.0, *rates], rates, strict=False)])
    conditional.copy_(given)
    if estimator is not None:
        estimator.slope.zero_()
        estimator.intercepts.copy_(torch.logit(given, eps=1e-3))
        for learned in (estimator.info, estimator.grad, estimator.counts):
            learned.zero_()


def stock(made: dict[str, Any], kind: str) -> dict[str, Any]:
    """vLLM's own speculation, same drafter and graphs: with a table of lengths, adaptive verification, or neither."""
    speculative = dict(made["speculative_config"])
    table = speculative.pop(launch.TABLE, None)
    if kind == "table":
        length = speculative["num_speculative_tokens"]
        speculative[launch.TABLE] = table or [[n + 1, n + 1, n] for n in range(length + 1)]
    if kind == "adaptive":
        speculative["enable_adaptive_verification"] = True
    own = {"scheduler_cls", "additional_config"}
    return {**{key: value for key, value in made.items() if key not in own}, "speculative_config": speculative}


def processor_ms() -> float:
    """Milliseconds of some Python: how fast this core is at the moment."""
    began = time.perf_counter()
    sum(number * number for number in range(30_000))
    return 1000 * (time.perf_counter() - began)


def serve(given: dict[str, Any]) -> None:
    """The process of one engine: an order a line in, a result a line out; it ends with the first error."""
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what vLLM prints is not for the parent
    os.dup2(2, 1)
    prompts = json.loads(Path(given["prompts"]).read_text())
    served = Served(given["name"], prompts, Path(given["folder"]), given["most"], tiny=given["tiny"])
    print(json.dumps({"gpu": served.gpu}), file=out, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            print(json.dumps(served.turn(order)), file=out, flush=True)
        except Exception as error:  # an illegal memory access too: nothing can be done with this engine any more
            traceback.print_exc()
            so_far = served.live.result() if served.live else {}
            said = {**order, **so_far, "error": f"{type(error).__name__}: {error}"[:500]}
            print(json.dumps(said), file=out, flush=True)
            break
    os._exit(0)  # an engine that is shut down while others run may wait for ever
