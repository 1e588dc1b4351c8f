"""Runs on recorded texts: every policy is replayed on them under stated costs, and told prompt by prompt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction import costs, recordings
from reproduction.recordings import Recording, Wanted
from reproduction.units import COLUMNS
from reproduction.workspace import NotHereError
from wager.core import OFF, Arm, Round
from wager.core.recording import Text
from wager.policies import build, fixed
from wager.simulation import Replay, RoundCost
from wager.simulation.replay import NOISE

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

EVERY_PROMPT, EVERY_SET, NEVER = "every prompt", "every data set", "never"
SEEDS = 5  # shuffles; with them seconds of rounds and the draws of policies differ


# When a policy begins anew is decided here, by which texts are replayed together, and not by the replay.
KEPT = "never"


class Pool(Replay):
    """Recorded texts on which a policy has to draft: the papers' pools of drafters hold no plain decoding."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(Arm(name, length) for name in self.drafters for length in sorted(set(self.lengths)))


class Chains(Replay):
    """Plain decoding, and every drafter with every length."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (OFF, *(Arm(name, length) for name in self.drafters for length in sorted(set(self.lengths))))


class TreePool(Replay):
    """The trees that are recorded of every drafter."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(Arm.parse(f"{name}:{shape}") for name in self.drafters for shape in shapes(self.texts[0], name))


class Trees(TreePool):
    """Plain decoding, and those trees."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (OFF, *super().arms)


def shapes(text: Text, drafter: str) -> list[str]:
    """The shapes of the trees that are recorded of a drafter."""
    return list(text.tracks[drafter].trees)


class Sums:
    """Tokens, rounds, seconds, drafted and accepted tokens of every text, and how often every arm was played."""

    def __init__(self, texts: int) -> None:
        self.columns = np.zeros((texts, len(COLUMNS)))
        self.times = np.zeros(texts)  # runs in which a text counted
        self.arms: list[Counter[str]] = [Counter() for _ in range(texts)]  # of every text

    def add(self, at: int, played: Round) -> None:
        row = (played.emitted, 1, played.seconds, played.drafted, played.accepted, played.arm.length)
        self.columns[at] += row
        self.arms[at][str(played.arm)] += 1

    def json(self, counted: np.ndarray) -> dict[str, list[float]]:
        """The columns of the texts that count, each the mean over runs."""
        means = self.columns[counted] / self.times[counted][:, None]
        return {name: [round(x, 6) for x in means[:, i].tolist()] for i, name in enumerate(COLUMNS)}

    @property
    def shares(self) -> dict[str, float]:
        """The share of all rounds each arm was played in."""
        every: Counter[str] = sum(self.arms, Counter())
        return {arm: round(count / every.total(), 5) for arm, count in every.most_common()}


def replay(
    scenario: Replay, spec: str, seed: int, told: Callable[[int, Round], None], tokens: int | None = None
) -> None:
    """Play a policy through texts; every round is told with the number of its text."""
    policy = build(spec, scenario.arms, seed=seed, tokens=tokens or scenario.goal)
    environment = scenario.start(seed, policy)
    while not environment.done:
        at = int(environment.label)
        played = environment.play(policy.choose(environment.context()))
        policy.observe(played)
        told(at, played)


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
        groups = self._groups(recording)
        found: dict[str, Sums] = {}
        for arm in self._arms(recording):
            found[str(arm)] = self._alone(recording, arm, groups, cost)
        for i, policy in enumerate(self.policies):
            workspace.tell(f"replaying {policy}", i, len(self.policies))
            found[policy] = self._policy(recording, policy, groups, cost)
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
            "arms": [str(arm) for arm in self._scenario(recording, groups[0], cost).arms],
            "protocol": self._protocol(recording, tasks),
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

    def _scenario(self, recording: Recording, group: Iterable[int], cost: RoundCost) -> Replay:
        kind = (Trees if self.off else TreePool) if self.wanted.trees else (Chains if self.off else Pool)
        texts = tuple(recording.only(self._pool, tuple(group)))
        return kind(texts, cost, self.lengths, phases=bool(self.pairs), reset=KEPT)

    def _alone(self, recording: Recording, arm: Arm, groups: Sequence[tuple[int, ...]], cost: RoundCost) -> Sums:
        """One arm all the time; without noise, as every run would average to."""
        sums, drafters = Sums(len(recording.texts)), [arm.drafter] if arm != OFF else self.wanted.drafters[:1]
        for i in (i for group in groups for i in group):
            texts = tuple(recording.only(drafters, (i,)))
            kind = Trees if self.wanted.trees else Chains
            replay(kind(texts, cost, self.lengths, noise=0.0), fixed(arm), 0, sums.add)
            sums.times[i] += 1
        sums.columns[:, COLUMNS.index("seconds")] *= math.exp(NOISE**2 / 2)  # what the noise comes to in the mean
        return sums

    def _policy(self, recording: Recording, spec: str, groups: Sequence[tuple[int, ...]], cost: RoundCost) -> Sums:
        sums, longest = Sums(len(recording.texts)), max(text.limit for text in recording.texts)
        tokens = longest if self.reset == EVERY_PROMPT else None
        for group in groups:
            scenario = self._scenario(recording, group, cost)
            for seed in range(self.seeds):
                order = list(dict.fromkeys(self._order(scenario, seed, group)))
                skipped = set(order[: self.warmup])

                def told(at: int, played: Round, skipped: set[int] = skipped) -> None:
                    if at not in skipped:
                        sums.add(at, played)

                replay(scenario, spec, 1000 * seed + group[0], told, tokens)
                for i in group:
                    sums.times[i] += i not in skipped
        return sums

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

    def _order(self, scenario: Replay, seed: int, group: tuple[int, ...]) -> list[int]:
        """The order in which the replay shuffles the texts of a group."""
        if len(group) == 1 or scenario.phases:
            return list(group)
        rng = np.random.default_rng([1000 * seed + group[0], 0])
        return [group[i] for i in rng.permutation(len(group)).tolist()]

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
