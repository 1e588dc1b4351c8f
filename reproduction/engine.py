"""Runs of the transformers engine: arms alone and policies over them, prompt by prompt (`wager bench generate`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reproduction.perturb import lengthened
from reproduction.recorded import classifier
from wager.core import OFF, Arm, Signal

if TYPE_CHECKING:
    from reproduction.workspace import Workspace
    from wager.bench.methods import Method, Target, TextGenerator
    from wager.bench.summary import Answer
    from wager.bench.workloads import Prompt


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

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        from wager.bench.runs import Run, tokenize
        from wager.bench.summary import by_method

        model, tokenizer = workspace.loaded()
        asked = tokenize(self._prompts(workspace), tokenizer, self.prompt, model.device)
        target, methods = self._target(model, tokenizer), self._methods(workspace)
        generators = [method.make(target, self.arms) for method in methods]
        run = Run(methods, asked, [str(OFF), *self.arms], max_tokens=self.tokens, seed=self.seed)
        total = len(asked) * len(methods)
        for i, (prompt, name) in enumerate(run.play(generators), 1):
            workspace.tell(f"{prompt.prompt.task}: {name}", i, total)
        rounds = {
            method.name: [_rounds(p.prompt.task, run.answers[p.id, method.name]) for p in asked] for method in methods
        }
        return {"methods": by_method(run.summary()), "prompts": len(asked), "rounds": rounds}

    def _prompts(self, workspace: Workspace) -> list[Prompt]:
        from wager.bench.workloads import Prompt

        if self.words:
            joined = []
            for task in self.tasks:
                texts = [p.text for p in workspace.prompts((task,), 6 * self.count, seed=self.seed)]
                each = max(1, len(texts) // self.count)
                parts = [texts[i * each : (i + 1) * each] for i in range(self.count)]
                joined += [Prompt(task, lengthened(part, self.words)) for part in parts if part]
            return joined
        part = "test" if self.route else "all"
        chosen = workspace.prompts(self.tasks, self.count, seed=self.seed, part=part)
        if self.rephrase:
            chosen = workspace.rephrased(chosen, self.seed)
        random.Random(self.seed).shuffle(chosen)
        return chosen

    def _target(self, model: Any, tokenizer: Any) -> Target:
        from wager.bench.methods import Target

        if not self.temperature:
            return Target(model, tokenizer, seed=self.seed)
        settings = {"do_sample": True, "temperature": self.temperature, "top_k": 0}
        return Target(model, tokenizer, seed=self.seed, sampling="residual", settings=settings)  # the papers' rule

    def _methods(self, workspace: Workspace) -> list[Method]:
        from wager.bench.methods import arm_method, policy_method, router_method

        alone = [arm for arm in self.arms if self.alone is None or arm in self.alone]
        methods = [arm_method(OFF), *(_with_overlap(Arm.parse(arm)) for arm in alone)]
        methods += [policy_method(policy) for policy in self.policies]
        if self.window:
            methods += [_windowed(policy, self.window) for policy in self.policies]
        return [*methods, router_method(classifier(workspace, self.seed))] if self.route else methods


def _with_overlap(arm: Arm) -> Method:
    """The arm all the time, and its overlap with the target, which a fixed arm need not know."""
    from wager.bench.methods import Method, wager_generator
    from wager.policies import build, fixed

    def make(target: Target, arms: Sequence[str]) -> TextGenerator:
        policy = build(fixed(arm), (OFF, arm))
        policy.needs = frozenset() if arm.tree else frozenset({Signal.OVERLAP})
        return wager_generator(str(arm), target, policy, [str(arm)])

    return Method(str(arm), "arm", make)


def _windowed(policy: str, window: int) -> Method:
    """A policy over heads that see the first few and the last so many entries only."""
    from wager.bench.methods import Method, wager_generator
    from wager.eagle.drafter import Eagle

    name = f"{policy} window"

    def make(target: Target, arms: Sequence[str]) -> TextGenerator:
        drafters = [
            Eagle(d.head.file.folder, d.name, window=window) if isinstance(d, Eagle) else d
            for d in target.drafters(arms)
        ]
        return wager_generator(name, target, policy, arms, drafters=drafters)

    return Method(name, "policy", make)


def _rounds(task: str, answer: Answer) -> dict[str, Any]:
    """Of an answer: its task, and each round's arm, tokens drafted, accepted and emitted, and summed overlap."""
    rounds = [
        [str(r.arm), r.drafted, r.accepted, r.emitted, round(sum(r.overlap), 4) if r.overlap else None]
        for r in answer.rounds
    ]
    return {"task": task, "rounds": rounds}
