"""Seconds of a verification: of one request width by width, of a batch by a linear fit.

A batch has too many combinations of requests and draft tokens to time each.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar

from wager.policies.auto.config import AutoConfig
from wager.policies.auto.least_squares import solved
from wager.policies.base import Learner

OFF_STEP, RAGGED, UNIFORM = range(3)  # kinds of step: no drafts; drafts of different lengths; all of the longest
EXPECTED, OUTLIER, CHANGED = range(3)


def bucket(batch: int) -> int:
    """Batch sizes that are learned together: 1, 2 to 3, 4 to 7, …"""
    return batch.bit_length()


class OutlierFilter(Learner):
    """Tells a slow round from a change: one far off is an outlier, several in a row of one class are a change."""

    learned = ("usual_error", "streak", "mildest")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.usual_error = config.token_share  # mean error of a round's seconds, as a share of those expected
        self.streak: dict[int, int] = {}  # outliers in a row, by class
        self.mildest: dict[int, float] = {}  # of those the least far off, over what was expected

    @property
    def limit(self) -> float:
        """Error of a round beyond which it is an outlier, as a share of the seconds expected."""
        return max(self.config.outlier * self.usual_error, self.config.token_share)

    def judge(self, at: int, seconds: float, expected: float, known: bool) -> int:
        """What a round of class ``at`` is; ``known``: this class was timed before."""
        config, far, limit = self.config, abs(seconds / expected - 1.0), self.limit
        self.usual_error += (min(far, limit) - self.usual_error) / config.short_memory
        if not known or far <= limit:
            self.streak[at] = 0
            return EXPECTED
        if not self.streak.get(at) or far < abs(self.mildest[at] - 1.0):
            self.mildest[at] = seconds / expected
        self.streak[at] = (self.streak.get(at, 0) + 1) % config.repeats
        return OUTLIER if self.streak[at] else CHANGED


class VerifyLatency(Learner):
    """Seconds of verification by width, for one request: a scale that follows the machine, times a ratio per width.

    A wider forward pass never counts as quicker.
    """

    learned = ("scale", "plain", "checks", "last_seen", "rounds", "ratios", "learned_rounds", "filter",
               "_shape", "_most")  # fmt: skip

    def __init__(self, widest: int, config: AutoConfig) -> None:
        self.config = config
        self.filter = OutlierFilter(config)
        self.scale = 0.0  # seconds of width 1
        self.plain = 0.0  # seconds of width 1 by its own rounds alone; other widths move the scale too
        self.checks = 0  # rounds of width 1 to be timed because another width has changed
        self.last_seen = [0] * (widest + 1)  # each width's last round
        self.rounds = [0.0] * (widest + 1)
        self.ratios = [1.0 + config.token_share * max(0, w - 1) for w in range(widest + 1)]
        self._prior = list(self.ratios)
        self.learned_rounds = 0
        self.seconds: list[float] = []  # by width
        self._average()

    def learn(self, width: int, seconds: float) -> None:
        """One verification more."""
        config = self.config
        self.last_seen[width] = self.learned_rounds
        self.learned_rounds += 1
        if width == 1 and self.checks:
            self.checks -= 1
        if not self.scale:
            self.scale = seconds / self._prior[width]
            self._average()
        known, expected = self.rounds[width], self.seconds[width]
        # A first time far beyond the guess may be a stall: it is believed when it repeats.
        verdict = self.filter.judge(width, seconds, expected, known > 0 or seconds > config.outlier * expected)
        if verdict == OUTLIER:
            return
        if verdict == CHANGED:  # the other widths are doubted, and width 1 is timed
            if width > 1 and known:
                self.rounds = [n if w == 1 else min(n, 0.5) for w, n in enumerate(self.rounds)]
                self.checks = config.repeats
            seconds = expected * self.filter.mildest[width]
            self.ratios[width], self.rounds[width] = seconds / self.scale, float(config.repeats)
            if width == 1:
                self.plain = seconds
            self._average()
            return
        if width == 1:
            self.plain += (seconds - self.plain) / (min(known, config.short_memory) + 1.0)
        if known:
            self.scale += self.scale * (seconds / self.seconds[width] - 1.0) / config.short_memory
        self.ratios[width] += (seconds / self.scale - self.ratios[width]) / (min(known, config.round_memory) + 1.0)
        self.rounds[width] = known + 1.0
        if self.learned_rounds < 64 or self.learned_rounds % 8 == 0:  # by then one round changes little
            self._average()
        else:
            self.settle()

    def calibrate(self, timed: Mapping[int, float]) -> None:
        """Take these seconds by width where nothing is known yet, or where they contradict it."""
        if not timed.get(1):
            return
        limit = self.filter.limit
        if not self.rounds[1]:
            self.scale = self.plain = timed[1]
        elif abs(timed[1] / self.seconds[1] - 1.0) > limit:  # as on another machine: the ratios may still hold
            self.scale *= timed[1] / self.seconds[1]
            self.plain = timed[1]
        self.settle()
        for width, seconds in timed.items():
            known = width < len(self.ratios) and self.rounds[width] > 0.0
            if width < len(self.ratios) and (not known or abs(seconds / self.seconds[width] - 1.0) > limit):
                self.ratios[width], self.rounds[width] = seconds / self.scale, float(self.config.repeats)
        self._average()

    def settle(self) -> None:
        scale = self.scale or 1.0
        self.seconds = [scale * ratio for ratio in self._shape]

    def _average(self) -> None:
        """Seconds by width, never falling: neighbours that contradict each other are averaged."""
        ratios = self._unstalled()
        guesses, memory = self._guesses(ratios), self.config.round_memory
        blocks: list[tuple[float, float, int]] = []  # ratio, weight, widths
        for width in range(1, len(self.ratios)):
            known = min(self.rounds[width], memory)
            weight, count = known + 1.0, 1  # the guess counts as one round
            ratio = (known * ratios[width] + guesses[width]) / weight
            while blocks and blocks[-1][0] > ratio:
                other, more, widths = blocks.pop()
                ratio = (ratio * weight + other * more) / (weight + more)
                weight, count = weight + more, count + widths
            blocks.append((ratio, weight, count))
        self._shape = [0.0]
        for ratio, _, count in blocks:
            self._shape += [ratio] * count
        self._most = self._upper()
        self.settle()

    def _upper(self) -> list[float]:
        """The largest ratio each width can have, noise left out.

        A width that was not timed takes at most twice what is expected of it, no longer than a wider one, and no longer
        than narrower ones in turn: w tokens could be verified in w / n passes of n.
        """
        most = [max(own) if n else own[0] for *own, n in zip(self._shape, self.ratios, self.rounds, strict=True)]
        timed = 1
        for width in range(2, len(most)):
            if self.rounds[width] >= 1.0:
                timed = width
            else:
                most[width] = min(most[timed] * width / timed, 2.0 * most[width])
        for width in range(len(most) - 2, 0, -1):
            if most[width] > most[width + 1]:
                most[width] = most[width + 1]
        return most

    def worst(self, width: int) -> float:
        """Seconds that a round of this width hardly ever exceeds."""
        return self._margin() * self._most[width]

    def widest(self, seconds: float) -> int:
        """The largest width that takes so many seconds at most, by `worst`; 0: none."""
        return bisect_right(self._most, seconds / self._margin()) - 1

    def _margin(self) -> float:
        """Seconds of width 1, with noise."""
        return self.noise * (self.scale or 1.0)

    @property
    def noise(self) -> float:
        """Times the expected seconds that a round hardly ever exceeds: by twice the usual error."""
        return 1.0 + 2.0 * self.filter.usual_error

    def _unstalled(self) -> list[float]:
        """The ratios; one timed a few times only is no larger than a wider one's: there was a stall, then."""
        ratios, lowest = list(self.ratios), inf
        for width in range(len(ratios) - 1, 0, -1):
            if self.rounds[width]:
                if self.rounds[width] < self.config.repeats:
                    ratios[width] = min(ratios[width], lowest)
                lowest = min(lowest, ratios[width])
        return ratios

    def _guesses(self, ratios: list[float]) -> list[float]:
        """Ratios as the timed widths around each suggest: on a line between two, beyond the last by `token_share`."""
        guesses, share = list(self._prior), self.config.token_share
        last = 1
        guesses[1] = level = ratios[1] if self.rounds[1] else 1.0
        for width in range(2, len(guesses)):
            if self.rounds[width]:
                slope = (ratios[width] - level) / (width - last)
                for between in range(last + 1, width):
                    guesses[between] = level + slope * (between - last)
                last, level = width, ratios[width]
            guesses[width] = level + share * (width - last)
        return guesses

    def doubted(self, width: int) -> bool:
        """Whether its last round took far from what was expected, and was not learned from."""
        return self.filter.streak.get(width, 0) > 0

    def overdue(self, lead: float = 0.0) -> bool:
        """Whether plain decoding has to be timed: all widths are relative to it, and a change must be noticed. Where
        rounds gain more over it (``lead``, a share) than a doubt, only one that it is quicker could change a choice."""
        config, rounds, limit = self.config, self.since_plain(), self.filter.limit
        if self.rounds[1] < config.repeats or self.checks > 0:
            return True
        # other widths say that the machine has changed: that may be true of them alone
        apart = self.scale * self.ratios[1] / self.plain - 1.0 if self.plain else 0.0
        doubted = self.doubted(1)
        if lead > limit:
            apart, doubted = min(apart, 0.0), doubted and self.filter.mildest[1] < 1.0
        return doubted or (abs(apart) > limit and rounds > config.short_memory) or rounds > config.probe_interval

    def since_plain(self) -> int:
        """Rounds since plain decoding was timed."""
        return self.learned_rounds - self.last_seen[1]


