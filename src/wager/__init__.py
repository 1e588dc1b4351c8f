"""Adaptive speculative decoding: faster generation, the same text, nothing to tune."""

__version__ = "0.1.0"
