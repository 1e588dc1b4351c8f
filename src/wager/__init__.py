"""Adaptive speculative decoding: faster generation, the same text up to rounding ties, nothing to tune."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Turns in which a thread of a forward waits awake for the others. OpenMP's own number is so large that on a busy
# machine threads keep those off the cores that they wait for. Read when torch is loaded, so it is set before; whoever
# says how threads wait is left alone. It changes how long things take, never what is computed.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

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
