"""What recorded texts tell beside replay: rewards, drafting with all, a rule that stops drafts, batches of texts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction import costs
from reproduction.recorded import Pool, Recorded, Totals, add, methods, texts_of, totals
from wager.core import OFF, Arm, Context, Round
from wager.core.recording import Text
from wager.policies import build, fixed
from wager.simulation import RoundCost, play

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

ROUNDS = 10  # of a text, over which MetaSD's figure 6 looks


@dataclass(frozen=True, slots=True)
class Rewards:
    """Block efficiency and block divergence of every drafter at every position, and round by round."""

    recording: Recorded
    drafters: tuple[str, ...]
    length: int
    labels: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"{self.recording.command}, then its columns agreed and overlap"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        texts = texts_of(workspace.result(self.recording), self.drafters, self.labels or None)
        return {"drafters": {name: reward_statistics(texts, name, self.length) for name in self.drafters}}


def reward_statistics(texts: Sequence[Text], name: str, length: int) -> dict[str, Any]:
    """Means and variances of both rewards over positions, the share of zeros, and divergence by round."""
    be: list[float] = []
    bd: list[float] = []
    by_round: list[list[float]] = [[] for _ in range(ROUNDS)]
    for text in texts:
        track, whole = text.tracks[name], text.tokens - 1 - length
        agreed = [min(n, length) for n in track.agreed]
        divergence = [statistics.fmean(track.overlap[at : at + length]) for at in range(whole)]
        be += [agreed[at] / length for at in range(whole)]
        bd += divergence
        at = 0
        for played in by_round:
            if at >= whole:
                break
            played.append(divergence[at])
            at += agreed[at] + 1
    return {
        **{kind: _described(values) for kind, values in (("be", be), ("bd", bd))},
        "rounds": [[float(np.mean(r)), float(np.std(r)), len(r)] for r in by_round if len(r) > 1],
        "count": len(be),
    }


def _described(values: Sequence[float]) -> dict[str, float]:
    zeros = float(np.mean(np.array(values) == 0))
    return {"mean": float(np.mean(values)), "variance": float(np.var(values)), "zeros": zeros}


def _walk(texts: Sequence[Text], play: Callable[[Text, int], tuple[int, float]]) -> Totals:
    """Texts decoded round by round: ``play`` gives the tokens accepted at a position and the round's seconds."""
    found: Totals = {}
    for text in texts:
        sums = found.setdefault(text.label, [0.0, 0.0, 0.0])
        at = 0
        while at < text.tokens - 1:
            accepted, seconds = play(text, at)
            emitted = min(accepted + 1, text.tokens - 1 - at)
            for i, part in enumerate((emitted, 1, seconds)):
                sums[i] += part
            at += emitted
    return found


@dataclass(frozen=True, slots=True)
class DraftAll:
    """All drafters draft in every round and the target verifies every draft: MetaSD's baseline of table 5."""

    recording: Recorded
    drafters: tuple[str, ...]
    length: int
    cost: str = "cpu"

    @property
    def command(self) -> str:
        return f"{self.recording.command}, then all drafts of every round verified at once"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        texts = texts_of(workspace.result(self.recording), self.drafters)
        cost = costs.table(self.cost)
        drafting = self.length * sum(cost.step.get(name, 0.0) for name in self.drafters)
        seconds = cost.verify(1 + self.length * len(self.drafters)) + drafting

        def best_draft(text: Text, at: int) -> tuple[int, float]:
            return max(min(text.tracks[name].agreed[at], self.length) for name in self.drafters), seconds

        plain = totals(texts, fixed(OFF), (self.length,), cost)
        return {"methods": methods({str(OFF): [plain], "all drafters": [_walk(texts, best_draft)]})}


