"""Runs on recorded texts: a model writes them once, and every policy is replayed on them under stated costs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from reproduction import costs
from wager.core import OFF, Arm
from wager.core.recording import Text, Track
from wager.policies import fixed
from wager.simulation import Replay, RoundCost, play

if TYPE_CHECKING:
    from reproduction.workspace import Workspace

# The domain of each task that has a drafter of its own; the router is taught these.
DOMAIN = {
    "humaneval": "code",
    "debug_bench": "code",
    "math_reasoning": "math",
    "translation": "translation",
    "summarization": "summarization",
    "qa": "chat",
}
STORE = "REST"  # stands for the retrieval drafter over a datastore of the data folder's corpora


@dataclass(frozen=True, slots=True)
class Recorded:
    """Texts of a model, and what every drafter would have had accepted at every position (`wager record`)."""

    tasks: tuple[str, ...]
    count: int  # prompts a task
    tokens: int
    drafters: tuple[str, ...]
    longest: int = 8
    prompt: int = 192  # tokens; longer ones are cut
    rephrase: bool = False
    route: bool = False  # also teach a classifier on other prompts, and note the domain it takes each prompt for
    part: str = "test"
    seed: int = 0

    @property
    def command(self) -> str:
        named = " ".join(f"--task {task}" for task in self.tasks)
        drafters = ",".join("retrieval=CORPORA.store" if d == STORE else d for d in self.drafters)
        return (
            f"wager record --out R.jsonl.gz --drafters {drafters} {named} --prompts {self.count} "
            f"--max-tokens {self.tokens} --longest {self.longest} --longest-prompt {self.prompt} --part {self.part}"
            + (" (prompts rephrased)" if self.rephrase else "")
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        from wager.decoding.arms import build_drafters
        from wager.decoding.decoder import Decoder
        from wager.decoding.recorder import Recorder

        model, tokenizer = workspace.loaded()
        names = [store for d in self.drafters if (store := _stored(d, workspace, tokenizer))]
        policy = "fixed:drafter=suffix,length=4"
        decoder = Decoder(model, tokenizer, drafters="suffix", policy=policy, lengths=(4, self.longest))
        recorder = Recorder(decoder, build_drafters(names, model, tokenizer), self.longest)
        chosen = workspace.prompts(self.tasks, self.count, seed=self.seed, part=self.part)
        if self.rephrase:
            chosen = workspace.rephrased(chosen, self.seed)
        classify = classifier(workspace, self.seed) if self.route else None
        texts, routes = [], []
        for i, prompt in enumerate(chosen):
            workspace.tell(f"recording {prompt.task}", i, len(chosen))
            ids = prompt.ids(tokenizer, self.prompt, "cpu")[0].tolist()
            text = recorder.record(ids, prompt.task, self.tokens)
            if text is not None:
                texts.append(asdict(text))
                routes.append(classify(ids) if classify is not None else "")
        return {"texts": texts, "routes": routes}


def _stored(name: str, workspace: Workspace, tokenizer: Any) -> str:
    """The drafter as it is built; retrieval over a datastore made of the corpora, or nothing where there are none."""
    if name != STORE:
        return name
    corpora = workspace.folder("corpora")
    if corpora is None or workspace.keep is None:
        return ""
    from wager.drafters import corpus
    from wager.drafters.datastore import fingerprint

    path = workspace.keep / "corpora.store"
    if not path.is_file():
        workspace.keep.mkdir(parents=True, exist_ok=True)
        files = [corpora / f"{name}.jsonl" for name in ("code_instructions", "roleplay_instructions", "gsm8k_train")]
        workspace.tell("building a datastore", 0, 1)
        corpus.build(
            corpus.documents([file for file in files if file.is_file()]),
            lambda text: tokenizer(text, add_special_tokens=False).input_ids,
            path,
            vocabulary=len(tokenizer),
            model=workspace.model,
            fingerprint=fingerprint(tokenizer),
        )
    return f"retrieval={path}"


def classifier(workspace: Workspace, seed: int) -> Any:
    """A classifier of prompts by domain, taught on prompts that no experiment asks."""
    from wager.bench.routing import Classifier

    model, tokenizer = workspace.loaded()
    known = workspace.prompts(tuple(DOMAIN), 24 if workspace.has_data else 2, seed=seed, part="development")
    taught = [(DOMAIN[p.task], p.ids(tokenizer, 384, "cpu")[0].tolist()) for p in known]
    return Classifier(model.get_input_embeddings().weight, taught)


def texts_of(content: Any, drafters: Sequence[str] | None = None, labels: Sequence[str] | None = None) -> list[Text]:
    """A recording's texts, with these drafters and of these labels only."""
    texts = []
    for body in content["texts"]:
        if labels is not None and body["label"] not in labels:
            continue
        tracks = {}
        for name in body["tracks"] if drafters is None else drafters:
            if (own := body["tracks"].get(name)) is not None:
                tracks[name] = Track(**{**own, "confidence": [tuple(c) for c in own["confidence"]]})
        agreement = {
            one: {other: n for other, n in others.items() if other in tracks}
            for one, others in body["agreement"].items()
            if one in tracks
        }
        texts.append(Text(**{**body, "tracks": tracks, "agreement": agreement}))
    return texts


