"""Adaptive speculative decoding: faster generation, the same text, nothing to tune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from wager.decoding.decoder import Decoder
    from wager.decoding.dropin import generate
    from wager.decoding.generation import Generation

__all__ = ["Decoder", "Generation", "__version__", "generate"]


def __getattr__(name: str) -> Any:
    """Import the engine, and torch with it, only when it is asked for."""
    if name == "Decoder":
        from wager.decoding.decoder import Decoder

        return Decoder
    if name == "generate":
        from wager.decoding.dropin import generate

        return generate
    if name == "Generation":
        from wager.decoding.generation import Generation

        return Generation
    raise AttributeError(f"module 'wager' has no attribute {name!r}")
