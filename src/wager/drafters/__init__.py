"""Drafters: whatever proposes tokens for the target to verify."""

from wager.drafters.base import Draft, Drafter, Sampler, in_common

__all__ = ["Draft", "Drafter", "Sampler", "in_common"]