class Pool(Replay):
    """Recorded texts on which a policy has to draft: the papers' pools of drafters hold no plain decoding."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(Arm(name, length) for name in self.drafters for length in sorted(set(self.lengths)))


Totals = dict[str, list[float]]  # label -> tokens, rounds, seconds


def add(found: Totals, label: str, own: Sequence[float]) -> None:
    """Count more tokens, rounds and seconds of a label."""
    found[label] = [a + b for a, b in zip(found.get(label, [0.0] * 3), own, strict=True)]


def totals(
    texts: Sequence[Text],
    spec: str,
    lengths: Sequence[int],
    cost: RoundCost,
    *,
    seed: int = 0,
    apart: bool = False,
    off: bool = True,
) -> Totals:
    """What a policy makes of texts, by label.

    ``apart``: it begins anew with every text. ``off``: plain decoding is one of its arms.
    """
    kind = Replay if off else Pool
    groups = [(text,) for text in texts] if apart else [tuple(texts)]
    found: Totals = {}
    for i, group in enumerate(groups):
        run = play(kind(group, cost, tuple(lengths)), spec, seed + i)
        for label in dict.fromkeys(text.label for text in group):
            add(found, label, [run.facts[f"{what} {label}"] for what in ("tokens", "rounds", "seconds")])
    return found


def methods(found: dict[str, list[Totals]]) -> list[dict[str, Any]]:
    """Totals of every method and seed as `wager bench generate --json` has them: MAT, and times plain decoding."""
    plain = found[str(OFF)]

    def cell(own: list[Totals], labels: Sequence[str]) -> dict[str, float]:
        tokens, rounds, seconds = (sum(run[label][i] for run in own for label in labels) for i in range(3))
        base = [sum(run[label][i] for run in plain for label in labels) for i in range(3)]
        return {"mat": round(tokens / rounds, 4), "speedup": round((tokens / seconds) / (base[0] / base[2]), 4)}

    rows = []
    for name, own in found.items():
        whole, tasks = cell(own, list(own[0])), {label: cell(own, [label]) for label in own[0]}
        rows.append({"method": name, **whole, "steady": whole["speedup"], "tasks": tasks})
    return rows


@dataclass(frozen=True, slots=True)
class Replayed:
    """Every arm alone and policies over all of them, on recorded texts (`wager replay`)."""

    recording: Recorded
    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    policies: tuple[str, ...]
    cost: str = "cpu"
    seeds: int = 3
    apart: bool = False  # policies begin anew with every text
    alone: bool = True  # also every arm alone
    off: bool = False  # plain decoding is an arm of the policies too
    labels: tuple[str, ...] = ()  # of these tasks only

    @property
    def command(self) -> str:
        named = " ".join(f"-p {policy}" for policy in self.policies)
        cost = "results/engine-cpu.json" if self.cost == "cpu" else "results/engine-h200.json"
        note = f" (verification {costs.LARGER} times as long)" if self.cost == "larger" else ""
        drafters = ",".join("retrieval" if d == STORE else d for d in self.drafters)
        lengths = ",".join(map(str, self.lengths))
        return (
            f"{self.recording.command} && wager replay R.jsonl.gz --drafters {shlex.quote(drafters)} "
            f"--lengths {lengths} --cost {cost} --runs {self.seeds} {named}{note}"
        )

    def __call__(self, workspace: Workspace) -> dict[str, Any]:
        content = workspace.result(self.recording)
        names = ["retrieval" if d == STORE else d for d in self.drafters]
        texts = texts_of(content, names, self.labels or None)
        cost = costs.table(self.cost)
        scenario = Replay(tuple(texts), cost, self.lengths)
        specs = {str(arm): fixed(arm) for arm in scenario.arms if self.alone or arm == OFF}
        specs |= {policy: policy for policy in self.policies}
        found: dict[str, list[Totals]] = {}
        for i, (name, spec) in enumerate(specs.items()):
            workspace.tell(f"replaying {name}", i, len(specs))
            chooses = name in self.policies
            how = {"apart": chooses and self.apart, "off": self.off or not chooses}
            found[name] = [totals(texts, spec, self.lengths, cost, seed=100 * s, **how) for s in range(self.seeds)]
        return {"methods": methods(found), "texts": len(texts), "cost": self.cost, "drafters": list(scenario.drafters)}
