"""One engine of reproduction.turns: vLLM in a process of its own, and the turns it takes."""

import json
import os
import random
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

BATCHES = (1, 8, 32, 128)
TOKENS = {"chat": (100, 400), "copy": (60, 170)}  # of an output, least and most: a copied document has 175 left
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
PROFILES = {"well": [0.9, 0.8, 0.7, 0.6], "fair": [0.75, 0.55, 0.4, 0.28], "bad": [0.4, 0.18, 0.08, 0.03]}
# name -> drafters, maximum length, acceptance by position (None: as it is)
ENGINES: dict[str, dict[str, tuple[tuple[str, ...], int, list[float] | None]]] = {
    "default": {
        "plain": ((), 0, None),
        "matching": (("suffix", "prompt-lookup"), 5, None),
        "head": (("eagle:ofa",), 5, None),
        "plain again": ((), 0, None),
        "head and matching": (("suffix", "prompt-lookup", "eagle:ofa"), 5, None),
    },
    "heads": {"plain": ((), 0, None), **{name: (("eagle=",), 4, rates) for name, rates in PROFILES.items()}},
}


def make_model(folder: Path, *, head: bool) -> Path:
    """A folder with a configuration alone, or with the random weights of an EAGLE head for it."""
    folder = folder / ("head" if head else "target")
    folder.mkdir(parents=True, exist_ok=True)
    if head:
        import torch
        from safetensors.torch import save_file

        size, wide, vocabulary = LLAMA_8B["hidden_size"], LLAMA_8B["intermediate_size"], LLAMA_8B["vocab_size"]
        shapes = {"self_attn.q_proj": (size, size), "self_attn.o_proj": (size, size), "mlp.down_proj": (size, wide)}
        shapes |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (size // 4, size))
        shapes |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (wide, size))
        named = {f"layers.0.{name}.weight": shape for name, shape in shapes.items()}
        named |= {"fc.weight": (size, 2 * size), "embed_tokens.weight": (vocabulary, size)}
        weights = {name: 0.02 * torch.randn(*shape, dtype=torch.bfloat16) for name, shape in named.items()}
        weights["layers.0.post_attention_layernorm.weight"] = torch.ones(size, dtype=torch.bfloat16)
        save_file(weights, folder / "model.safetensors")
    layers = {"num_hidden_layers": 1} if head else {}
    (folder / "config.json").write_text(json.dumps({**LLAMA_8B, **layers}))
    return folder


def make_prompts(path: Path) -> None:
    """Token ids of prompts that cannot be drafted for by matching, and of some that can."""
    from transformers import AutoTokenizer

    from wager.bench.workloads import prompts
    from wager.models import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2-135m"))
    chat = [prompt.ids(tokenizer, 1024, "cpu")[0].tolist() for prompt in prompts(tasks=["alpaca"], count=192)]
    articles = (tokenizer(prompt.text.partition("\n\n")[2]).input_ids for prompt in prompts(tasks=["xsum"], count=1000))
    copy = [ids[:200] + ids[:25] for ids in articles if len(ids) >= 400][:192]
    path.write_text(json.dumps({"chat": chat, "copy": copy}))


