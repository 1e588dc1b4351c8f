"""What recorded texts tell beside replay: rewards, drafting with all, a rule that stops drafts, batches of texts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction import costs
from reproduction.recorded import Pool, Recorded, Totals, methods, texts_of, totals
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
        track = text.tracks[name]
        for at in range(text.tokens - 1 - length):
            be.append(min(track.agreed[at], length) / length)
            bd.append(statistics.fmean(track.overlap[at : at + length]))
        at = 0
        for played in by_round:
            if at >= text.tokens - 1 - length:
                break
            played.append(statistics.fmean(track.overlap[at : at + length]))
            at += min(track.agreed[at], length) + 1
    return described(be, bd, by_round)


def described(be: Sequence[float], bd: Sequence[float], by_round: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The statistics of MetaSD's table 2 and figure 6."""
    return {
        "be": {"mean": float(np.mean(be)), "variance": float(np.var(be)), "zeros": float(np.mean(np.array(be) == 0))},
        "bd": {"mean": float(np.mean(bd)), "variance": float(np.var(bd)), "zeros": float(np.mean(np.array(bd) == 0))},
        "rounds": [[float(np.mean(r)), float(np.std(r)), len(r)] for r in by_round if len(r) > 1],
        "count": len(be),
    }


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
        found: dict[str, list[Totals]] = {
            str(OFF): [totals(texts, fixed(OFF), (self.length,), cost)],
            "all drafters": [_all(texts, self.drafters, self.length, cost)],
        }
        return {"methods": methods(found)}


def _all(texts: Sequence[Text], names: Sequence[str], length: int, cost: RoundCost) -> Totals:
    seconds = cost.verify(1 + length * len(names)) + length * sum(cost.step.get(name, 0.0) for name in names)
    found: Totals = {}
    for text in texts:
        sums = found.setdefault(text.label, [0.0, 0.0, 0.0])
        at = 0
        while at < text.tokens - 1:
            accepted = max(min(text.tracks[name].agreed[at], length) for name in names)
            emitted = min(accepted + 1, text.tokens - 1 - at)
            for i, part in enumerate((emitted, 1, seconds)):
                sums[i] += part
            at += emitted
    return found


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
        fitted = {
            least: sum(part[2] for part in self._stopped(texts[0::2], least, cost).values())
            for least in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
        }
        best = min(fitted, key=lambda least: fitted[least])
        tested = texts[1::2]
        lengths = tuple(range(1, self.longest + 1))
        found: dict[str, list[Totals]] = {
            str(OFF): [totals(tested, fixed(OFF), lengths, cost)],
            "trained to stop": [self._stopped(tested, best, cost)],
        }
        for policy in self.policies:
            found[policy] = [totals(tested, policy, lengths, cost, seed=s) for s in range(self.seeds)]
        return {"methods": methods(found), "threshold": best}

    def _stopped(self, texts: Sequence[Text], least: float, cost: RoundCost) -> Totals:
        """Rounds in which the draft ends before the first token less likely than ``least``."""
        found: Totals = {}
        for text in texts:
            track = text.tracks[self.drafter]
            sums = found.setdefault(text.label, [0.0, 0.0, 0.0])
            at = 0
            while at < text.tokens - 1:
                sure = track.confidence[at][: self.longest]
                drafted = next((i for i, p in enumerate(sure) if p < least), len(sure))
                asked = min(drafted + 1, len(sure))  # the token it was not sure of is drafted too
                emitted = min(min(track.agreed[at], drafted) + 1, text.tokens - 1 - at)
                sums[0] += emitted
                sums[1] += 1
                sums[2] += cost.verify(1 + drafted) + asked * cost.step.get(self.drafter, 0.0)
                at += emitted
        return found


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
            own = totals([text], fixed(arm), lengths, cost)[text.label]
            routed[text.label] = [a + b for a, b in zip(routed.get(text.label, [0.0] * 3), own, strict=True)]
        found: dict[str, list[Totals]] = {str(OFF): [totals(texts, fixed(OFF), lengths, cost)], "router": [routed]}
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
                for seed in range(self.seeds):
                    played: list[float] = []
                    watch = _watcher(played, best)
                    play(Pool(texts, cost, (self.length,)), policy, seed, watch=watch)
                    shares[policy].append(played)
        return {"policies": {policy: halves(own) for policy, own in shares.items()}}


def _watcher(played: list[float], best: Arm) -> Any:
    def watch(context: Context, outcome: Round) -> None:
        played.append(float(outcome.arm == best))

    return watch


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
        return (
            f"{self.recording.command}, then texts stepped together in batches of {', '.join(map(str, self.batches))}"
        )

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
    drafted = min(arm.length, track.size[at]) if track is not None else 0
    accepted = min(drafted, track.agreed[at]) if track is not None else 0
    return Round(
        arm,
        drafted=drafted,
        accepted=accepted,
        emitted=min(accepted + 1, text.tokens - 1 - at),
        verify_seconds=seconds,
        overlap=tuple(track.overlap[at : at + drafted]) if track is not None else (),
    )
