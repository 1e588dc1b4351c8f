"""The words every layer shares: Arm, Context, Round, rewards, traces."""

from wager.core.arm import LONGEST, OFF, Arm, Tree
from wager.core.calibration import Calibration
from wager.core.context import Context, Hint, PromptFeatures, Signal
from wager.core.require import require
from wager.core.rewards import REWARDS, Reward
from wager.core.round import Round
from wager.core.trace import Record, Request, TraceError, TraceWriter

__all__ = ["LONGEST", "OFF", "REWARDS", "Arm", "Calibration", "Context", "Hint", "PromptFeatures", "Record", "Request",
           "Reward", "Round", "Signal", "TraceError", "TraceWriter", "Tree", "require"]  # fmt: skip
