"""Serving: adaptive speculation inside stock vLLM, through its scheduler and proposer hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wager.vllm.launch import engine_args

__all__ = ["engine_args"]


def __getattr__(name: str) -> Any:
    """Import what needs vLLM only when it is asked for: its worker processes import this package too."""
    if name == "engine_args":
        from wager.vllm.launch import engine_args

        return engine_args
    raise AttributeError(f"module 'wager.vllm' has no attribute {name!r}")
