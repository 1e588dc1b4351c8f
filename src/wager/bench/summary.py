"""An answer that was timed, and what many come to: speed-ups with intervals, tokens a round, regret, arms, texts."""

import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from wager.core import Round

RESAMPLES = 2000
Interval = list[float]  # its two ends, rounded
Answers = Mapping[tuple[str, str], "Answer"]  # by the prompt's id and the method's name
EVERY = "all"  # stands for all tasks together
FIXED = ("off", "arm")  # kinds of methods that play one arm throughout
PARTS = 10  # of a method's rounds, over which arms are counted
MEDIANS = ("median_over_off", "median_interval", "steady", "steady_interval")  # which no single stall decides
# What by_method tells of a single task.
OF_A_TASK = ("speedup", "median_speedup", *MEDIANS, "mat", "by_prompt", "arms", "arms_over_rounds")


@dataclass(frozen=True, slots=True)
class Answer:
    """One method's answer to one prompt."""

    tokens: list[int]
    seconds: float  # the whole call, the prompt's own forward included
    forwards: int  # of the target, that one included
    rounds: Sequence[Round] = ()  # wager's own methods: how it came about
    own: float = 0.0  # seconds that were neither prompt nor drafter nor target
    prefill_seconds: float = 0.0  # until the first token was there, and of timing rounds at a Decoder's first prompt
    pieces: list[Any] | None = None  # its tokens one by one, for the report
    texts: int = 1  # that these are the sums of


def joined(repeated: Sequence[Answer]) -> Answer:
    """Several answers to one prompt as one: the tokens, seconds and rounds of all."""
    return Answer(
        [token for answer in repeated for token in answer.tokens],
        sum(answer.seconds for answer in repeated),
        sum(answer.forwards for answer in repeated),
        [played for answer in repeated for played in answer.rounds],
        sum(answer.own for answer in repeated),
        sum(answer.prefill_seconds for answer in repeated),
        texts=sum(answer.texts for answer in repeated),
    )


def tokens_per_second(answers: Sequence[Answer]) -> float:
    """Tokens of all answers over their seconds."""
    return sum(len(a.tokens) for a in answers) / sum(a.seconds for a in answers)


