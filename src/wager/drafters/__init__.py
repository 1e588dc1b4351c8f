"""Drafters: whatever proposes tokens for the target to verify."""

from wager.drafters.base import Draft, Drafter, Sampler, drafter_agreement

__all__ = ["Draft", "Drafter", "Sampler", "drafter_agreement"]
