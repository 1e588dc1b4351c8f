"""What recorded texts tell beside replay, prompt by prompt: rewards, drafting with all, a rule that stops drafts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction import costs, recordings
from reproduction.recorded import Sums, texts_of
from reproduction.recordings import Recording, Wanted
from wager.core import OFF, Arm, Context, Round
from wager.core.recording import Text
from wager.policies import build
from wager.simulation import RoundCost

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

ROUNDS = 10  # of a text, over which MetaSD's figures 6 and 7 look
REPLAY = "wager lab replay results/recordings/RECORDING.jsonl.gz"


def told_of(recording: Recording, prompts: int, **fields: str) -> dict[str, str]:
    """What a run on a recording did, field by field."""
    meta = recording.meta
    return {
        "target": str(meta.get("model", "")),
        "tree": "chains",
        "tokens": f"at most {meta.get('max_tokens', '?')}",
        "prompts": f"{prompts} in all",
        "temperature": f"{float(meta.get('temperature') or 0):g}",
        **fields,
    }


@dataclass(frozen=True, slots=True)
class Rewards:
    """Block efficiency and block divergence of every drafter, text by text."""

    wanted: Wanted
    length: int
    labels: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"{REPLAY} --drafters {','.join(self.wanted.drafters)} --lengths {self.length} -p off"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        recording = recordings.find(self.wanted, workspace.recordings)
        texts = [text for text in texts_of(recording, self.labels) if text.tokens > self.length + ROUNDS]
        told = told_of(recording, len(texts), drafters=", ".join(self.wanted.drafters), lengths=str(self.length))
        drafters = {name: [reward_statistics(t, name, self.length) for t in texts] for name in self.wanted.drafters}
        return {"drafters": drafters, "protocol": {**told, "hardware": "rewards do not depend on it"}}


def reward_statistics(text: Text, name: str, length: int) -> dict[str, Any]:
    """Of both rewards over a text's positions: mean, variance, share of zeros, spread; and divergence by round."""
    track, whole = text.tracks[name], text.tokens - 1 - length
    agreed = [min(n, length) for n in track.agreed]
    divergence = [statistics.fmean(track.overlap[at : at + length]) for at in range(whole)]
    rounds: list[float] = []
    at = 0
    while at < whole and len(rounds) < ROUNDS:
        rounds.append(divergence[at])
        at += agreed[at] + 1
    efficiency = [agreed[at] / length for at in range(whole)]
    return {"be": _described(efficiency), "bd": _described(divergence), "rounds": [round(r, 4) for r in rounds]}


def _described(values: Sequence[float]) -> dict[str, float]:
    own = np.array(values)
    low, high = np.quantile(own, (0.05, 0.95))
    found = {"mean": own.mean(), "variance": own.var(), "zeros": (own == 0).mean(), "spread": high - low}
    return {name: round(float(x), 5) for name, x in found.items()}


def walk(texts: Sequence[tuple[int, Text]], sums: Sums, play: Callable[[Text, int], tuple[int, int, float]]) -> None:
    """Texts decoded round by round: ``play`` gives the tokens drafted and accepted at a position and the seconds."""
    for i, text in texts:
        at = 0
        while at < text.tokens - 1:
            drafted, accepted, seconds = play(text, at)
            emitted = min(accepted + 1, text.tokens - 1 - at)
            arm = Arm("rule", drafted) if drafted else OFF
            sums.add(i, Round(arm, drafted, accepted, emitted, verify_seconds=seconds))
            at += emitted
        sums.times[i] += 1


@dataclass(frozen=True, slots=True)
class DraftAll:
    """All drafters draft in every round and the target verifies every draft: MetaSD's baseline of table 5."""

    wanted: Wanted
    length: int
    cost: str
    labels: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"{REPLAY} --drafters {','.join(self.wanted.drafters)} --lengths {self.length} -p off"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        recording = recordings.find(self.wanted, workspace.recordings)
        cost, names = costs.of(self.cost, recording.meta, self.wanted.drafters), self.wanted.drafters
        seconds = cost.verify(1 + self.length * len(names)) + self.length * sum(cost.step.get(n, 0.0) for n in names)

        def best_draft(text: Text, at: int) -> tuple[int, int, float]:
            return self.length, max(min(text.tracks[name].agreed[at], self.length) for name in names), seconds

        texts = texts_of(recording, self.labels)
        sums = Sums(len(texts))
        walk(list(enumerate(texts)), sums, best_draft)
        labels = [task for task in recording.tasks if not self.labels or task in self.labels]
        return {"labels": labels, "units": {"all drafters": sums.json(sums.times > 0)}, "seeds": None}


THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Stopped:
    """A drafter that stops when it is no longer sure: each half of the texts is judged with the other's threshold.

    It stands for a trained rule that stops drafts (SpecDec++).
    """

    wanted: Wanted  # of one drafter, with its confidence
    longest: int
    cost: str
    labels: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"{REPLAY} --drafters {self.wanted.drafters[0]} -p analytical"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        recording = recordings.find(self.wanted, workspace.recordings)
        cost = costs.of(self.cost, recording.meta, self.wanted.drafters)
        texts = list(enumerate(texts_of(recording, self.labels)))
        sums, fitted = Sums(len(texts)), []
        for fit, judge in ((texts[0::2], texts[1::2]), (texts[1::2], texts[0::2])):
            best = min(THRESHOLDS, key=lambda least: self._seconds(fit, len(texts), least, cost))
            walk(judge, sums, self._rule(best, cost))
            fitted.append(best)
        labels = [task for task in recording.tasks if not self.labels or task in self.labels]
        units = {"fitted to stop": sums.json(sums.times > 0)}
        drafted = [
            track.size[at] and self._drafted(track.confidence[at], fitted[0])
            for _, text in texts
            for track in [text.tracks[self.wanted.drafters[0]]]
            for at in range(text.tokens - 1)
        ]
        return {
            "labels": labels,
            "units": units,
            "seeds": None,
            "thresholds": fitted,
            "drafted": float(np.mean(drafted)),
        }

    def _seconds(self, texts: Sequence[tuple[int, Text]], count: int, least: float, cost: RoundCost) -> float:
        sums = Sums(count)
        walk(texts, sums, self._rule(least, cost))
        return float(sums.columns[:, 2].sum())

    def _drafted(self, sure: Sequence[float], least: float) -> int:
        return next((i for i, p in enumerate(sure[: self.longest]) if p < least), min(len(sure), self.longest))

    def _rule(self, least: float, cost: RoundCost) -> Callable[[Text, int], tuple[int, int, float]]:
        """Rounds in which the draft ends before the first token less likely than ``least``."""
        name = self.wanted.drafters[0]

        def stop(text: Text, at: int) -> tuple[int, int, float]:
            track = text.tracks[name]
            drafted = self._drafted(track.confidence[at], least)
            asked = min(
                drafted + 1, len(track.confidence[at][: self.longest])
            )  # that it was not sure of is drafted too
            seconds = cost.verify(1 + drafted) + asked * cost.step.get(name, 0.0)
            return drafted, min(track.agreed[at], drafted), seconds

        return stop


@dataclass(frozen=True, slots=True)
class Batched:
    """Texts decoded together, one policy each: of one task, or of all; every drafter that is played takes its own pass.

    MetaSD's table 17: the more drafters a step mixes, the more passes it pays. A unit is a batch.
    """

    wanted: Wanted
    pool: tuple[str, ...]
    single: str  # the one drafter for everything
    length: int
    batch: int
    policy: str
    labels: tuple[str, ...]
    cost: str = "h200"

    @property
    def command(self) -> str:
        return f"{REPLAY} --drafters {','.join(self.wanted.drafters)} --lengths {self.length} -p {self.policy}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        recording = recordings.find(self.wanted, workspace.recordings)
        cost = costs.of(self.cost, recording.meta, self.wanted.drafters)
        own = [i for i, task in enumerate(recording.tasks) if task in self.labels]
        grouped = sorted(own, key=lambda i: (recording.tasks[i], i))
        same = [tuple(grouped[i : i + self.batch]) for i in range(0, len(grouped) - self.batch + 1, self.batch)]
        rows = len(grouped) // self.batch
        mixed = [tuple(grouped[i + rows * k] for k in range(self.batch)) for i in range(rows)]
        found = {}
        for name, groups, arm in (
            ("one for all", same, Arm(self.single, self.length)), ("one task", same, None),
            ("one for all, mixed", mixed, Arm(self.single, self.length)), ("mixed tasks", mixed, None),
        ):  # fmt: skip
            each = [self._seconds([recording.texts[i] for i in group], arm, cost) for group in groups]
            found[name] = {"seconds": each}
        told = told_of(recording, len(grouped), drafters=", ".join(self.pool), lengths=str(self.length))
        return {"labels": [""] * len(same), "units": found, "seeds": None, "protocol": told}

    def _seconds(self, group: Sequence[Text], always: Arm | None, cost: RoundCost) -> float:
        """Seconds a token of texts stepped together until all of them end."""
        arms = tuple(Arm(name, self.length) for name in self.pool)
        policies = [build(self.policy, arms, seed=i) for i in range(len(group))]
        at, tokens, seconds = [0] * len(group), 0, 0.0
        while alive := [i for i, text in enumerate(group) if at[i] < text.tokens - 1]:
            chosen = {i: always or policies[i].choose(Context(arms, tokens=at[i] + 1)) for i in alive}
            drafting = {arm.drafter for arm in chosen.values()}
            width = sum(1 + arm.length for arm in chosen.values())
            taken = cost.verify(width) + self.length * sum(cost.step.get(name, 0.0) for name in drafting)
            for i, arm in chosen.items():
                outcome = _round(group[i], at[i], arm, taken)
                if always is None:
                    policies[i].observe(outcome)
                at[i] += outcome.emitted
                tokens += outcome.emitted
            seconds += taken
        return seconds / tokens


def _round(text: Text, at: int, arm: Arm, seconds: float) -> Round:
    """One text's part of a step."""
    track = text.tracks[arm.drafter]
    drafted = min(arm.length, track.size[at])
    accepted = min(drafted, track.agreed[at])
    emitted = min(accepted + 1, text.tokens - 1 - at)
    overlap = tuple(track.overlap[at : at + drafted])
    return Round(arm, drafted, accepted, emitted, verify_seconds=seconds, overlap=overlap)