@dataclass(frozen=True, slots=True)
class Stopped:
    """A drafter that stops when it is no longer sure, its threshold fitted beforehand on half of the texts.

    It stands for a trained rule that stops drafts (SpecDec++). The other half tests it beside policies that learn as
    they go.
    """

    recording: Recorded
    drafter: str
    longest: int
    policies: tuple[str, ...]
    cost: str = "cpu"
    seeds: int = 3

    @property
    def command(self) -> str:
        named = " ".join(f"-p {policy}" for policy in self.policies)
        return f"{self.recording.command} && wager replay R.jsonl.gz --drafters {self.drafter} {named}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        texts = texts_of(workspace.result(self.recording), [self.drafter])
        cost = costs.table(self.cost)

        def seconds(least: float) -> float:
            return sum(part[2] for part in self._stopped(texts[0::2], least, cost).values())

        best = min((0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), key=seconds)
        tested, lengths = texts[1::2], tuple(range(1, self.longest + 1))
        found = {str(OFF): [totals(tested, fixed(OFF), lengths, cost)]}
        found["trained to stop"] = [self._stopped(tested, best, cost)]
        for policy in self.policies:
            found[policy] = [totals(tested, policy, lengths, cost, seed=s) for s in range(self.seeds)]
        return {"methods": methods(found), "threshold": best}

    def _stopped(self, texts: Sequence[Text], least: float, cost: RoundCost) -> Totals:
        """Rounds in which the draft ends before the first token less likely than ``least``."""

        def stop(text: Text, at: int) -> tuple[int, float]:
            track = text.tracks[self.drafter]
            sure = track.confidence[at][: self.longest]
            drafted = next((i for i, p in enumerate(sure) if p < least), len(sure))
            asked = min(drafted + 1, len(sure))  # the token it was not sure of is drafted too
            seconds = cost.verify(1 + drafted) + asked * cost.step.get(self.drafter, 0.0)
            return min(track.agreed[at], drafted), seconds

        return _walk(texts, stop)


@dataclass(frozen=True, slots=True)
class Routed:
    """The drafter that a classifier of prompts picks once a text, beside policies that choose in every round."""

    recording: Recorded
    drafters: tuple[str, ...]
    everything: str  # the drafter of prompts that no specialist is for
    length: int
    policies: tuple[str, ...]
    cost: str = "cpu"
    seeds: int = 3

    @property
    def command(self) -> str:
        named = " ".join(f"--policy {policy}" for policy in self.policies)
        arms = ",".join(f"{name}:{self.length}" for name in self.drafters)
        return f"wager bench generate --arms {arms} --router training/smollm2-135m.toml --corpora CORPORA {named}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        content = workspace.result(self.recording)
        texts = texts_of(content, self.drafters)
        cost, lengths = costs.table(self.cost), (self.length,)
        kinds = {name.rpartition(":")[2]: name for name in self.drafters}
        routed: Totals = {}
        for text, domain in zip(texts, content["routes"], strict=True):
            arm = Arm(kinds.get(domain, self.everything), self.length)
            add(routed, text.label, totals([text], fixed(arm), lengths, cost)[text.label])
        found = {str(OFF): [totals(texts, fixed(OFF), lengths, cost)], "router": [routed]}
        for policy in self.policies:
            found[policy] = [totals(texts, policy, lengths, cost, seed=s, off=False) for s in range(self.seeds)]
        return {"methods": methods(found)}


@dataclass(frozen=True, slots=True)
class BestShare:
    """How often each policy plays the drafter that is best for the task, over the rounds (MetaSD figure 3)."""

    recording: Recorded
    drafters: tuple[str, ...]
    length: int
    policies: tuple[str, ...]
    labels: tuple[str, ...]
    seeds: int = 3

    @property
    def command(self) -> str:
        named = " ".join(f"-p {policy}" for policy in self.policies)
        return f"{self.recording.command} && wager replay R.jsonl.gz --lengths {self.length} {named}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        content = workspace.result(self.recording)
        cost = costs.table("cpu")
        shares: dict[str, list[list[float]]] = {policy: [] for policy in self.policies}
        for label in self.labels:
            texts = tuple(texts_of(content, self.drafters, [label]))
            arms = [Arm(name, self.length) for name in self.drafters]
            rounds = {arm: totals(texts, fixed(arm), (self.length,), cost)[label][1] for arm in arms}
            best = min(arms, key=lambda arm: rounds[arm])
            for i, policy in enumerate(self.policies):
                workspace.tell(f"{label}: {policy}", i, len(self.policies))
                shares[policy] += [self._played(texts, cost, policy, seed, best) for seed in range(self.seeds)]
        return {"policies": {policy: halves(own) for policy, own in shares.items()}}

    def _played(self, texts: tuple[Text, ...], cost: RoundCost, policy: str, seed: int, best: Arm) -> list[float]:
        """Of every round of a run: 1 where the best arm was played."""
        found: list[float] = []
        scenario = Pool(texts, cost, (self.length,))
        play(scenario, policy, seed, watch=lambda _, outcome: found.append(float(outcome.arm == best)))
        return found


