"""What rounds cost on this machine: timed once, when texts repay it, in bounded time, and remembered on disk.

The policy then bets on seconds that were measured. What is remembered is checked against the clock before it is used.
"""

import json
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from wager.core import Arm, Calibration, files
from wager.decoding.arms import most_merged
from wager.drafters import Draft, Drafter
from wager.drafters.base import likeliest
from wager.drafters.cards import Card, apart, published
from wager.models.embedded import cache
from wager.models.runner import Runner

log = logging.getLogger("wager")

FILE = "rounds.json"  # in the user's cache folder
VERSION = 6  # of what is timed, and how
BUDGET = {"cpu": 0.5, "cuda": 0.05}  # seconds, by kind of device
PASSES = 2  # over everything that is timed; the least counts
ROUNDS = 4  # in a row of each arm whose rounds stay on the device
READ = (64, 16)  # tokens of the text that drafters read to be timed, in each pass
DOUBT = 1.25  # times that the cost of the widest round may be off before everything is timed again

Clock = Callable[[], float]


def widths_of(arms: Iterable[Arm], merged: int = 0) -> list[int]:
    """Widths to time, the most telling first: one, the widest, and by doubling between; those of trees too.

    ``merged``: tokens of the longest proposal that may be merged into a draft.
    """
    trees = {arm.budget + 1 for arm in arms if arm.tree is not None}
    widest = 1 + max(arm.budget for arm in arms) + merged
    doubling = {1 + (1 << n) for n in range(widest.bit_length()) if 1 + (1 << n) < widest}
    return list(dict.fromkeys((1, widest, *sorted(trees | doubling))))


class RoundTimer:
    """Times the parts of rounds on a target that holds a text, and leaves everything as it was."""

    def __init__(self, target: Runner, drafters: Mapping[str, Drafter], arms: Sequence[Arm], text: Sequence[int],
                 clock: Clock = perf_counter) -> None:  # fmt: skip
        self.target, self.text, self.clock = target, list(text), clock
        self.models = {name: drafter for name, drafter in drafters.items() if not drafter.cheap}
        room = target.limit - target.length
        merged = most_merged(arms, drafters, target)
        self.arms = [arm for arm in arms if arm.length and arm.budget + merged < room]
        self.widths = widths_of(self.arms, merged) if self.arms else []
        self.deadline = clock() + BUDGET.get(target.device.type, BUDGET["cpu"])

    def verify(self, widths: Sequence[int]) -> tuple[dict[int, float], bool]:
        """The least seconds of each width, and whether there was time for all of them."""
        least: dict[int, float] = {}
        length, token = self.target.length, self.text[-1]
        for _ in range(PASSES):
            for width in widths:
                if self.clock() > self.deadline:
                    return least, False
                began = self.clock()
                self.target.forward([token] * width, width).argmax(-1).tolist()  # as a round: the device is waited for
                self.target.crop(length)
                taken = self.clock() - began
                least[width] = min(taken, least.get(width, taken))
        return least, True

    def draft(self) -> tuple[dict[Arm, float], dict[str, dict[int, float]], bool]:
        """The least seconds of the longest and the shortest drafts of each model, those of catching up on two numbers
        of tokens, and whether there was time for all of them. Where whole rounds stay on the device, their drafts
        count, and catching up on the whole text. Of models of one size with the same arms one is timed.

        On a GPU every draft is made once before the time begins: first launches take many times as long.
        """
        least: dict[Arm, float] = {}
        lags: dict[str, dict[int, float]] = {}
        alike = self._alike()
        drafts = [arm for arm in self._drafts() if arm.drafter in alike]
        try:
            if self.target.device.type == "cuda":
                began = self.clock()
                for arm in drafts:
                    self._draft(arm, READ[0])
                    self._play(arm)
                self.deadline += self.clock() - began
            for read in (*READ, 0):
                for arm in drafts:
                    if self.clock() > self.deadline:
                        return least, lags, False
                    timed = self._draft(arm, read) if read else self._play(arm)
                    if timed is None:
                        continue
                    taken, draft = timed
                    least[arm] = min(taken, least.get(arm, taken)) if read else taken
                    if draft.lag > 1 and draft.lag_seconds:
                        known = lags.setdefault(arm.drafter, {})
                        known[draft.lag] = min(draft.lag_seconds, known.get(draft.lag, draft.lag_seconds))
        finally:
            for drafter in self.models.values():
                drafter.begin(self.text)
            for arm, seconds in list(least.items()):
                least |= {replace(arm, drafter=other): seconds for other in alike[arm.drafter]}
            for name, own in list(lags.items()):
                lags |= {other: dict(own) for other in alike[name]}
        return least, lags, True

    def _draft(self, arm: Arm, read: int) -> tuple[float, Draft]:
        """The seconds of a draft after so many tokens of the text, catching up left out."""
        drafter = self.models[arm.drafter]
        drafter.begin(self.text[:read])
        began = self.clock()
        draft = drafter.propose(arm.length) if arm.tree is None else drafter.propose_tree(arm.length, arm.tree)
        return max(0.0, self.clock() - began - draft.lag_seconds), draft

    def _play(self, arm: Arm) -> tuple[float, Draft] | None:
        """The same where whole rounds stay on the device, after all of the text; None where they do not.

        Drafts are then begun ahead, all but the first: the others count, and of the first what it had to catch up on.
        """
        drafter, length = self.models[arm.drafter], self.target.length
        drafter.begin(self.text)
        first, least = None, inf
        for _ in range(ROUNDS):
            if self.target.length + arm.budget + 1 > self.target.limit:
                break
            began = self.clock()
            played = drafter.play(arm.length, arm.tree, likeliest)
            if played is None:
                break
            taken = self.clock() - began - played.verify_seconds - played.draft.lag_seconds
            least = min(least, max(0.0, taken)) if first is not None else max(0.0, taken)
            first = first or played.draft
            drafter.extend([*(played.draft.tokens[at] for at in played.path), played.following])
        self.target.crop(length)
        return None if first is None else (least, first)

    def _alike(self) -> dict[str, list[str]]:
        """The models that are timed, each with those that take as long."""
        first: dict[Hashable, str] = {}
        found: dict[str, list[str]] = {}
        for name, drafter in self.models.items():
            own = frozenset((arm.length, arm.tree) for arm in self.arms if arm.drafter == name)
            same = first.setdefault((drafter.size, own), name)
            found.setdefault(same, []).extend([] if same == name else [name])
        return found

    def _drafts(self) -> list[Arm]:
        """Of each model's chains and of each of its trees the longest arm, then the shortest."""
        groups: dict[tuple[str, object], list[Arm]] = {}
        for arm in self.arms:
            if arm.drafter in self.models:
                groups.setdefault((arm.drafter, arm.tree), []).append(arm)
        ends = (max, min)
        return list(dict.fromkeys(end(own, key=lambda arm: arm.length) for end in ends for own in groups.values()))


