"""What the engines of reproduction.turns read: models without weights, prompts, and recorded arrivals."""

import json
from pathlib import Path
from typing import Any

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
# For a rehearsal on a CPU. Its vocabulary holds the token ids of the prompts.
TINY: dict[str, Any] = {
    **LLAMA_8B, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 1, "vocab_size": 49152, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
TRACE = "azure_llm_2023_conv.csv"
TRACE_SECONDS = 240.0  # of it that are kept


def make_model(folder: Path, shape: dict[str, Any], *, head: bool) -> Path:
    """A folder with a configuration alone, or with the random weights of an EAGLE head for it."""
    folder = folder / ("head" if head else "target")
    folder.mkdir(parents=True, exist_ok=True)
    if head:
        import torch
        from safetensors.torch import save_file

        size, wide, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
        keys = size // shape["num_attention_heads"] * shape["num_key_value_heads"]
        dtype = getattr(torch, shape["torch_dtype"])
        shapes = {"self_attn.q_proj": (size, size), "self_attn.o_proj": (size, size), "mlp.down_proj": (size, wide)}
        shapes |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (keys, size))
        shapes |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (wide, size))
        named = {f"layers.0.{name}.weight": shape for name, shape in shapes.items()}
        named |= {"fc.weight": (size, 2 * size), "embed_tokens.weight": (vocabulary, size)}
        weights = {name: 0.02 * torch.randn(*shape, dtype=dtype) for name, shape in named.items()}
        weights["layers.0.post_attention_layernorm.weight"] = torch.ones(size, dtype=dtype)
        save_file(weights, folder / "model.safetensors")
    layers = {"num_hidden_layers": 1} if head else {}
    (folder / "config.json").write_text(json.dumps({**shape, **layers}))
    return folder


def make_prompts(path: Path) -> None:
    """Token ids of prompts that cannot be drafted for by matching, and of some that can; arrivals of the Azure trace.

    {"chat": [[…], …], "copy": [[…], …], "azure": [[seconds, tokens of the prompt, tokens of the output], …]}
    """
    from transformers import AutoTokenizer

    from wager.bench.workloads import prompts
    from wager.cli.files import data_file
    from wager.models import resolve
    from wager.simulation.serving import load_trace

    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2-135m"))
    chat = [prompt.ids(tokenizer, 1024, "cpu")[0].tolist() for prompt in prompts(tasks=["alpaca"], count=192)]
    articles = (tokenizer(prompt.text.partition("\n\n")[2]).input_ids for prompt in prompts(tasks=["xsum"], count=1000))
    copy = [ids[:200] + ids[:25] for ids in articles if len(ids) >= 400][:192]
    recorded = sorted(load_trace(data_file(Path(TRACE), "traces")), key=lambda arrival: arrival.at)
    azure = [(round(a.at, 3), a.prompt, a.output) for a in recorded if a.at < TRACE_SECONDS]
    path.write_text(json.dumps({"chat": chat, "copy": copy, "azure": azure}))
