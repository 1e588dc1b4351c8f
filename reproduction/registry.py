"""Every experiment by name, in the order of the papers."""

from reproduction import banditspec, metasd, nightjar, onthefly
from reproduction.experiment import Experiment

PAPERS = {"banditspec": "BanditSpec", "onthefly": "On-the-fly adaptation", "nightjar": "Nightjar", "metasd": "MetaSD"}
_ALL = (*banditspec.EXPERIMENTS, *onthefly.EXPERIMENTS, *nightjar.EXPERIMENTS, *metasd.EXPERIMENTS)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def chosen(names: list[str]) -> list[Experiment]:
    """The experiments of these names; a paper's key stands for all of its own."""
    found: dict[str, Experiment] = {}
    for name in names:
        own = [e for e in _ALL if e.name == name or e.paper == name]
        if not own:
            near = [e.name for e in _ALL if e.paper == name.partition("-")[0]]
            known = ", ".join(near) or f"{', '.join(PAPERS)} or one of their own, such as {_ALL[0].name}"
            raise ValueError(f"unknown experiment {name!r}; choose from {known}")
        found |= {experiment.name: experiment for experiment in own}
    return list(found.values())
