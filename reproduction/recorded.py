"""Runs on recorded texts: every policy is replayed on them under stated costs, and told prompt by prompt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction import asked, costs, recordings
from reproduction.recordings import Recording, Wanted
from reproduction.units import COLUMNS, OTHERWISE
from reproduction.walk import Rounds, Way, counts_only, noise_of, walk, walks
from reproduction.workspace import NotHereError
from wager.core import OFF, Arm, Round, Signal
from wager.core.recording import Text
from wager.policies import Policy, build, fixed
from wager.simulation import RoundCost
from wager.simulation.replay import NOISE

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

EVERY_PROMPT, EVERY_SET, NEVER = "every prompt", "every data set", "never"
MEAN_NOISE = math.exp(NOISE**2 / 2)  # what the noise on seconds comes to in the mean
SEEDS = 20  # shuffles; with them seconds of rounds and the draws of policies differ


def shapes(text: Text, drafter: str) -> list[str]:
    """The shapes of the trees that are recorded of a drafter."""
    return list(text.tracks[drafter].trees)


class Sums:
    """Tokens, rounds, seconds, drafted and accepted tokens of every text, and how often every arm was played."""

    def __init__(self, texts: int) -> None:
        self.columns = np.zeros((texts, len(COLUMNS)))
        self.otherwise = np.zeros(texts)  # seconds, catching up read the other way (reproduction/costs.py)
        self.times = np.zeros(texts)  # runs in which a text counted
        self.arms: list[Counter[str]] = [Counter() for _ in range(texts)]  # of every text

    def add(self, at: int, played: Round) -> None:
        row = (played.emitted, 1, played.seconds, played.drafted, played.accepted, played.arm.length)
        self.columns[at] += row
        self.arms[at][str(played.arm)] += 1

    def count(self, at: int, way: Way, noise: np.ndarray | None, costs: Sequence[RoundCost]) -> None:
        """Count a text once, under both costs; without noise as many runs would average to."""
        both = [way.seconds(cost) for cost in costs]
        taken, other = (s.sum() * MEAN_NOISE if noise is None else s @ noise for s in both)
        tokens, rounds, drafted, accepted, depth = way.counts
        self.columns[at] += (tokens, rounds, taken, drafted, accepted, depth)
        self.otherwise[at] += other
        self.arms[at].update(way.arms)
        self.times[at] += 1

    def json(self, counted: np.ndarray) -> dict[str, list[float]]:
        """The columns of the texts that count, each the mean over runs."""
        means = self.columns[counted] / self.times[counted][:, None]
        told = {name: [round(x, 6) for x in means[:, i].tolist()] for i, name in enumerate(COLUMNS)}
        if self.otherwise.any():
            told[OTHERWISE] = [round(x, 6) for x in (self.otherwise[counted] / self.times[counted]).tolist()]
        return told

    @property
    def shares(self) -> dict[str, float]:
        """The share of all rounds each arm was played in."""
        every: Counter[str] = sum(self.arms, Counter())
        return {arm: round(count / every.total(), 5) for arm, count in every.most_common()}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Every drafter alone, and policies over a pool of them, on recorded texts (`wager lab replay`)."""

    wanted: Wanted
    lengths: tuple[int, ...]
    policies: tuple[str, ...]
    pool: tuple[str, ...] = ()  # the drafters that policies choose among; none: all
    cost: str = "h200"
    reset: str = EVERY_PROMPT  # when a policy begins anew
    off: bool = False  # plain decoding is an arm of the policies too
    labels: tuple[str, ...] = ()  # of these tasks only
    alone: tuple[str, ...] | None = None  # the drafters that are also run alone; None: all
    pairs: tuple[tuple[str, str], ...] = ()  # instead of single texts: one of each task, joined to one
    warmup: int = 0  # texts of every shuffle that count for nothing, where a policy is not reset
    seeds: int = SEEDS
    file: str = ""  # what is known of the recorded prompts, for policies that look at them

    @property
    def command(self) -> str:
        """The nearest that the plain command line has; it keeps what a policy learned from text to text."""
        named = " ".join(f"-p {policy}" for policy in self.policies) or "-p off"
        lengths = ",".join(map(str, self.lengths))
        return (
            f"wager lab replay results/recordings/RECORDING.jsonl.gz --drafters {','.join(self.wanted.drafters)} "
            f"--lengths {lengths} --runs {self.seeds} {named}"
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        recording = recordings.find(self.wanted, workspace.recordings)
        cost = costs.of(self.cost, recording.meta, self.wanted.drafters)
        both = cost, costs.otherwise(self.cost, cost)
        groups = self._groups(recording)
        alone, choices = self._arms(recording), self._choices(recording)
        every = tuple(dict.fromkeys((*alone, *choices)))
        found = {name: Sums(len(recording.texts)) for name in (*map(str, alone), *self.policies)}
        policies = {str(arm): build(fixed(arm), every) for arm in alone}
        policies |= {spec: self._policy(spec, choices) for spec in self.policies}
        for i, group in enumerate(groups):
            workspace.tell("replaying", i, len(groups))
            known = asked.told(self.file, workspace, recording, group) if self.file else {}
            rounds = {at: Rounds(recording.texts[at], every, cost, known.get(at)) for at in group}
            for name, policy in policies.items():
                if name in self.policies:
                    self._play(policy, found[name], rounds, group, both)
                    continue
                for at in group:
                    found[name].count(at, walk([rounds[at]], policy)[0], None, both)
        counted = np.minimum.reduce([sums.times for sums in found.values()]) > 0
        tasks = [recording.tasks[i] for i in np.flatnonzero(counted)]
        units = {name: sums.json(counted) for name, sums in found.items()}
        best = (
            {}
            if self.pairs or self.wanted.trees or self.alone is not None
            else self._best(recording, found, np.flatnonzero(counted).tolist())
        )
        if self.pairs:
            tasks, units = _joined(groups, counted, recording.tasks, units)
        return {
            "labels": tasks,
            "units": units,
            "seeds": self.seeds,
            "shares": {policy: found[policy].shares for policy in self.policies},
            "best": best,
            "arms": [str(arm) for arm in choices],
            "repeats": recording.repeats,
            "otherwise": costs.OTHERWISE[self.cost],
            "protocol": self._protocol(recording, tasks) | self._second(recording, workspace),
        }

    @property
    def _pool(self) -> tuple[str, ...]:
        return self.pool or self.wanted.drafters

    def _arms(self, recording: Recording) -> list[Arm]:
        drafters = self.wanted.drafters if self.alone is None else self.alone
        if self.wanted.trees:
            own = recording.texts[0]
            return [OFF, *(Arm.parse(f"{name}:{shape}") for name in drafters for shape in shapes(own, name))]
        return [OFF, *(Arm(name, length) for name in drafters for length in self.lengths)]

    def _groups(self, recording: Recording) -> list[tuple[int, ...]]:
        """Texts that follow each other without a reset, by number."""
        own = [i for i, task in enumerate(recording.tasks) if not self.labels or task in self.labels]
        if not own or len(own) <= self.warmup:
            of = f" of more than {self.warmup} texts" if self.warmup else ""
            raise NotHereError(f"needs a recording{of} of {', '.join(self.labels) or 'any task'} with {self.wanted}")
        if self.pairs:
            by = {task: [i for i in own if recording.tasks[i] == task] for task in recording.tasks}
            return [pair for one, other in self.pairs for pair in zip(by.get(one, []), by.get(other, []), strict=False)]
        if self.reset == EVERY_SET:
            return [
                tuple(i for i in own if recording.tasks[i] == t) for t in dict.fromkeys(recording.tasks[i] for i in own)
            ]
        return [(i,) for i in own] if self.reset == EVERY_PROMPT else [tuple(own)]

    def _choices(self, recording: Recording) -> tuple[Arm, ...]:
        """The arms of the policies, drafters in the order of the recording."""
        off, names = (OFF,) if self.off else (), [name for name in recording.texts[0].tracks if name in self._pool]
        if self.wanted.trees:
            own = [f"{name}:{shape}" for name in names for shape in shapes(recording.texts[0], name)]
            return (*off, *map(Arm.parse, own))
        return (*off, *(Arm(name, length) for name in names for length in sorted(set(self.lengths))))

    def _policy(self, spec: str, arms: tuple[Arm, ...]) -> Policy:
        policy = build(spec, arms)
        if Signal.PROMPT in policy.needs and not self.file:
            raise ValueError(f"{spec} looks at prompts, and this run has no file of them")
        if not walks(policy):
            raise ValueError(f"{spec} looks at more than rows have been replayed with; see reproduction/walk.py")
        return policy

    def _play(
        self, policy: Policy, sums: Sums, rounds: dict[int, Rounds], group: tuple[int, ...], both: Sequence[RoundCost]
    ) -> None:
        """A policy through a group of texts in every shuffle."""
        most, alike, shuffled = sum(own.end for own in rounds.values()), False, len(group) > 1 and not self.pairs
        ways: list[Way] = []
        for shuffle in range(self.seeds):
            seed = 1000 * shuffle + group[0]
            order, noise = self._order(seed, group), noise_of(NOISE, seed, most)
            if not alike:
                policy.seed = seed
                policy.reset()
                before = policy.rng.bit_generator.state
                ways = walk([rounds[at] for at in order], policy, noise)
                # What counts tokens only, and drew no random number, does the same whenever the order is the same.
                alike = not shuffled and counts_only(policy) and policy.rng.bit_generator.state == before
            first = 0
            for i, (at, way) in enumerate(zip(order, ways, strict=True)):
                last = first + len(way.at)
                if i >= self.warmup:
                    sums.count(at, way, noise[first:last], both)
                first = last

    def _best(self, recording: Recording, found: dict[str, Sums], counted: list[int]) -> dict[str, list[float]]:
        """For every policy, text by text, the share of rounds with the arm that needs fewest rounds on its task."""
        arms = [str(Arm(name, length)) for name in self._pool for length in self.lengths]
        rounds: dict[str, Counter[str]] = {}
        for i in counted:
            for arm in arms:
                rounds.setdefault(recording.tasks[i], Counter())[arm] += found[arm].columns[i, 1]
        best = {task: min(own, key=lambda arm: own[arm]) for task, own in rounds.items()}
        told = {}
        for policy in self.policies:
            played = found[policy].arms
            told[policy] = [round(played[i][best[recording.tasks[i]]] / played[i].total(), 4) for i in counted]
        return told

    def _order(self, seed: int, group: tuple[int, ...]) -> list[int]:
        """The order of a group's texts in a shuffle."""
        if len(group) == 1 or self.pairs:
            return list(group)
        return [group[i] for i in np.random.default_rng([seed, 0]).permutation(len(group)).tolist()]

    def _second(self, recording: Recording, workspace: Workspace) -> dict[str, str]:
        """Whether a choice between model drafters can be tested on another target, too."""
        tracks = recording.texts[0].tracks
        if self.wanted.target != recordings.TARGET or sum(not tracks[name].cheap for name in self._pool) < 2:
            return {}
        said = recordings.second_target(self._pool, workspace.recordings)
        return {"second": said} if said else {}

    def _lengths(self, recording: Recording) -> str:
        if not self.wanted.trees:
            return ", ".join(map(str, self.lengths))
        return ", ".join(shape for name in self._pool for shape in shapes(recording.texts[0], name))

    def _protocol(self, recording: Recording, tasks: Sequence[str]) -> dict[str, str]:
        """What was done, field by field, as the result has it."""
        counts = Counter(tasks)
        few, many = min(counts.values()), max(counts.values())
        meta = recording.meta
        arms = tuple(Arm(name, length) for name in self._pool for length in self.lengths)
        policies = [build(spec, arms, tokens=100) for spec in self.policies]
        betas = {float(policy.beta) for policy in policies if hasattr(policy, "beta")}
        told = {
            "target": str(meta.get("model", "")),
            "drafters": ", ".join(self._pool),
            "reset": self.reset if not self.pairs else "every pair of texts",
            "lengths": self._lengths(recording),
            "tree": "trees" if self.wanted.trees else "chains",
            "tokens": f"at most {meta.get('max_tokens', '?')}",
            "prompts": f"{few if few == many else f'{few} to {many}'} a task, {len(tasks)} in all",
            "seeds": str(self.seeds),
            "temperature": f"{float(meta.get('temperature') or 0):g}",
            "hardware": f"texts recorded on {meta.get('device', '?')}, rounds cost as on {costs.NAMES[self.cost]}",
        }
        return told | ({"beta": ", ".join(f"{beta:g}" for beta in sorted(betas))} if betas else {})


def _joined(
    groups: Sequence[tuple[int, ...]], counted: np.ndarray, tasks: Sequence[str], units: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Pairs of texts as one unit each: their columns summed."""
    place = {int(i): k for k, i in enumerate(np.flatnonzero(counted))}
    whole = [[place[i] for i in group] for group in groups]
    labels = [" then ".join(tasks[i] for i in group) for group in groups]
    summed = {
        name: {column: [sum(values[k] for k in group) for group in whole] for column, values in own.items()}
        for name, own in units.items()
    }
    return labels, summed


def texts_of(recording: Recording, labels: Sequence[str] = ()) -> list[Text]:
    """A recording's texts of these tasks."""
    return [text for text, task in zip(recording.texts, recording.tasks, strict=True) if not labels or task in labels]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of recorded prompts and answers, by task."""

    labels: tuple[str, ...]

    @property
    def command(self) -> str:
        return "wager lab replay results/recordings/RECORDING.jsonl.gz -p off"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        recording = recordings.find(Wanted(()), workspace.recordings)
        found = {}
        for label in self.labels:
            own = texts_of(recording, (label,))
            if not own:
                raise NotHereError(f"needs a recording of {label}")
            prompts, answers = [text.prompt for text in own], [text.tokens for text in own]
            found[label] = [float(np.quantile(x, q)) for x in (prompts, answers) for q in (0.5, 0.95)]
        return {"lengths": found, "texts": len(texts_of(recording, self.labels))}