def halves(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Share of the best arm in the first and in the second half of the rounds, over runs."""
    first = [x for run in runs for x in run[: len(run) // 2]]
    last = [x for run in runs for x in run[len(run) // 2 :]]
    return {"early": float(np.mean(first)), "late": float(np.mean(last)), "all": float(np.mean([*first, *last]))}


@dataclass(frozen=True, slots=True)
class Batched:
    """Texts decoded together, one policy each: of one task, or of all; every drafter that is played takes its own pass.

    MetaSD's table 17: the more drafters a step mixes, the more passes it pays.
    """

    recording: Recorded
    drafters: tuple[str, ...]
    single: str  # the one drafter for everything
    length: int
    batches: tuple[int, ...]
    policy: str
    labels: tuple[str, ...]
    cost: str = "h200"

    @property
    def command(self) -> str:
        sizes = ", ".join(map(str, self.batches))
        return f"{self.recording.command}, then texts stepped together in batches of {sizes}"

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        texts = texts_of(workspace.result(self.recording), self.drafters, self.labels or None)
        found = {}
        for batch in self.batches:
            workspace.tell(f"batches of {batch}", self.batches.index(batch), len(self.batches))
            grouped = sorted(texts, key=lambda text: text.label)
            mixed = [text for i in range(batch) for text in grouped[i::batch]]
            order = [mixed[i :: len(mixed) // batch][:batch] for i in range(len(mixed) // batch)]
            same = [grouped[i : i + batch] for i in range(0, len(grouped) - batch + 1, batch)]
            plain = self._speed(same, OFF)
            found[str(batch)] = {
                "one for all": self._speed(same, Arm(self.single, self.length)) / plain,
                "one task": self._speed(same, None) / plain,
                "mixed tasks": self._speed(order, None) / self._speed(order, OFF),
            }
        return {"batches": found}

    def _speed(self, groups: Sequence[Sequence[Text]], always: Arm | None) -> float:
        """Tokens a second of groups of texts, each group stepped together until all its texts end."""
        cost = costs.table(self.cost)
        tokens = seconds = 0.0
        for group in groups:
            arms = tuple(Arm(name, self.length) for name in self.drafters)
            policies = [build(self.policy, arms, seed=i) for i in range(len(group))]
            at = [0] * len(group)
            while alive := [i for i, text in enumerate(group) if at[i] < text.tokens - 1]:
                chosen = {i: always or policies[i].choose(Context(arms, tokens=at[i] + 1)) for i in alive}
                drafting = {arm.drafter for arm in chosen.values() if arm.length}
                width = sum(1 + arm.length for arm in chosen.values())
                taken = cost.verify(width) + self.length * sum(cost.step.get(name, 0.0) for name in drafting)
                for i, arm in chosen.items():
                    outcome = _round(group[i], at[i], arm, taken)
                    if always is None:
                        policies[i].observe(outcome)
                    at[i] += outcome.emitted
                    tokens += outcome.emitted
                seconds += taken
        return tokens / seconds


def _round(text: Text, at: int, arm: Arm, seconds: float) -> Round:
    """One text's part of a step."""
    track = text.tracks.get(arm.drafter)
    if track is None:
        return Round(arm, 0, 0, 1, verify_seconds=seconds)
    drafted = min(arm.length, track.size[at])
    accepted = min(drafted, track.agreed[at])
    emitted = min(accepted + 1, text.tokens - 1 - at)
    return Round(
        arm, drafted, accepted, emitted, verify_seconds=seconds, overlap=tuple(track.overlap[at : at + drafted])
    )
