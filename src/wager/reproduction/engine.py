"""Runs of the transformers engine: arms alone and policies over them, prompt by prompt (`wager bench generate`)."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wager.core import OFF, Arm, Signal
from wager.reproduction.perturb import lengthened
from wager.reproduction.recorded import classifier, fixed

if TYPE_CHECKING:
    from wager.bench.peers import Method
    from wager.bench.workloads import Prompt
    from wager.policies.base import Policy
    from wager.reproduction.tools import Tools

ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Generated:
    """Real rounds of a real model; besides what the command's file holds, every round's arm, tokens and overlap."""

    tasks: tuple[str, ...]
    count: int  # prompts a task
    tokens: int
    arms: tuple[str, ...]
    policies: tuple[str, ...]
    temperature: float = 0.0
    prompt: int = 192  # tokens; longer ones are cut
    rephrase: bool = False
    route: bool = False  # also the drafter that a classifier of prompts picks once
    words: int = 0  # prompts are joined to this many words
    window: int = 0  # also policies over heads that see so many entries only
    alone: tuple[str, ...] | None = None  # the arms that are also run alone; None: all
    seed: int = 0

    @property
    def command(self) -> str:
        named = [f"--task {task}" for task in self.tasks] + [f"--policy {policy}" for policy in self.policies]
        extra = [f"--temperature {self.temperature:g} --sampling residual"] if self.temperature else []
        extra += ["--router training/smollm2-135m.toml --corpora CORPORA"] if self.route else []
        notes = {"prompts rephrased": self.rephrase, "prompts joined": self.words, "heads with a window": self.window}
        said = "; ".join(note for note, holds in notes.items() if holds)
        return " ".join(
            [
                f"wager bench generate --arms {','.join(self.arms)} --no-plain --shuffle",
                *named,
                f"--prompts {self.count} --max-tokens {self.tokens} --longest-prompt {self.prompt}",
                *extra,
                *([f"({said})"] if said else []),
            ]
        )

    def __call__(self, tools: Tools) -> dict[str, Any]:
        from wager.bench import peers

        model, tokenizer = tools.loaded()
        chosen = self._prompts(tools)
        methods = self._methods(tools)
        asked = [(prompt, prompt.ids(tokenizer, self.prompt, model.device)) for prompt in chosen]
        total = len(asked) * len(methods)
        for i, (prompt, name) in enumerate(peers.play(methods, asked, self.tokens, seed=self.seed), 1):
            tools.tell(f"{prompt.task}: {name}", i, total)
        tasks = [prompt.task for prompt in chosen]
        rows = peers.summarize(methods, tasks)
        whole = _steady(methods, tasks, None)
        by_task = {task: _steady(methods, tasks, task) for task in dict.fromkeys(tasks)}
        for row in rows:
            row["steady"] = whole[row["method"]]
            for task, own in row["tasks"].items():
                own["steady"] = by_task[task][row["method"]]
        return {"methods": rows, "prompts": len(asked), "rounds": {m.name: _rounds(m, tasks) for m in methods}}

    def _prompts(self, tools: Tools) -> list[Prompt]:
        from wager.bench.workloads import Prompt

        if self.words:
            joined = []
            for task in self.tasks:
                texts = [p.text for p in tools.prompts((task,), 6 * self.count, seed=self.seed)]
                each = max(1, len(texts) // self.count)
                parts = [texts[i * each : (i + 1) * each] for i in range(self.count)]
                joined += [Prompt(task, lengthened(part, self.words)) for part in parts if part]
            return joined
        part = "test" if self.route else "all"
        chosen = tools.prompts(self.tasks, self.count, seed=self.seed, part=part)
        if self.rephrase:
            chosen = tools.rephrased(chosen, self.seed)
        random.Random(self.seed).shuffle(chosen)
        return chosen

    def _methods(self, tools: Tools) -> list[Method]:
        from wager.bench.peers import OURS, wager_method
        from wager.bench.routing import Routed
        from wager.decoding.arms import build_drafters
        from wager.decoding.choosing import RESIDUAL
        from wager.policies import build

        model, tokenizer = tools.loaded()
        how: dict[str, Any] = (
            {"do_sample": True, "temperature": self.temperature, "top_k": 0, "sampling": RESIDUAL}  # the papers' rule
            if self.temperature
            else {}
        )
        given = [Arm.parse(arm) for arm in self.arms]

        def made(names: Sequence[str], window: int = 0) -> list[Any]:
            built = list(build_drafters(list(dict.fromkeys(names)), model, tokenizer).values())
            return [_windowed(drafter, window) for drafter in built] if window else built

        def alone(arm: Arm) -> Policy:
            """The arm all the time, and its overlap with the target, which a fixed arm need not know."""
            policy = build(fixed(arm) + (f",tree={arm.tree}" if arm.tree else ""), (OFF, arm))
            policy.needs = frozenset() if arm.tree else frozenset({Signal.OVERLAP})
            return policy

        every = [arm.drafter for arm in given]
        methods = [wager_method(OURS, model, "off", [], [str(OFF)], **how)]
        methods += [
            wager_method(f"wager {arm}", model, alone(arm), made([arm.drafter]), [str(arm)], **how)
            for arm in given
            if self.alone is None or str(arm) in self.alone
        ]
        methods += [wager_method(f"wager {p}", model, p, made(every), list(self.arms), **how) for p in self.policies]
        if self.window:
            methods += [
                wager_method(f"wager {p} window", model, p, made(every, self.window), list(self.arms), **how)
                for p in self.policies
            ]
        if self.route:
            routed, classify = Routed(given), classifier(tools, self.seed)
            before: Callable[[list[int]], None] = lambda ids: routed.take(classify(ids))  # noqa: E731
            methods.append(
                wager_method(f"wager {ROUTER}", model, routed, made(every), list(self.arms), before=before, **how)
            )
        return methods


def _windowed(drafter: Any, window: int) -> Any:
    """The same head, which sees the first few and the last so many entries only."""
    from wager.drafters.eagle import Eagle

    return Eagle(drafter.head.file.folder, drafter.name, window=window) if isinstance(drafter, Eagle) else drafter


def _rounds(method: Method, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Of every answer: its task, and each round's arm, tokens drafted, accepted and emitted, and summed overlap."""
    return [
        {
            "task": task,
            "rounds": [
                [str(r.arm), r.drafted, r.accepted, r.emitted, round(sum(r.overlap), 4) if r.overlap else None]
                for r in answer.rounds
            ],
        }
        for task, answer in zip(tasks, method.answers, strict=True)
    ]