def ratio(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    return tokens_per_second(ours) / tokens_per_second(theirs)


def mat(answers: Sequence[Answer]) -> float:
    """Tokens per forward after the prompt's own, which gives the first."""
    rounds = sum(a.forwards - a.texts for a in answers)
    return sum(len(a.tokens) - a.texts for a in answers) / rounds if rounds else 1.0


def regret(ours: Sequence[Answer], best: Sequence[Answer]) -> float:
    """Seconds beyond those that ``best`` would have taken for as many tokens."""
    return sum(a.seconds for a in ours) - sum(len(a.tokens) for a in ours) / tokens_per_second(best)


def ratio_interval(ours: Sequence[Answer], theirs: Sequence[Answer], *, seed: int = 0) -> Interval | None:
    """The 95 % interval of the ratio, by bootstrap over prompts; None for a single one, which tells no spread."""
    (tokens, seconds), (other_tokens, other_seconds) = (_resampled(answers, seed) for answers in (ours, theirs))
    return _middle((tokens / seconds) / (other_tokens / other_seconds)) if len(ours) > 1 else None


def regret_interval(
    ours: Sequence[Answer], best: Sequence[Answer], *, seed: int = 0, among: int = 1
) -> Interval | None:
    """The 95 % interval of the regret, by bootstrap over prompts; None for a single one."""
    # ``best`` was picked ``among`` so many by these very answers, and the luckiest of many looks better than it is: the
    # interval is as wide as it takes to hold for all of them at once (Bonferroni).
    (tokens, seconds), (best_tokens, best_seconds) = (_resampled(answers, seed) for answers in (ours, best))
    return _middle(seconds - tokens * best_seconds / best_tokens, among) if len(ours) > 1 else None


def paired_median(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> tuple[float, Interval | None]:
    """The median over prompts of the ratio of two methods' speeds, and its 95 % interval by bootstrap over prompts.

    Methods answer a prompt one after the other, so a machine that is slow for a while slows both.
    """
    ratios = np.array(ours, float) / np.array(theirs, float)
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    return float(np.median(ratios)), _middle(np.median(ratios[drawn], axis=1)) if len(ratios) > 1 else None


def _resampled(answers: Sequence[Answer], seed: int) -> np.ndarray:
    """Tokens and seconds summed over prompts drawn with replacement, (2, resamples); the same draws for all methods."""
    known = np.array([[len(a.tokens) for a in answers], [a.seconds for a in answers]], dtype=float)
    sums: np.ndarray = known @ _times_drawn(len(answers), seed)
    return sums


@lru_cache(maxsize=4)
def _times_drawn(count: int, seed: int) -> np.ndarray:
    """How often each prompt is drawn in each resample, (count, resamples)."""
    draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    places = draws + count * np.arange(RESAMPLES)[:, None]
    return np.bincount(places.ravel(), minlength=RESAMPLES * count).reshape(RESAMPLES, count).T.astype(float)


def _middle(values: np.ndarray, among: int = 1) -> Interval:
    return [round(float(end), 4) for end in np.quantile(values, (0.025 / among, 1 - 0.025 / among))]


def summarize(
    methods: Sequence[Mapping[str, str]], prompts: Sequence[Mapping[str, Any]], answers: Answers, *, seed: int = 0
) -> dict[str, Any]:
    """Every method's figures against the first method's, for all prompts and for each task.

    Only prompts that every method has answered count. Regret is in seconds, against the fixed arm (``off`` is one) that
    was the fastest over the same prompts; intervals are by bootstrap over prompts, seeded; quartiles are of single
    prompts' speed-ups. ``steady`` is the speed-up over ``off`` with stalls taken out.
    """
    names = [method["name"] for method in methods]
    tasks: dict[str, list[str]] = {}
    for prompt in prompts:
        if all((prompt["id"], name) in answers for name in names):
            tasks.setdefault(prompt["task"], []).append(prompt["id"])
    every = [prompt["id"] for prompt in prompts if prompt["id"] in tasks.get(prompt["task"], ())]
    by = {name: [answers[at, name] for at in every] for name in names}
    times = RoundTimes(by)
    undrafted = [m["name"] for m in methods if m["name"] == names[0] or m["kind"] == "off"]
    told = [_task(EVERY, methods, by, times, seed)] if every else []
    for task, ids in tasks.items():  # one of the user's may be called as all of them are
        told.append(_task(task, methods, {name: [answers[at, name] for at in ids] for name in names}, times, seed))
    unsteady = max(_unsteady(by[name]) for name in undrafted)
    return {"base": names[0], "prompts": len(every), "tasks": told, "unsteady": unsteady}


def by_method(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A summary's rows by method: the figures of all prompts, and in ``tasks`` some of each task."""
    if not summary["tasks"]:
        return []
    every, *tasks = summary["tasks"]
    return [
        {**row, "tasks": {task["task"]: {key: task["methods"][i][key] for key in OF_A_TASK} for task in tasks}}
        for i, row in enumerate(every["methods"])
    ]


def _task(
    task: str, methods: Sequence[Mapping[str, str]], by: Mapping[str, list[Answer]], times: "RoundTimes", seed: int
) -> dict[str, Any]:
    plain = by[methods[0]["name"]]
    fixed = [method["name"] for method in methods if method["kind"] in FIXED]
    best = max(fixed, key=lambda name: tokens_per_second(by[name]), default=None)
    off = next((method["name"] for method in methods if method["kind"] == "off"), None)
    rows = []
    for name, kind in ((method["name"], method["kind"]) for method in methods):
        ours = by[name]
        row: dict[str, Any] = {"method": name, "kind": kind, **_figures(ours, plain, seed)}
        row |= dict.fromkeys(("regret_seconds", "regret_interval", "over_off", "over_off_interval", *MEDIANS))
        if off is not None and kind in ("arm", "policy"):  # over wager's own plain decoding: what drafts bring
            row["over_off"] = ratio(ours, by[off])
            row["over_off_interval"] = ratio_interval(ours, by[off], seed=seed)
        if best is not None and kind in (*FIXED, "policy"):
            row["regret_seconds"] = regret(ours, by[best])
            row["regret_interval"] = regret_interval(ours, by[best], seed=seed, among=len(fixed))
        row["by_prompt"] = {"tokens_per_second": _rounded(ours), "mat": [round(mat([a]), 4) for a in ours]}
        if off is not None:
            row |= _medians_over(ours, by[off], name, off, times, seed)
        rows.append({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return {"task": task, "prompts": len(plain), "best_arm": best, "methods": rows}


def _rounded(answers: Iterable[Answer]) -> list[float]:
    return [round(tokens_per_second([answer]), 4) for answer in answers]


def _medians_over(
    ours: Sequence[Answer], off: Sequence[Answer], name: str, off_name: str, times: "RoundTimes", seed: int
) -> dict[str, Any]:
    """A method's speed over plain decoding's that no single stall decides: of whole answers, and of median rounds."""
    raw = [[tokens_per_second([answer]) for answer in answers] for answers in (ours, off)]
    told: dict[str, Any] = dict(zip(MEDIANS[:2], paired_median(*raw, seed=seed), strict=True))
    whole = times.speed(name, ours), times.speed(off_name, off)
    if whole[0] and whole[1]:
        told["steady"] = whole[0] / whole[1]
        single = [[times.speed(who, [a]) for a in answers] for who, answers in ((name, ours), (off_name, off))]
        pairs = [(a, b) for a, b in zip(*single, strict=True) if a and b]
        told["steady_interval"] = paired_median(*zip(*pairs, strict=True), seed=seed)[1] if pairs else None
    return told


def _figures(ours: Sequence[Answer], plain: Sequence[Answer], seed: int) -> dict[str, Any]:
    """What follows from a method's answers and the first method's."""
    single = [ratio([a], [b]) for a, b in zip(ours, plain, strict=True)]
    low, middle, high = statistics.quantiles(single, n=4, method="inclusive") if len(single) > 1 else single * 3
    rounds = [r for a in ours for r in a.rounds]
    return {
        **{"prompts": len(ours), "tokens": sum(len(a.tokens) for a in ours), "seconds": sum(a.seconds for a in ours)},
        **{"speedup": ratio(ours, plain), "median_speedup": middle, "quartiles": [round(low, 4), round(high, 4)]},
        "interval": ratio_interval(ours, plain, seed=seed) if ours is not plain else None,
        **{"mat": mat(ours), "tokens_per_second": tokens_per_second(ours)},
        "different_texts": sum(a.tokens != b.tokens for a, b in zip(ours, plain, strict=True)),
        **{"arms": _shares(rounds), "arms_over_rounds": _over_rounds(rounds)},
    }


def _shares(rounds: Sequence[Round]) -> dict[str, float]:
    """The share of rounds each arm was played in, the most frequent first."""
    counts = Counter(r.arm.label for r in rounds)
    return {arm: round(count / counts.total(), 4) for arm, count in counts.most_common()}


def _over_rounds(rounds: Sequence[Round]) -> list[dict[str, float]]:
    """The shares in each tenth of the rounds, first to last; empty where there are too few or one arm has them all."""
    if len(rounds) < PARTS or len({r.arm for r in rounds}) == 1:
        return []
    edges = [len(rounds) * part // PARTS for part in range(PARTS + 1)]
    return [_shares(rounds[first:last]) for first, last in pairwise(edges)]


def _unsteady(plain: Sequence[Answer]) -> float:
    """How many times as fast decoding without drafts was on its fastest prompt as on its slowest."""
    # Every token after the first takes one forward, so what differs is the machine.
    timed = [(a.seconds - a.prefill_seconds, len(a.tokens) - a.texts) for a in plain]
    paces = [seconds / tokens for seconds, tokens in timed if tokens > 0 and seconds > 0]
    return round(max(paces) / min(paces), 2) if paces else 1.0


class RoundTimes:
    """Median seconds of a run's rounds: on a shared machine one stall outweighs every difference between two methods.

    A round counts as the median of all rounds of the run that verified as many tokens, its drafting as the method's own
    median for as many tokens, and so does the rest. Which rounds a method played stays as it was.
    """

    def __init__(self, by: Mapping[str, Sequence[Answer]]) -> None:
        rounds = [(name, r) for name, answers in by.items() for a in answers for r in a.rounds]
        self.verifying = _medians((r.drafted, r.verify_seconds) for _, r in rounds)
        self.drafting = _medians(((n, r.arm.drafter, r.drafted), r.draft_seconds + r.lag_seconds) for n, r in rounds)
        self.own = _medians((n, a.own / len(a.rounds)) for n, answers in by.items() for a in answers if a.rounds)

    def speed(self, name: str, answers: Sequence[Answer]) -> float | None:
        """Tokens a second of a method's rounds; None where it has none."""
        rounds = [r for a in answers for r in a.rounds]
        drafting = sum(self.drafting[name, r.arm.drafter, r.drafted] for r in rounds)
        seconds = drafting + sum(self.verifying[r.drafted] + self.own[name] for r in rounds)
        return sum(r.emitted for r in rounds) / seconds if seconds else None


def _medians(pairs: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    found: dict[Hashable, list[float]] = {}
    for key, seconds in pairs:
        found.setdefault(key, []).append(seconds)
    return {key: statistics.median(seconds) for key, seconds in found.items()}
