"""`auto`, the default policy: it learns acceptance and latency online and runs the arm of best expected goodput."""

from wager.policies.auto.config import HAND_SET, AutoConfig
from wager.policies.auto.policy import Auto

__all__ = ["HAND_SET", "Auto", "AutoConfig"]
