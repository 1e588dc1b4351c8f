"""The tables and figures of the four papers, each re-run on the models that can be had here."""

from reproduction.experiment import Check, Experiment, Figures, Outcome
from reproduction.registry import EXPERIMENTS, PAPERS

__all__ = ["EXPERIMENTS", "PAPERS", "Check", "Experiment", "Figures", "Outcome"]
