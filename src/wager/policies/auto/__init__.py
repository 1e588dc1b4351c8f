"""`auto`, the default policy: it learns acceptance and latency online and runs the arm of best expected goodput."""

from wager.policies.auto.config import AutoConfig
from wager.policies.auto.policy import Auto

__all__ = ["Auto", "AutoConfig"]