class LatencyFit(Learner):
    """Seconds of a step as a + b · requests + c · draft tokens + r if it is ragged, by fading least squares."""

    learned = ("steps", "sums", "theta", "filter")

    def __init__(self, config: AutoConfig) -> None:
        self.filter = OutlierFilter(config)
        self.steps = 0
        # Sums over the steps of each kind, apart so that a kind not played is not forgotten: of 1, b and n (requests
        # and draft tokens) times each other, then times seconds.
        self.sums = [[0.0] * 9 for _ in range(3)]
        self.theta: list[float] = []  # a, b, c, r; empty: nothing learned

    def forget(self, kind: int) -> None:
        """Steps of this kind have changed; those that draft share a cost for each token, so they change together."""
        for other in (OFF_STEP,) if kind == OFF_STEP else (RAGGED, UNIFORM):
            self.sums[other] = [0.0] * 9

    def add(self, keep: float, kind: int, step: Sequence[float]) -> None:
        """One step more; those of its kind fade."""
        self.sums[kind] = [keep * old + new for old, new in zip(self.sums[kind], step, strict=True)]

    def solve(self, ridge: Sequence[float], prior: Sequence[float]) -> None:
        """Fit anew, drawn towards the prior by as many squared units of each feature as ``ridge`` says."""
        off, ragged, uniform = self.sums
        s = [x + y + z for x, y, z in zip(off, ragged, uniform, strict=True)]
        r = ragged  # only there r's feature is not 0 but 1
        rows = [
            [s[0] + ridge[0], s[1], s[2], r[0], s[6] + ridge[0] * prior[0]],
            [s[1], s[3] + ridge[1], s[4], r[1], s[7] + ridge[1] * prior[1]],
            [s[2], s[4], s[5] + ridge[2], r[2], s[8] + ridge[2] * prior[2]],
            [r[0], r[1], r[2], r[0] + ridge[3], r[6] + ridge[3] * prior[3]],
        ]
        # One that would be negative is 0, and the rest as good as they can then be.
        free = [0, 1, 2, 3]
        found = solved(rows, free)
        while negative := [i for i in (2, 3, 1) if i in free and found[i] < 0.0]:
            free.remove(negative[0])
            found = solved(rows, free)
        self.theta = found


