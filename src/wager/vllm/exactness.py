"""Whether this build of vLLM samples correctly where there are drafts."""

from __future__ import annotations


def sampling_is_wrong() -> bool:
    """Whether drafts would change what is sampled.

    vLLM's rejection sampler spreads each request's temperature, top-k and top-p over its draft tokens. The CPU builds
    tried so far (0.27 to 0.32) spread them into a copy and go on with memory nobody wrote to, so that even the
    greedy texts of a batch with one sampled request in it come out wrong. Greedy batches never get there.
    """
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu()) and not _spreads()


def _spreads() -> bool:
    """Whether the CPU's stand-in for that kernel writes where it should; one that cannot be asked is not trusted."""
    import torch
    from vllm.platforms import current_platform

    try:
        from vllm.utils.cpu_triton_utils import _expand_kernel_impl

        current_platform.import_kernels()
        spread = torch.full((3,), -1.0)
        _expand_kernel_impl(spread, torch.tensor([0.25, 0.75]), torch.tensor([2, 3], dtype=torch.int32), 0, 0)
    except (ImportError, AttributeError, RuntimeError, TypeError):
        return False
    return bool(spread.tolist() == [0.25, 0.25, 0.75])