def _steady(methods: Sequence[Method], tasks: Sequence[str], only: str | None) -> dict[str, float]:
    """Tokens a second over plain decoding's, every round counted as the run's median of its kind; of one task or all.

    As `wager.bench.peers.steady`, but medians are of all tasks where only one is asked about.
    """
    verify: dict[Any, list[float]] = {}
    draft: dict[Any, list[float]] = {}
    own: dict[str, list[float]] = {}
    for method in methods:
        for answer in method.answers:
            if answer.rounds:
                own.setdefault(method.name, []).append(answer.own / len(answer.rounds))
            for r in answer.rounds:
                verify.setdefault(r.drafted, []).append(r.verify_seconds)
                draft.setdefault((method.name, r.arm.drafter, r.drafted), []).append(r.draft_seconds + r.lag_seconds)
    verifying = {k: statistics.median(v) for k, v in verify.items()}
    drafting = {k: statistics.median(v) for k, v in draft.items()}
    speeds: dict[str, float] = {}
    for method in methods:
        rounds = [
            r
            for task, answer in zip(tasks, method.answers, strict=True)
            if only is None or task == only
            for r in answer.rounds
        ]
        each = statistics.median(own.get(method.name, [0.0]))
        seconds = sum(verifying[r.drafted] + drafting[method.name, r.arm.drafter, r.drafted] + each for r in rounds)
        speeds[method.name] = sum(r.emitted for r in rounds) / seconds if seconds else 0.0
    plain = speeds[methods[0].name]
    return {name: round(speed / plain, 4) if plain else 1.0 for name, speed in speeds.items()}