class BatchLatency(Learner):
    """Seconds of a batch's steps: a fit for every bucket of sizes, drawn towards the one over all sizes."""

    learned = ("common", "level", "share", "sizes")
    elements: ClassVar = {"sizes": LatencyFit}

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.common = LatencyFit(config)
        self.level = 0.0  # mean seconds of a step
        self.share = 0.0  # mean seconds of a step per request
        self.sizes: dict[int, LatencyFit] = {}
        self._longest: dict[int, float] = {}  # bucket of sizes -> most draft tokens a request, of steps learned from

    def at(self, count: int) -> tuple[float, float, float]:
        """Seconds of a step in which so many requests draft nothing, per draft token, and for being ragged."""
        fit = self.sizes.get(bucket(count))
        theta = fit.theta if fit is not None and fit.theta else self.common.theta
        if not theta:
            return 1.0, self.config.token_share / count, 0.0
        a, b, c, r = theta
        return max(a + b * count, 1e-9), c, r

    def drafted(self, count: int) -> float:
        """Steps with drafts that were learned from at about this batch size, since what they take has changed; older
        ones count less."""
        fit = self.sizes.get(bucket(count))
        return fit.sums[RAGGED][0] + fit.sums[UNIFORM][0] if fit is not None else 0.0

    def longest(self, count: int) -> float:
        """Most draft tokens a request of steps at about this batch size; infinite where there was none."""
        return self._longest.get(bucket(count), inf)

    def drafted_nearby(self, count: int, least: float = 0.0) -> bool:
        """Whether more than so many such steps were learned from at up to about half or twice this batch size."""
        return any(self.drafted(size) > least for size in (count, count // 2, 2 * count))

    def learn(self, count: int, drafted: int, full: int, seconds: float) -> bool:
        """One step more, of so many draft tokens of at most ``full``; true if the estimates have changed."""
        size, kind, config = bucket(count), RAGGED if drafted else OFF_STEP, self.config
        if 0 < drafted == full:
            kind = UNIFORM
        fit = self.sizes.get(size)
        if fit is None:  # the first step of a size may pay for what later ones find done: it is not learned from
            self.sizes[size] = LatencyFit(config)
            return False
        fit.steps += 1
        base, token, ragged = self.at(count)
        expected = base + token * drafted + (ragged if kind == RAGGED else 0.0)
        known = fit.sums[kind][0] > 0.0 or (bool(self.common.theta) and 2.0 * seconds > config.outlier * expected)
        verdict = fit.filter.judge(kind, seconds, expected, known)
        if verdict == OUTLIER:
            return False
        if verdict == CHANGED:
            fit.forget(kind)
            self.common.forget(kind)
            seconds = expected * fit.filter.mildest[kind]
        b, n, y = float(count), float(drafted), seconds
        self._longest[size] = max(self._longest.get(size, 0.0), n / b)
        step = (1.0, b, n, b * b, b * n, n * n, y, b * y, n * y)
        keep = 1.0 - 1.0 / config.round_memory
        fit.add(keep, kind, step)
        if fit.steps > 16 and fit.steps % 8 and verdict != CHANGED:  # by then one step changes little
            return False
        self.common.steps += 1
        rate = max(1 / self.common.steps, 1 / config.round_memory)
        self.level += rate * (seconds - self.level)
        self.share += rate * (seconds / count - self.share)
        self.common.add(keep, kind, step)
        squared = 4.0**size  # the prior counts as one step
        self.common.solve((1.0,) * 4, (self.level, 0.0, config.token_share * self.share, 0.0))
        fit.solve((1.0, squared, squared, 1.0), self.common.theta)
        return True
