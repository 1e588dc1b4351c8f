"""`wager bench generate`: transformers' own methods, fixed arms and policies on the same prompts."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from wager.bench import methods as made
from wager.bench import verdict
from wager.bench.methods import Method
from wager.bench.repeats import Repeats
from wager.bench.runs import Run
from wager.bench.summary import by_method
from wager.bench.workloads import PARTS, TASKS, chat_ids, prompts
from wager.cli import options as given
from wager.cli.files import Output
from wager.cli.options import Workload
from wager.cli.parameters import opt, options, parse_ints
from wager.cli.screen import stage
from wager.cli.suite import fitted, progress, show
from wager.core import OFF, Arm, require
from wager.policies import build
from wager.policies.base import PAPER, RESETS

POLICIES = ("auto", "ucbspec", "meta-ucb", "analytical", "nightjar", "kl-ucb:reward=goodput")
ALONE = {"suffix": (2, 4, 8), "prompt-lookup": (4, 8), "retrieval": (4,), "draft-model": (3,)}  # lengths run alone
CLASSIFIED = 300  # prompts of a domain that the router's classifier is fitted to
Classify = Callable[[list[int]], str]  # tokens of a prompt -> its domain


@dataclass(frozen=True, slots=True)
class Tasks(Workload):
    """Which prompts, and in which order."""

    task: list[str] | None = opt(None, "Task to run; repeat it.", shown="all eight")
    part: str = opt("all", f"Of the tasks' prompts: {', '.join(PARTS)}.")
    shuffle: bool = opt(False, "Prompts of all tasks in one shuffled row.")
    seed: int = opt(0, "For prompts, their order, policies and sampled texts.")
    reset: given.Reset = PAPER
    repeats: int = opt(1, "Times that all prompts are answered; policies and drafters start anew with each.", min=1)

    def __post_init__(self) -> None:
        require(self.part in PARTS, f"--part is {', '.join(PARTS[:-1])} or {PARTS[-1]}, not {self.part!r}")
        require(self.reset in RESETS, f"--reset is {' or '.join(RESETS)}, not {self.reset!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """The methods to compare, refused where they cannot be run before a model is loaded."""

    policy: list[str] | None = opt(None, "Policy to run; repeat it.", "--policy", "-p", shown="six")
    lengths: str = opt("", "Lengths that policies choose from.", shown="those of the fixed arms")
    datastore: Path | None = opt(None, "Also the retrieval drafter, over this datastore.")
    layers: int = opt(8, "Layers of the target that draft; 0: none.", "--draft-layers", min=0)
    arms: str = opt("", "Instead: these arms, each alone, and policies over them; such as eagle:ofa:4,suffix:8.")
    alone: str = opt("", "With --arms: further arms to run alone, which no policy chooses from.")
    drafter: list[str] | None = opt(None, "With --arms: a drafter with a value, such as retrieval=PATH; repeat it.")
    plain: bool = opt(True, "With --arms: compare with transformers too, or with off only.", "--plain/--no-plain")
    temperature: float = opt(0.0, "With --arms: sample at this; 0 is greedy.", min=0.0)
    sampling: str = opt("shared-noise", "With --temperature: how tokens are drawn, shared-noise or residual.")
    router: Path | None = opt(None, "With --arms: also a classifier of prompts that picks the drafter; a plan.")
    corpora: Path = opt(Path("."), "Folder the router's files are in.")

    def __post_init__(self) -> None:
        from wager.decoding.sampler import RULES

        for arm in (*_listed(self.arms), *_listed(self.alone)):
            Arm.parse(arm)
        for spec in self.policy or POLICIES:
            build(spec, (OFF, Arm("suffix", 2), Arm("suffix", 4)), tokens=100)
        require(self.sampling in RULES, f"--sampling is {' or '.join(RULES)}, not {self.sampling!r}")
        require(bool(self.arms) or not self.temperature, "--temperature needs --arms: without them all is greedy")
        self.free_lengths()
        more = {"--alone": self.alone, "--drafter": self.drafter, "--no-plain": not self.plain, "--router": self.router}
        if idle := next((name for name, given in more.items() if given and not self.arms), None):
            raise ValueError(f"{idle} does nothing without --arms; leave it out, or name the arms")
        require(not self.lengths or not self.arms, "--lengths does nothing beside --arms; leave one of them out")

    def free_lengths(self) -> tuple[int, ...]:
        """Lengths that policies choose from where no arms are named."""
        return parse_ints(self.lengths, "--lengths") if self.lengths else ()

    def methods(self, draft: Any, classify: Classify | None) -> tuple[list[Method], list[str]]:
        """The methods, and the arms that policies choose from; ``draft`` is a model that drafts, if there is one."""
        plain = [made.transformers_method(made.PLAIN)] if self.plain or not self.arms else []
        arms, fixed = list(dict.fromkeys(_listed(self.arms))), [*_listed(self.arms), *_listed(self.alone)]
        if not self.arms:
            plain.append(made.transformers_method(made.LOOKUP))
            names = ["suffix", "prompt-lookup", *(["retrieval"] if self.datastore is not None else [])]
            if draft is not None:
                plain.append(made.transformers_method(made.ASSISTED))
                names.append("draft-model")
            fixed = [f"{name}:{length}" for name in names for length in ALONE[name]]
            arms = [f"{name}:{length}" for name in names for length in self.free_lengths() or ALONE[name]]
        found = [*plain, made.arm_method(OFF), *(made.arm_method(Arm.parse(arm)) for arm in fixed)]
        found += [made.router_method(classify)] if classify is not None else []
        return list(dict.fromkeys([*found, *map(made.policy_method, self.policy or POLICIES)])), arms

    def json(self) -> dict[str, Any]:
        compared = {"arms": _listed(self.arms), "alone": _listed(self.alone), "policies": self.policy or POLICIES}
        drawn = {"draft_layers": self.layers, "temperature": self.temperature, "sampling": self.sampling}
        return {**compared, "plain": self.plain, "lengths": self.free_lengths(), **drawn}


@options
def generation(target: given.Target, tasks: Tasks, plan: Plan, output: Output) -> None:
    """Run transformers' own methods, wager's fixed arms and its policies on the same prompts, interleaved."""
    chosen = prompts(tasks.data, tasks=tasks.task or TASKS, count=tasks.count, seed=tasks.seed, part=tasks.part)
    if tasks.shuffle:
        random.Random(tasks.seed).shuffle(chosen)
    from wager.bench.draft_models import truncated
    from wager.bench.engine import described

    with stage(f"loading {target.model} …"):
        model, tokenizer = target.load()
    asked = fitted(chosen, target.model, model, tokenizer, tasks.tokens, tasks.longest)
    how = {"do_sample": True, "temperature": plan.temperature, "top_k": 0} if plan.temperature else {}
    classify = _classifier(plan.router, plan.corpora, model, tokenizer) if plan.router is not None else None
    draft = truncated(model, plan.layers) if plan.layers and not plan.arms else None
    specs = [*([] if plan.datastore is None else [f"retrieval={plan.datastore}"]), *(plan.drafter or ())]
    drawn: dict[str, Any] = {"seed": tasks.seed, "sampling": plan.sampling, "settings": how}
    drawn |= {"answer": tasks.tokens, "reset": tasks.reset}
    shared = made.Target(model, tokenizer, specs=specs, draft=draft, **drawn)
    methods, arms = plan.methods(draft, classify)
    every = dict.fromkeys([str(OFF), *arms, *(method.name for method in methods if method.kind == "arm")])
    seeds = range(tasks.seed, tasks.seed + tasks.repeats)
    runs = Repeats([Run(methods, asked, list(every), max_tokens=tasks.tokens, seed=seed) for seed in seeds])
    generators = [method.make(shared, arms) for method in methods]
    with progress(Console(stderr=True), tasks.repeats * len(asked) * len(methods)) as (tell, warming):
        for prompt, name in runs.play(generators, warming=warming):
            tell(f"{prompt.prompt.task}: {name}")
    summary = runs.summary(None if how else model)
    texts, said = summary.get("differences"), verdict.texts(summary)
    if how and plan.sampling == "shared-noise":  # then a seed has one text
        drafting = [method.name for method in methods if method.kind in ("arm", "policy")]
        texts = runs.differences(str(OFF), drafting)
        said = f"{texts['texts']} of {texts['answers']} sampled texts are not those of off with the same seed."
    show(summary)
    print(said)
    settings = {"model": target.model, **described(model), "max_tokens": tasks.tokens, **plan.json()}
    settings |= {
        "prompts": len(asked),
        "longest_prompt": tasks.longest,
        "part": tasks.part,
        "shuffled": tasks.shuffle,
        "reset": tasks.reset,
        "repeats": tasks.repeats,
    }
    output.write({**settings, "differences": texts, "methods": by_method(summary)})


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _classifier(plan: Path, corpora: Path, target: Any, tokenizer: Any) -> Classify:
    """A classifier of prompts by domain, fitted to those of a training plan."""
    from wager.bench.routing import Classifier
    from wager.training import config
    from wager.training import prompts as planned

    counts: Counter[str] = Counter()
    known = []
    for prompt in planned.read(config.read(plan), corpora):
        if counts[prompt.domain] < CLASSIFIED:
            counts[prompt.domain] += 1
            known.append((prompt.domain, chat_ids(tokenizer, prompt.messages)))
    return Classifier(target.get_input_embeddings().weight, known)