class Served:
    """One engine in this process."""

    def __init__(self, plan: str, name: str, prompts: dict[str, list[list[int]]], folder: Path) -> None:
        import torch
        import vllm

        from wager.models import resolve
        from wager.vllm import launch, placement
        from wager.vllm.settings import Settings

        drafters, length, rates = ENGINES[plan][name]
        large = plan == "heads"
        model = str(folder / "target") if large else str(resolve("smollm2-135m"))
        given: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": max(BATCHES), "enable_prefix_caching": False}
        given |= {
            "dtype": "bfloat16",
            "kv_cache_memory_bytes": (6 if large else 2) << 30,
            "gpu_memory_utilization": 0.05,
        }
        if large:
            given |= {"load_format": "dummy", "skip_tokenizer_init": True}
        self.control = folder / f"{name}.policy"
        if drafters:
            drafters = tuple(f"eagle={folder / 'head'}" if spec == "eagle=" else spec for spec in drafters)
            if rates:
                synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
                given["speculative_config"] = synthetic
            inside = placement.in_speculator(drafters, on_cpu=False)
            settings = Settings(drafters, length, "off", control=str(self.control), log_seconds=0.0, speculator=inside)
            self.drafter = settings.arm_names[0]
            given = launch.arguments(model if large else "smollm2-135m", settings, given)
        else:
            given["model"] = model
        self.llm = vllm.LLM(**given)
        self.engine, self.prompts, self.made, self.now = self.llm.llm_engine, prompts, 0, ""
        self.wait, self.params, self.gpu = torch.cuda.synchronize, vllm.SamplingParams, torch.cuda.get_device_name()
        core = self.engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        self.matcher = getattr(runner.speculator, "matcher", None)
        self.step: list[Any] = [0, 0, 0, "-"]  # the latest: lengths verified and drafted, whether mixed, its CUDA graph
        self.lengths = getattr(core.scheduler, "lengths", None)
        self._watch(self.lengths, runner.cudagraph_manager)

    def _watch(self, lengths: Any, graphs: Any) -> None:
        """Have every step noted as it passes."""
        dispatch = graphs.dispatch

        def dispatched(*given: Any, **named: Any) -> Any:
            found = dispatch(*given, **named)
            self.step[3] = found.cg_mode.name.lower()
            return found

        graphs.dispatch = dispatched
        if lengths is None:
            return
        finish = lengths.finish

        def finished(step: Any, *given: Any, **named: Any) -> None:
            self.step[:3] = step.arm.length, step.next_arm.length, int(step.mixed)
            finish(step, *given, **named)

        lengths.finish = finished

    def _expected(self) -> dict[str, tuple[float, float]]:
        """Tokens and milliseconds that the policy expects of the arms, where it says so."""
        policy = self.lengths.rounds.policy if self.lengths is not None else None
        if policy is None or not policy.explains:
            return {}
        return {str(option.arm): (option.tokens, 1000 * option.seconds) for option in policy.options()}

    def choose(self, policy: str) -> None:
        """Another policy, or length, from now on."""
        if policy not in ("none", self.now):
            self.now = policy
            fixed = f"fixed:drafter={self.drafter},length={policy}" if policy.isdigit() else policy
            self.control.write_text(fixed)
            time.sleep(0.25)  # the file is looked at five times a second

    def turn(self, order: dict[str, Any]) -> dict[str, Any]:
        """So many requests at any moment, for so long."""
        from vllm.sampling_params import RequestOutputKind

        self.choose(order["policy"])
        kind, seconds, rng = order["kind"], order["seconds"], random.Random(order["turn"])
        first = (order["turn"] + 1) * 3 * order["batch"]
        live: set[str] = set()
        kinds, stamps, emitted, added = list[str](), list[float](), 0, 0
        if self.matcher is not None:
            self.matcher.forget()
        speed = processor_ms()
        self.wait()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            target = order["batch"] or rng.choice((1, 3, 9, 17, 33, 64, 100, 128))  # 0: any, changed in every step
            while len(live) < target:
                request, prompt = f"request {self.made}", self.prompts[kind][(first + added) % len(self.prompts[kind])]
                most = random.Random(first + added).randint(*TOKENS[kind])
                params = self.params(
                    temperature=0, max_tokens=most, ignore_eos=True, detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )  # fmt: skip
                self.engine.add_request(request, {"prompt_token_ids": prompt}, params)
                live.add(request)
                added, self.made = added + 1, self.made + 1
            for output in self.engine.step():
                emitted += len(output.outputs[0].token_ids)
                if output.finished:
                    live.discard(output.request_id)
            stamps.append(time.perf_counter())
            kinds.append("{}>{} {} {}".format(*self.step))
        took = stamps[-1] - began
        self.engine.abort_request(list(live))
        for _ in range(4):
            self.engine.step()
        gaps = [1000 * (after - before) for before, after in pairwise(stamps)]
        by_kind: dict[str, list[float]] = {}  # length verified > length drafted, whether a prefill is in it, CUDA graph
        for kind, gap in zip(kinds[1:], gaps, strict=True):
            by_kind.setdefault(kind, []).append(gap)
        return {
            **order, "tokens": emitted, "took": took, "steps": len(stamps), "requests": added,
            "step_ms": statistics.median(gaps), "slowest_ms": max(gaps), "processor_ms": (speed, processor_ms()),
            "kinds": {kind: (len(own), statistics.median(own)) for kind, own in by_kind.items()},
            "expected": self._expected(),
        }  # fmt: skip


def processor_ms() -> float:
    """Milliseconds of some Python: how fast this core is at the moment."""
    began = time.perf_counter()
    sum(number * number for number in range(30_000))
    return 1000 * (time.perf_counter() - began)


def serve(plan: str, name: str, prompts: Path, folder: Path) -> None:
    """The process of one engine: an order a line in, a result a line out."""
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what vLLM prints is not for the parent
    os.dup2(2, 1)
    served = Served(plan, name, json.loads(prompts.read_text()), folder)
    print(json.dumps({"gpu": served.gpu}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(served.turn(json.loads(line))), file=out, flush=True)
    os._exit(0)  # an engine that is shut down while others run may wait for ever
