"""Drafters: whatever proposes tokens for the target to verify."""

from wager.drafters.base import Draft, Drafter, DraftSampler, Scorer, drafter_agreement

__all__ = ["Draft", "DraftSampler", "Drafter", "Scorer", "drafter_agreement"]
