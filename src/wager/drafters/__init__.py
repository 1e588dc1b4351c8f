"""Drafters: whatever proposes tokens for the target to verify."""

from wager.drafters.base import Draft, Drafter, DraftSampler, Scorer, Verified, drafter_agreement

__all__ = ["Draft", "DraftSampler", "Drafter", "Scorer", "Verified", "drafter_agreement"]
