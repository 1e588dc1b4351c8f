"""Answers by vLLM: continuous batching, many times faster on a GPU than generating padded batches."""

import atexit
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wager.training.answers import Engine, Part

MOST_SEQUENCES = 512  # answered at the same time
LEAST_MEMORY = 0.05  # share of the GPU's memory that must be free where the size of the cache is given


def vllm_engine(model: str | Path, *, longest: int, dtype: str, cache: float | None, eager: bool) -> Engine:
    """An engine for texts of up to ``longest`` tokens with so many GiB of KV cache; None: most of the free memory."""
    try:
        import vllm
    except ImportError:
        raise ValueError("--engine vllm needs vLLM; install it, or answer with --engine transformers") from None
    settings: dict[str, Any] = {"max_model_len": longest, "max_num_seqs": MOST_SEQUENCES, "enforce_eager": eager}
    if cache is not None:  # then nothing is measured at the start, which other engines on the GPU would disturb
        settings |= {"kv_cache_memory_bytes": int(cache * 2**30), "gpu_memory_utilization": LEAST_MEMORY}
    llm: Any = vllm.LLM(model=str(model), dtype=dtype, **settings)
    atexit.register(_end_processes)
    return _engine(llm.generate, vllm.SamplingParams)


def _end_processes() -> None:
    """End vLLM's processes with this one: several engines on a GPU that shut down together may wait for ever."""
    for process in multiprocessing.active_children():
        process.kill()


def _engine(generate: Callable[..., Any], sampling: Callable[..., Any]) -> Engine:
    def answered(part: Part, max_tokens: int) -> list[list[int]]:
        how = sampling(temperature=part.temperature, max_tokens=max_tokens, detokenize=False)
        asked = [{"prompt_token_ids": list(tokens)} for _, tokens in part.prompts]
        found = generate(asked, how, use_tqdm=False)
        pairs = zip(part.prompts, found, strict=True)
        return [[*tokens, *one.outputs[0].token_ids] for (_, tokens), one in pairs]

    return answered
