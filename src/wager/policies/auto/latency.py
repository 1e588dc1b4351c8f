"""What a round costs, and what its seconds are worth: learned as rounds come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

OFF_STEP, RAGGED, UNIFORM = range(3)  # nobody drafts; anything else; everybody drafts exactly K
AS_EVER, ACCIDENT, SLOWER, FASTER = range(4)  # a step's seconds against those expected


@dataclass(slots=True)
class LatencyFit:
    """Seconds of a step as a + b·requests + c·draft tokens + r where it is ragged, by fading least squares."""

    steps: int = 0
    tries: list[int] = field(default_factory=lambda: [0, 0, 0])  # steps of each kind
    errors: list[float] = field(default_factory=lambda: [0.0] * 3)  # their mean absolute deviation, seconds
    slow: list[bool] = field(default_factory=lambda: [False] * 3)  # whether the last of them was far too slow
    # Sums over the steps of each kind, apart so that a kind not played is not forgotten: of 1, b and n (requests and
    # draft tokens) times each other, then times seconds.
    sums: list[list[float]] = field(default_factory=lambda: [[0.0] * 9 for _ in range(3)])
    theta: list[float] = field(default_factory=list)  # a, b, c, r; none yet: empty

    def judge(self, kind: int, seconds: float, expected: float) -> int:
        """How surprising a step is. One far too slow is an accident, two in a row are news; so is one far too fast."""
        self.tries[kind] += 1
        if self.tries[kind] == 1:
            self.errors[kind] = 0.25 * seconds
            return AS_EVER
        error, usual, slow = seconds - expected, self.errors[kind], self.slow[kind]
        self.slow[kind] = error > 4 * usual
        self.errors[kind] = max(usual + 0.05 * (min(abs(error), 4 * usual) - usual), 0.01 * expected)
        if self.slow[kind]:
            return SLOWER if slow else ACCIDENT
        return FASTER if -error > max(4 * usual, 0.2 * expected) else AS_EVER

    def forget(self, kind: int) -> None:
        """What was known of such steps no longer holds; where it is of drafting ones, of none of them."""
        for other in (OFF_STEP,) if kind == OFF_STEP else (RAGGED, UNIFORM):
            self.sums[other] = [0.0] * 9

    def add(self, keep: float, kind: int, step: Sequence[float]) -> None:
        """One step more; those of its kind fade."""
        self.sums[kind] = [keep * old + new for old, new in zip(self.sums[kind], step, strict=True)]

    def solve(self, ridge: Sequence[float], prior: Sequence[float]) -> None:
        """LatencyFit anew, drawn towards the prior by as many squared units of each feature as ``ridge`` says."""
        off, ragged, uniform = self.sums
        s = [x + y + z for x, y, z in zip(off, ragged, uniform, strict=True)]
        r = ragged  # only there r's feature is not 0 but 1
        rows = [
            [s[0] + ridge[0], s[1], s[2], r[0], s[6] + ridge[0] * prior[0]],
            [s[1], s[3] + ridge[1], s[4], r[1], s[7] + ridge[1] * prior[1]],
            [s[2], s[4], s[5] + ridge[2], r[2], s[8] + ridge[2] * prior[2]],
            [r[0], r[1], r[2], r[0] + ridge[3], r[6] + ridge[3] * prior[3]],
        ]
        for i in range(3):
            top = rows[i]
            for below in rows[i + 1 :]:
                times = below[i] / top[i]
                for k in range(i + 1, 5):
                    below[k] -= times * top[k]
        # Substituting backwards from r, what is clipped at 0 leaves the rest as good as it can then be.
        extra = max(0.0, rows[3][4] / rows[3][3])
        token = max(0.0, (rows[2][4] - rows[2][3] * extra) / rows[2][2])
        request = max(0.0, (rows[1][4] - rows[1][3] * extra - rows[1][2] * token) / rows[1][1])
        start = (rows[0][4] - rows[0][3] * extra - rows[0][2] * token - rows[0][1] * request) / rows[0][0]
        self.theta = [start, request, token, extra]


class VerifyLatency:
    """Seconds of verification by width, for one text: a scale that follows the machine, times a ratio per width.

    A wider forward never counts as quicker. Before a width was tried, a token more takes 3 % of the first.
    """

    PRIOR = 0.5  # rounds that this is worth
    MEMORY = 50.0  # rounds of one width
    DRIFT = 0.1  # share of the scale that the last round makes up
    FAR = 4.0  # usual errors; what lies beyond is an accident, and news when it goes on
    STALE = 2000.0  # rounds in which half of what is known of a width that is not seen is forgotten
    CHECKS = 3  # rounds of plain decoding to time when another width has changed

    def __init__(self, widest: int) -> None:
        self.scale = 0.0
        self.usual = 0.1  # mean error of a round's seconds, as a share
        self.odd = [0] * (widest + 1)  # accidents in a row, by width
        self.checks = 0  # rounds of width 1 that are wanted
        self.seen = [0] * (widest + 1)  # round of each width's last
        self.rounds = [0.0] * (widest + 1)
        self.ratios = [1.0 + 0.03 * max(0, w - 1) for w in range(widest + 1)]
        self._first = list(self.ratios)
        self._learned = 0
        self.seconds: list[float] = []
        self._settle()

    def learn(self, width: int, seconds: float) -> None:
        """One verification more."""
        self.seen[width] = self._learned
        if width == 1 and self.checks:
            self.checks -= 1
        if not self.scale:
            self.scale = seconds / self._first[width]
            self._settle()
        expected = self.seconds[width] or seconds
        error = seconds / expected - 1.0
        far, limit = abs(error), self.FAR * self.usual
        if limit < 0.05:
            limit = 0.05
        self.usual += 0.05 * ((far if far < limit else limit) - self.usual)
        n = self.rounds[width]
        if n and far > limit:
            self._learned += 1
            self.odd[width] += 1
            if self.odd[width] < 3:
                return
            self.odd[width] = 0  # it has become slower, or quicker; the others are doubted, and width 1 is timed
            if width > 1:
                self.rounds = [n if w == 1 else min(n, 0.25) for w, n in enumerate(self.rounds)]
                self.checks = self.CHECKS
            self.ratios[width], self.rounds[width] = seconds / self.scale, 3.0
            self._settle()
            return
        self.odd[width] = 0
        self.scale += self.DRIFT * self.scale * (error if n else 0.0)
        self.ratios[width] += (seconds / self.scale - self.ratios[width]) / (min(n, self.MEMORY) + 1.0)
        self.rounds[width] = n + 1.0
        self._learned += 1
        if self._learned < 64 or self._learned % 8 == 0:  # by then one round changes little
            self._settle()
        else:
            scale = self.scale
            self.seconds = [scale * ratio for ratio in self._shape]

    def _settle(self) -> None:
        """Seconds by width, never falling: neighbours that contradict each other are averaged."""
        blocks: list[tuple[float, float, int]] = []  # ratio, weight, widths
        for width in range(1, len(self.ratios)):
            known = min(self.rounds[width], self.MEMORY) * 0.5 ** ((self._learned - self.seen[width]) / self.STALE)
            weight, count = known + self.PRIOR, 1
            ratio = (known * self.ratios[width] + self.PRIOR * self._first[width]) / weight
            while blocks and blocks[-1][0] > ratio:
                other, more, widths = blocks.pop()
                ratio = (ratio * weight + other * more) / (weight + more)
                weight, count = weight + more, count + widths
            blocks.append((ratio, weight, count))
        self._shape = [0.0]
        for ratio, _, count in blocks:
            self._shape += [ratio] * count
        self.seconds = [(self.scale or 1.0) * ratio for ratio in self._shape]

    def overdue(self, after: int, times: int = 0) -> bool:
        """Whether plain decoding has to be timed: everything is measured by it, and a change must be noticed.

        It has to where it was not timed ``times`` times yet, or not in the last ``after`` rounds.
        """
        return self.rounds[1] < times or self.checks > 0 or self._learned - self.seen[1] > after

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned, in lists."""
        return {name: getattr(self, name) for name in ("scale", "usual", "checks", "_learned")} | {
            "odd": list(self.odd),
            "seen": list(self.seen),
            "rounds": list(self.rounds),
            "ratios": list(self.ratios),
            "_shape": list(self._shape),
        }

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            setattr(self, name, value)
        self.seconds = [(self.scale or 1.0) * ratio for ratio in self._shape]


