"""A run that is repeated: one stall, or one lucky draw of a policy, decides less."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wager.bench.methods import TextGenerator
from wager.bench.runs import Run, TokenizedPrompt
from wager.bench.summary import joined, summarize


class Repeats:
    """Runs of the same methods over the same prompts, each from the start: it knows nothing of those before it."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def play(
        self, generators: Sequence[TextGenerator], warming: Callable[[str], object] = str
    ) -> Iterator[tuple[TokenizedPrompt, str]]:
        """Play one run after the other; yields after each answer."""
        for repetition, run in enumerate(self.runs):
            for generator in generators if repetition else ():
                generator.restart()
            yield from run.play(generators, warming=warming)

    def summary(self, model: Any = None) -> dict[str, Any]:
        """As that of a run, of which every answer has the tokens and seconds of all repetitions."""
        first = self.runs[0]
        answers = {key: joined([run.answers[key] for run in self.runs]) for key in first.answers}
        found = summarize(first.head["methods"], first.head["prompts"], answers, seed=first.head["seed"])
        if model is not None:
            base, *others = (method["name"] for method in first.head["methods"])
            found["differences"] = self.differences(base, others, model)
        return found

    def differences(self, base: str, others: Sequence[str], model: Any = None) -> dict[str, Any]:
        """How many texts of other methods are not those of ``base``, over all repetitions, as a run tells it."""
        told = [run.differences(base, others, model) for run in self.runs]
        return {key: (max if key == "largest_gap" else sum)(each[key] for each in told) for key in told[0]}
