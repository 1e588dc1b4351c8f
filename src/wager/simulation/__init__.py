"""Environments without a model: where policies are compared and their regret is measured."""

from wager.simulation.ablations import ABLATIONS
from wager.simulation.adversarial import Adversarial
from wager.simulation.base import CLAIRVOYANT, Environment, Run, Scenario, play
from wager.simulation.experiment import Comparison, compare
from wager.simulation.outcomes import RoundCost
from wager.simulation.replay import Replay, joined
from wager.simulation.serving import Costs, Serving, load_trace
from wager.simulation.stream import Drafter, Stream, VerifyCost

__all__ = [
    "ABLATIONS", "CLAIRVOYANT", "Adversarial", "Comparison", "Costs", "Drafter", "Environment", "Replay", "RoundCost",
    "Run", "Scenario", "Serving", "Stream", "VerifyCost", "compare", "joined", "load_trace", "play",
]  # fmt: skip