class DraftLine:
    """Seconds of one drafter's drafts by their length: a part that every draft has, and one for each token."""

    FADE = 0.95  # of what was learned, from draft to draft
    PRIOR = 0.5  # drafts of other lengths that the guess is worth: four fifths of a draft's seconds are its tokens'
    FEW = 3  # drafts that cannot make it dearer than one never played: the first ones are often slow
    ACCIDENT = 6.0  # times what is expected: slower is an accident, and if it is as much faster, what came before was

    def __init__(self) -> None:
        self.drafts = 0.0  # sums over drafts, faded: of 1, of lengths, of their squares, of seconds, of both multiplied
        self.lengths = self.squares = self.seconds = self.products = 0.0
        self.count = 0

    def learn(self, length: int, seconds: float) -> None:
        """A draft of so many tokens took so long."""
        if self.count:
            fixed, each = self.parts()
            expected = fixed + each * length
            if seconds * self.ACCIDENT < expected:
                self.drafts = self.lengths = self.squares = self.seconds = self.products = 0.0
            elif seconds > self.ACCIDENT * expected:
                seconds = self.ACCIDENT * expected
        keep = self.FADE
        self.drafts = keep * self.drafts + 1.0
        self.lengths = keep * self.lengths + length
        self.squares = keep * self.squares + length * length
        self.seconds = keep * self.seconds + seconds
        self.products = keep * self.products + length * seconds
        self.count += 1

    def parts(self) -> tuple[float, float]:
        """Seconds of every draft, and of each token of it."""
        n = self.drafts
        length, seconds = self.lengths / n, self.seconds / n
        spread = self.squares / n - length * length
        together = self.products / n - length * seconds
        most = seconds / length
        each = min(most, max(0.0, (together + self.PRIOR * 0.8 * most) / (spread + self.PRIOR)))
        return seconds - each * length, each


