"""Runs of the transformers engine: arms alone and policies over them, prompt by prompt (`wager bench generate`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from reproduction.measured import device_name
from reproduction.perturb import lengthened
from reproduction.units import COLUMNS
from wager.core import OFF, Arm, Signal

if TYPE_CHECKING:
    from reproduction.workspace import Workspace
    from wager.bench.methods import Method, Target, TextGenerator
    from wager.bench.summary import Answer
    from wager.bench.workloads import Prompt


# The domain of each task that has a drafter of its own; the router is taught these.
DOMAIN = {
    "humaneval": "code",
    "debug_bench": "code",
    "math_reasoning": "math",
    "translation": "translation",
    "summarization": "summarization",
    "qa": "chat",
}


def classifier(workspace: Workspace, seed: int) -> Any:
    """A classifier of prompts by domain, taught on prompts that no experiment asks."""
    from wager.bench.routing import Classifier

    model, tokenizer = workspace.loaded()
    known = workspace.prompts(tuple(DOMAIN), 24 if workspace.has_data else 2, seed=seed, part="development")
    taught = [(DOMAIN[p.task], p.ids(tokenizer, 384, "cpu")[0].tolist()) for p in known]
    return Classifier(model.get_input_embeddings().weight, taught)


@dataclass(frozen=True, slots=True)
class Generated:
    """Real rounds of a real model, told prompt by prompt; a round counts as the median of its width in the run."""

    needs_model: ClassVar[bool] = True

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
    reset: bool = True  # policies begin anew with every prompt
    seeds: int = 5  # orders of the prompts

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

        model, tokenizer = workspace.loaded()
        asked = tokenize(self._prompts(workspace), tokenizer, self.prompt, model.device)
        found: dict[str, np.ndarray] = {}
        arms: dict[str, Counter[str]] = {}
        for seed in range(self.seeds):
            target, methods = self._target(model, tokenizer, seed), self._methods(workspace)
            generators = [method.make(target, self.arms) for method in methods]
            ordered = random.Random(seed).sample(asked, len(asked))
            run = Run(methods, ordered, [str(OFF), *self.arms], max_tokens=self.tokens, seed=seed)
            for i, (prompt, name) in enumerate(run.play(generators), 1):
                workspace.tell(f"order {seed + 1}, {prompt.prompt.task}: {name}", i, len(asked) * len(methods))
            by = {method.name: [run.answers[p.id, method.name] for p in asked] for method in methods}
            for name, columns in per_prompt(by).items():
                found[name] = found.get(name, 0.0) + columns / self.seeds
            for method in methods:
                counts = arms.setdefault(method.name, Counter())
                counts.update(str(r.arm) for answer in by[method.name] for r in answer.rounds)
        units = {name: dict(zip(COLUMNS, columns.T.tolist(), strict=True)) for name, columns in found.items()}
        shares = {p: {arm: n / arms[p].total() for arm, n in arms[p].most_common()} for p in arms if p in self.policies}
        labels = [prompt.prompt.task for prompt in asked]
        return {"labels": labels, "units": units, "seeds": self.seeds, "shares": shares, "arms": list(self.arms),
                "protocol": self._protocol(workspace, model, len(labels))}  # fmt: skip

    def _protocol(self, workspace: Workspace, model: Any, prompts: int) -> dict[str, str]:
        return {
            "target": workspace.model, "drafters": ", ".join(dict.fromkeys(a.rpartition(":")[0] for a in self.arms)),
            "reset": "every prompt" if self.reset else "never",
            "lengths": ", ".join(dict.fromkeys(a.rpartition(":")[2].partition("@")[0] for a in self.arms)),
            "tree": "trees" if any("@" in arm for arm in self.arms) else "chains", "tokens": f"at most {self.tokens}",
            "prompts": f"{prompts} in all", "seeds": str(self.seeds), "temperature": f"{self.temperature:g}",
            "hardware": device_name(model.device),
        }  # fmt: skip

    def _prompts(self, workspace: Workspace) -> list[Prompt]:
        from wager.bench.workloads import Prompt

        if self.words:
            joined = []
            for task in self.tasks:
                texts = [p.text for p in workspace.prompts((task,), 6 * self.count, seed=0)]
                each = max(1, len(texts) // self.count)
                parts = [texts[i * each : (i + 1) * each] for i in range(self.count)]
                joined += [Prompt(task, lengthened(part, self.words)) for part in parts if part]
            return joined
        part = "test" if self.route else "all"
        chosen = workspace.prompts(self.tasks, self.count, seed=0, part=part)
        if self.rephrase:
            chosen = workspace.rephrased(chosen, 0)
        return chosen

    def _target(self, model: Any, tokenizer: Any, seed: int) -> Target:
        from wager.bench.methods import Target

        if not self.temperature:
            return Target(model, tokenizer, seed=seed)
        settings = {"do_sample": True, "temperature": self.temperature, "top_k": 0}
        return Target(model, tokenizer, seed=seed, sampling="residual", settings=settings)  # the papers' rule

    def _methods(self, workspace: Workspace) -> list[Method]:
        from wager.bench.methods import arm_method, router_method

        alone = [arm for arm in self.arms if self.alone is None or arm in self.alone]
        methods = [arm_method(OFF), *(_with_overlap(Arm.parse(arm)) for arm in alone)]
        methods += [_policy(policy, self.reset) for policy in self.policies]
        if self.window:
            methods += [_policy(policy, self.reset, self.window) for policy in self.policies]
        return [*methods, router_method(classifier(workspace, 0))] if self.route else methods


def _with_overlap(arm: Arm) -> Method:
    """The arm all the time, and its overlap with the target, which a fixed arm need not know."""
    from wager.bench.methods import Method, wager_generator
    from wager.policies import build, fixed

    def make(target: Target, arms: Sequence[str]) -> TextGenerator:
        policy = build(fixed(arm), (OFF, arm))
        policy.needs = frozenset() if arm.tree else frozenset({Signal.OVERLAP})
        return wager_generator(str(arm), target, policy, [str(arm)])

    return Method(str(arm), "arm", make)


def _policy(policy: str, reset: bool, window: int = 0) -> Method:
    """A policy that begins anew with every prompt; ``window``: its heads see the first few and so many last entries."""
    from wager.bench.methods import Method, decoder_generator
    from wager.decoding.decoder import Decoder
    from wager.eagle.drafter import Eagle

    name = f"{policy} window" if window else policy

    def make(target: Target, arms: Sequence[str]) -> TextGenerator:
        drafters = [
            Eagle(d.head.file.folder, d.name, window=window) if window and isinstance(d, Eagle) else d
            for d in target.drafters(arms)
        ]
        shared: dict[str, Any] = {"tokens": target.tokens, "seed": target.seed, "sampling": target.sampling}
        decoder = Decoder(target.model, drafters=drafters, policy=policy, arms=arms, reset_per_request=reset, **shared)
        return decoder_generator(name, decoder, target)

    return Method(name, "policy", make)


def per_prompt(by: dict[str, list[Answer]]) -> dict[str, np.ndarray]:
    """For every method the columns of a comparison, one row a prompt; stalls are taken out of the seconds."""
    from wager.bench.summary import RoundTimes

    times, found = RoundTimes(by), {}
    for name, answers in by.items():
        rows = []
        for answer in answers:
            emitted, drafted, accepted = (
                sum(getattr(r, c) for r in answer.rounds) for c in ("emitted", "drafted", "accepted")
            )
            speed = times.speed(name, [answer])
            rows.append((emitted, len(answer.rounds), emitted / speed if speed else answer.seconds, drafted, accepted))
        found[name] = np.array(rows, dtype=float)
    return found
