"""Every experiment by name, in the order of the papers."""

import tomllib
from pathlib import Path

from reproduction import banditspec, metasd, nightjar, onthefly
from reproduction.experiment import TEXTS, Experiment

PAPERS = {"banditspec": "BanditSpec", "onthefly": "On-the-fly adaptation", "nightjar": "Nightjar", "metasd": "MetaSD"}
_ALL = (*banditspec.EXPERIMENTS, *onthefly.EXPERIMENTS, *nightjar.EXPERIMENTS, *metasd.EXPERIMENTS)
EXPERIMENTS: dict[str, Experiment] = {
    one.name: one for one in sorted(_ALL, key=lambda one: list(TEXTS).index(one.name))
}
# Every table and figure of the papers, those without results too.
PLACES = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))


def chosen(names: list[str]) -> list[Experiment]:
    """The experiments of these names; a paper's key stands for all of its own."""
    found: dict[str, Experiment] = {}
    for name in names:
        own = [e for e in EXPERIMENTS.values() if name in (e.name, e.paper)]
        if not own:
            near = [e.name for e in EXPERIMENTS.values() if e.paper == name.partition("-")[0]]
            known = ", ".join(near) or f"{', '.join(PAPERS)} or one of their own, such as {next(iter(EXPERIMENTS))}"
            raise ValueError(f"unknown experiment {name!r}; choose from {known}")
        found |= {experiment.name: experiment for experiment in own}
    return list(found.values())
