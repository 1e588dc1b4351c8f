"""A tiny target, texts and a plan for training."""

from typing import Any

import numpy as np
import torch

from wager.training.answers import Text
from wager.training.config import Drafter

WORDS = ["<end>", "user", "assistant", *"abcdefghijklmnopqrstuvwxyz"]


def tiny(seed: int = 0, vocabulary: int = 64, layers: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4}
    model = LlamaForCausalLM(
        LlamaConfig(**shape, num_key_value_heads=2, vocab_size=vocabulary, max_position_embeddings=256, eos_token_id=0)
    )
    for weight in model.parameters():
        weight.data.mul_(6)  # far from uniform, so that mistakes show
    return model.eval()


def some_texts(count: int = 120, vocabulary: int = 64) -> list[Text]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(12, 40, count)
    return [Text(rng.integers(0, vocabulary, n).astype(np.int32), 6, "a", 0.0, i) for i, n in enumerate(lengths)]


def head(unroll: int = 5) -> Drafter:
    return Drafter("eagle-x", "eagle", unroll=unroll, steps=6, tokens=512, evaluate=3)


RECORDS = {
    "code.jsonl": [{"instruction": f"Write {w}.", "input": w, "response": "a\nb\nc\nd\ne\nf"} for w in "xyz"],
    "math.jsonl": [{"question": f"How many {w}?"} for w in "xyz"],
    "de.jsonl": [{"source": f"Satz {w}."} for w in "xyz"],
    "talk.jsonl": [{"turns": [["USER", f"hello {w}"], ["SYSTEM", "hi"], ["USER", "bye"]]} for w in "xyz"],
}

KINDS = {
    "code.jsonl": ("instructions", "fix", "complete", "summarize"),
    "math.jsonl": ("questions",),
    "de.jsonl": ("translate",),
    "talk.jsonl": ("dialogue", "summarize"),
    "wiki.txt": ("summarize", "ask", "rag"),
}


def plan_text(*, steps: int = 4) -> str:
    domains = "".join(
        f'[[domain.{file.split(".")[0]}]]\nfile = "{file}"\nkind = "{kind}"\nlanguage = "German"\n'
        for file, kinds in KINDS.items()
        for kind in kinds
    )
    shape = f"steps = {steps}\nevaluate = 2\ntokens = 2048\nunroll = 2\n"
    return (
        'target = "TARGET"\n[answers]\ntemperatures = [0.0, 1.0]\nshare = [1.0, 0.5]\nmax_tokens = 8\nbatch = 8\n'
        + domains
        + f'[[drafter]]\nname = "eagle-ofa"\nkind = "eagle"\nfrequent = 20\n{shape}'
        + f'[[drafter]]\nname = "eagle-code"\nkind = "eagle"\nstart = "eagle-ofa"\ndomains = ["code", "wiki"]\n{shape}'
        + f'[[drafter]]\nname = "eagle3-ofa"\nkind = "eagle3"\nfrequent = 20\n{shape}'
        + f'[[drafter]]\nname = "draft-ofa"\nkind = "draft"\nhidden = 16\nheads = 2\nlayers = 1\n{shape}'
    )