class DraftLatency:
    """Seconds of drafters that are models: of their drafts, and of catching up on tokens.

    Catching up on a hundred tokens takes hardly longer than on ten where they are read at once, so it is known by the
    power of two of their number, and a larger one never tried is expected to take no longer than the largest that was.
    """

    RATE = 0.1
    UNKNOWN = 0.05  # of the target's own seconds that a token of a drafter never played may take

    def __init__(self) -> None:
        self.lines: dict[str, DraftLine] = {}
        self.lags: dict[str, dict[int, float]] = {}  # drafter -> power of two -> seconds

    def parts(self, key: str, verify: float) -> tuple[float, float]:
        """Seconds of every draft of this kind, and of each token of it, where a step of the target takes ``verify``."""
        line = self.lines.get(key)
        if line is None:
            return 0.0, self.UNKNOWN * verify
        fixed, each = line.parts()
        if line.count < DraftLine.FEW:
            return 0.0, min(each, self.UNKNOWN * verify)
        return fixed, each

    def lag(self, drafter: str, tokens: int) -> float:
        """To catch up on so many tokens."""
        known = self.lags.get(drafter)
        if not tokens or not known:
            return 0.0
        size = tokens.bit_length()
        if size in known:
            return known[size]
        smaller = [other for other in known if other < size]
        return known[max(smaller)] if smaller else known[min(known)]

    def learn(self, key: str, length: int, seconds: float) -> None:
        """A draft took so long."""
        self.lines.setdefault(key, DraftLine()).learn(length, seconds)

    def caught_up(self, drafter: str, tokens: int, seconds: float) -> None:
        """Catching up took so long."""
        known, size = self.lags.setdefault(drafter, {}), max(1, tokens).bit_length()
        before = known.get(size)
        # an accident moves it no further than by half; if the first was one, the next puts it right
        slower = before is None or seconds > before
        rate = self.RATE if slower else 0.5
        known[size] = seconds if before is None else before + rate * (min(seconds, 6 * before) - before)

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned."""
        lags = {drafter: {str(size): known[size] for size in known} for drafter, known in self.lags.items()}
        return {"lines": {key: dict(vars(line)) for key, line in self.lines.items()}, "lags": lags}

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        self.lines = {}
        self.lags = {who: {int(size): s for size, s in known.items()} for who, known in saved["lags"].items()}
        for key, sums in saved["lines"].items():
            line = self.lines[key] = DraftLine()
            for name in vars(line):
                setattr(line, name, sums[name])


class ReferenceRate:
    """Tokens a second of late, for every size of batch (powers of 2): what a second is worth."""

    FADE = 0.99

    def __init__(self) -> None:
        self.sums: dict[int, tuple[float, float]] = {}  # tokens, seconds

    def at(self, count: int, otherwise: float) -> float:
        """In batches of this size; where none was seen, what else is known."""
        sums = self.sums.get(count.bit_length())
        return sums[0] / sums[1] if sums is not None else otherwise

    def learn(self, count: int, tokens: int, seconds: float) -> None:
        """One step more."""
        if seconds > 1e-9:
            size = count.bit_length()
            before, taken = self.sums.get(size, (0.0, 0.0))
            self.sums[size] = self.FADE * before + tokens, self.FADE * taken + seconds

    @property
    def saved(self) -> dict[int, tuple[float, float]]:
        """Everything learned."""
        return dict(self.sums)

    @saved.setter
    def saved(self, saved: dict[int, tuple[float, float]]) -> None:
        self.sums = {size: (sums[0], sums[1]) for size, sums in saved.items()}


class StepLatency:
    """What steps take, learned for every size of batch (powers of 2) and drawn towards what all sizes have in common.

    Before anything is known, a draft token takes 3 % of what a request takes of a step.
    """

    KEEP = 0.98  # of the evidence on one kind of step, with every further one
    RIDGE = 0.25  # steps of one draft token per request that the common fit is worth

    def __init__(self) -> None:
        self.all = LatencyFit()
        self.level = 0.0  # mean seconds of a step
        self.share = 0.0  # mean seconds of a step per request
        self.sizes: dict[int, LatencyFit] = {}

    def at(self, count: int) -> tuple[float, float, float]:
        """Seconds of a step in which so many requests draft nothing, per draft token, and for being ragged."""
        fit = self.sizes.get(1 << count.bit_length())
        theta = fit.theta if fit is not None and fit.theta else self.all.theta
        if not theta:
            return 1.0, 0.03 / count, 0.0
        a, b, c, r = theta
        return max(a + b * count, 1e-9), c, r

    def learn(self, count: int, drafted: int, full: int, seconds: float) -> None:
        """One step more: so many draft tokens of at most ``full`` for so many requests."""
        size, kind = 1 << count.bit_length(), kind_of(drafted, full)
        fit, common = self.sizes.setdefault(size, LatencyFit()), self.all
        fit.steps += 1
        if fit.steps == 1:  # the first step of a size may pay for what later ones find done
            return
        base, token, ragged = self.at(count)
        expected = base + token * drafted + (ragged if kind == RAGGED else 0.0)
        surprise = fit.judge(kind, seconds, expected)
        if surprise == ACCIDENT:
            seconds = expected + 4 * fit.errors[kind]
        elif surprise == FASTER:
            fit.forget(kind)
            common.forget(kind)
        keep = 0.5 if surprise == SLOWER else self.KEEP
        b, n, y = float(count), float(drafted), seconds
        step = (1.0, b, n, b * b, b * n, n * n, y, b * y, n * y)
        fit.add(keep, kind, step)
        if fit.steps > 16 and fit.steps % 8 and surprise != FASTER:  # by then one step changes little
            return
        common.steps += 1
        rate = max(1 / common.steps, 0.05)
        self.level += rate * (seconds - self.level)
        self.share += rate * (seconds / count - self.share)
        common.add(keep, kind, step)
        common.solve((1.0, 1.0, 1.0, 1.0), (self.level, 0.0, 0.03 * self.share, 0.0))
        squared = self.RIDGE * size * size
        fit.solve((self.RIDGE, squared, squared, self.RIDGE), common.theta)

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned, in lists."""
        sizes = {size: list(astuple(fit)) for size, fit in self.sizes.items()}
        return {"all": list(astuple(self.all)), "level": self.level, "share": self.share, "sizes": sizes}

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        self.all, self.level, self.share = LatencyFit(*saved["all"]), saved["level"], saved["share"]
        self.sizes = {size: LatencyFit(*fit) for size, fit in saved["sizes"].items()}


def kind_of(drafted: int, full: int) -> int:
    """What kind of step so many draft tokens make where ``full`` would be K for everybody."""
    return OFF_STEP if drafted == 0 else UNIFORM if drafted == full else RAGGED