@torch.inference_mode()
def calibrated(timer: RoundTimer, key: str, path: Path | None = None) -> Calibration:
    """The seconds of rounds, from the file if the clock agrees with it, else timed now and kept there."""
    path = path or cache() / FILE
    if not timer.widths:
        return Calibration()
    known = _read(path)
    if (kept := _kept(known.get(key))) is not None and (now := _checked(timer, kept)) is not None:
        return now
    verify, complete = timer.verify(timer.widths[:2])
    draft, catch_up, drafted = timer.draft() if complete else ({}, {}, False)
    verify |= timer.verify(timer.widths[2:])[0]
    found = Calibration(verify, draft, catch_up)
    if drafted and verify.keys() == set(timer.widths):  # each at least once
        _write(path, {**known, key: _as_json(found)})
    return found


def with_cards(found: Calibration, cards: Mapping[str, Card]) -> Calibration:
    """The same with what the cards of drafters say of their acceptance."""
    kinds = {name: card.kinds for name, card in cards.items() if card.kinds}
    return replace(found, acceptance=published(cards), apart=apart(cards.values()), kinds=kinds)


def _checked(timer: RoundTimer, kept: Calibration) -> Calibration | None:
    """What was kept, at the machine's present speed; None if a wide round costs something else by now."""
    first, widest = timer.widths[0], timer.widths[1]
    now, _ = timer.verify((first, widest))
    if now.keys() != {first, widest} or not {first, widest} <= kept.verify.keys():
        return None
    speed = now[first] / kept.verify[first]
    if not 1 / DOUBT < now[widest] / (speed * kept.verify[widest]) < DOUBT:
        log.info("rounds of %d tokens cost something else than was remembered: timed again", widest)
        return None
    verify = {width: speed * seconds for width, seconds in kept.verify.items()}
    draft = {arm: speed * seconds for arm, seconds in kept.draft.items()}
    lags = {name: {n: speed * seconds for n, seconds in own.items()} for name, own in kept.catch_up.items()}
    return Calibration(verify, draft, lags)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):  # a damaged file is replaced
        return files.read_json(path)
    return {}


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, content)
    except OSError as error:
        log.info("the seconds of rounds are not kept: %s", error)


def _as_json(found: Calibration) -> dict[str, Any]:
    draft = {str(arm): seconds for arm, seconds in found.draft.items()}
    body: dict[str, Any] = json.loads(json.dumps({"verify": found.verify, "draft": draft, "catch_up": found.catch_up}))
    return body


def _kept(body: Any) -> Calibration | None:
    """What was read from a file as a calibration; None where it is none."""
    try:
        verify = {int(width): _seconds(s) for width, s in body["verify"].items()}
        draft = {Arm.parse(arm): _seconds(s) for arm, s in body["draft"].items()}
        lags = {str(n): {int(k): _seconds(s) for k, s in own.items()} for n, own in body["catch_up"].items()}
        return Calibration(verify, draft, lags)
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0.0 < seconds < 3600.0:
        raise ValueError(f"{seconds} is no time of a round")
    return seconds
