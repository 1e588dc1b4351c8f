"""Every decision rule, one file per family. A policy sees numbers only: no clock, no tensor, no text."""

from wager.policies.base import Policy
from wager.policies.registry import POLICIES, build

__all__ = ["POLICIES", "Policy", "build"]
