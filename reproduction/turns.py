"""Serving on one GPU: engines that are loaded together and measured by turns.

python -m reproduction.turns default heads --prompts FILE --out FILE

Every engine is a process of its own with vLLM in it; all load at the same time, then take turns of less than a second,
back and forth, so that what the machine does in the meantime meets all of them alike. In a turn there is always the
same number of requests; one that is finished is replaced. Everything is counted, prefill included, and what earlier
turns wrote is forgotten. FILE holds prompts as token ids by kind: {"chat": [[…], …], "copy": [[…], …]}.

default: SmolLM2 without speculation (twice), with wager's default (twice), with a head, and with both in one engine.
heads: the shape of Llama 3 8B with random weights and a random EAGLE head, whose drafts are accepted with given
probabilities (vLLM's synthetic acceptance): well, fairly and badly trained.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from wager.core.provenance import provenance

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
        "matching again": (("suffix", "prompt-lookup"), 5, None),
        "head and matching": (("suffix", "prompt-lookup", "eagle:ofa"), 5, None),
    },
    "heads": {"plain": ((), 0, None), **{name: (("eagle=",), 4, rates) for name, rates in PROFILES.items()}},
}


def orders(plan: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Every turn: which engine, which policy, what load."""
    lengths = ("off", "1", "2", "4") if plan == "heads" else ()
    same = {"plan": plan, "seconds": seconds}
    turns: list[dict[str, Any]] = []
    for kind in ("chat",) if plan == "heads" else ("chat", "copy"):
        for batch in BATCHES:
            for turn in range(-1, rounds):  # the first is not counted: the policy meets this load
                own = [
                    {**same, "engine": name, "policy": policy, "kind": kind, "batch": batch, "turn": turn}
                    for name, (drafters, *_) in ENGINES[plan].items()
                    for policy in ((*lengths, "auto") if drafters else ("none",))
                ]
                turns += own if turn % 2 else own[::-1]
    if plan == "heads":
        return turns
    # Lengths at random in every step while batches grow and shrink: crashes and stalls would show.
    last = {"plan": plan, "kind": "chat", "batch": 0, "turn": 0, "seconds": 20 * seconds, "policy": "random"}
    return turns + [{**last, "engine": name} for name, (drafters, *_) in ENGINES[plan].items() if drafters][-2:]


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
        memory = {"kv_cache_memory_bytes": (6 if large else 2) << 30, "gpu_memory_utilization": 0.05}
        given |= {"dtype": "bfloat16", **memory}
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
        self.wait, self.params = torch.cuda.synchronize, vllm.SamplingParams
        worker = self.engine.engine_core.engine_core.model_executor.driver_worker
        self.matcher = getattr(worker.worker.model_runner.speculator, "matcher", None)

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
        live: set[str] = set()
        first = (order["turn"] + 1) * 3 * order["batch"]
        stamps: list[float] = []
        emitted = added = 0
        if self.matcher is not None:
            self.matcher.forget()
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
        took = stamps[-1] - began
        self.engine.abort_request(list(live))
        for _ in range(4):
            self.engine.step()
        gaps = [1000 * (after - before) for before, after in pairwise(stamps)]
        return {
            **order, "tokens": emitted, "took": took, "steps": len(stamps), "requests": added,
            "step_ms": statistics.median(gaps), "slowest_ms": max(gaps),
        }  # fmt: skip


def serve(plan: str, name: str, prompts: Path, folder: Path) -> None:
    """The process of one engine: an order a line in, a result a line out."""
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what vLLM prints is not for the parent
    os.dup2(2, 1)
    served = Served(plan, name, json.loads(prompts.read_text()), folder)
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(served.turn(json.loads(line))), file=out, flush=True)
    os._exit(0)  # an engine that is shut down while others run may wait for ever


def summary(plan: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens a second of every engine and policy over those of the plain engines in the same round of turns."""
    plain: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["policy"] == "none":
            plain.setdefault((row["kind"], row["batch"], row["turn"]), []).append(row["tokens"] / row["took"])
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["turn"] >= 0 and row["batch"]:
            name = row["engine"].removesuffix(" again")
            cells.setdefault((row["kind"], row["batch"], name, row["policy"]), []).append(row)
    made = []
    for (kind, batch, name, policy), own in cells.items():
        ratios = sorted(row["tokens"] / row["took"] / statistics.fmean(plain[kind, batch, row["turn"]]) for row in own)
        made.append({
            "plan": plan, "kind": kind, "batch": batch, "engine": name, "policy": policy, "turns": len(own),
            "ratio": statistics.median(ratios), "least": ratios[0], "most": ratios[-1],
            "step_ms": statistics.median(row["step_ms"] for row in own),
            "tokens_a_step": statistics.median(row["tokens"] / row["steps"] / batch for row in own),
            "slowest_ms": max(row["slowest_ms"] for row in own),
        })  # fmt: skip
    return made


def main() -> None:
    """Load all engines, give them their turns, write and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=ENGINES, nargs="+")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=0.7, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)  # name and folder: this process is that engine
    given = parser.parse_args()
    if given.engine:
        serve(given.plan[0], given.engine[0], given.prompts, Path(given.engine[1]))
    folder = Path(tempfile.mkdtemp(prefix="turns-"))
    if "heads" in given.plan:
        for head in (False, True):
            make_model(folder, head=head)
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    engines = {}
    for plan, name in [(which, name) for which in given.plan for name in ENGINES[which]]:
        words = [sys.executable, __file__, plan, "--prompts", str(given.prompts), "--engine", name, str(folder)]
        log = (folder / f"{plan} {name}.log").open("w")
        engines[plan, name] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=log, env=environment
        )
    began = time.time()
    rows: list[dict[str, Any]] = []
    for (plan, name), engine in engines.items():
        if not engine.stdout or not engine.stdout.readline():
            sys.exit(f"{name} did not start:\n" + (folder / f"{plan} {name}.log").read_text()[-3000:])
    print(f"{len(engines)} engines loaded in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    for order in (order for plan in given.plan for order in orders(plan, given.seconds, given.rounds)):
        plan, name = order["plan"], order["engine"]
        engine = engines[plan, name]
        assert engine.stdin is not None
        assert engine.stdout is not None
        print(json.dumps(order), file=engine.stdin, flush=True)
        answer = engine.stdout.readline()
        if not answer:
            sys.exit(f"{order} ended it:\n" + (folder / f"{plan} {name}.log").read_text()[-3000:])
        rows.append(json.loads(answer))
    for engine in engines.values():
        engine.kill()
    table = [row for plan in given.plan for row in summary(plan, [row for row in rows if row["plan"] == plan])]
    if given.out:
        said = {"kind": "turns", **provenance("python -m reproduction.turns"), "summary": table, "turns": rows}
        given.out.write_text(json.dumps(said, indent=1) + "\n")
    for row in table:
        print(
            f"{row['kind']:5}{row['batch']:4}  {row['engine']:18}{row['policy']:7}{row['ratio']:6.2f}x "
            f"[{row['least']:.2f}, {row['most']:.2f}]  {row['step_ms']:6.2f} ms  {row['tokens_a_step']:5.2f} tokens"
        )
    for row in rows:
        if not row["batch"]:
            print(f"{row['engine']}: {row['steps']} steps of random length, slowest {row['slowest_ms']:.0f} ms")


if __name__ == "__main__":
    main()
