"""The methods of a suite by name, and their playing: every answer is kept at once, and a killed run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from wager.bench.workloads import Prompt
from wager.core import OFF, Arm
from wager.drafters import shipped
from wager.policies import build as build_policy

if TYPE_CHECKING:
    import torch

    from wager.bench.peers import Method
    from wager.bench.runs import Run

PLAIN, LOOKUP, ASSISTED = "transformers", "transformers prompt lookup", "transformers assisted"
WRITTEN = {"transformers": PLAIN, "transformers-lookup": LOOKUP, "transformers-assisted": ASSISTED}
QUICK = ("transformers", "transformers-lookup", "off", "suffix:4", "suffix:8", "prompt-lookup:4", "eagle:ofa:3", "auto",
         "ucbspec")  # fmt: skip
FULL = ("transformers", "transformers-lookup", "transformers-assisted", "off", "suffix:2", "suffix:4", "suffix:8",
        "prompt-lookup:4", "prompt-lookup:8", "eagle:ofa:2", "eagle:ofa:3", "auto", "ucbspec", "meta-ucb", "analytical",
        "nightjar")  # fmt: skip
SHOWN = 12  # answers of a run whose tokens are kept one by one, for the report
CUT = 4  # one in so many of the target's layers draft for transformers where no draft model is shipped


@dataclass(frozen=True, slots=True)
class Named:
    """A method by name, before there is a model."""

    name: str
    kind: str  # plain, peer, off, arm or policy

    def json(self) -> dict[str, str]:
        return {"name": self.name, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as the run knows it."""

    id: str
    prompt: Prompt
    ids: torch.Tensor  # (1, length)

    def json(self) -> dict[str, Any]:
        """As in the run's file: what tells another text from this one, and nothing of the text."""
        digest = sha256(str(self.ids[0].tolist()).encode()).hexdigest()[:12]
        return {"id": self.id, "task": self.prompt.task, "tokens": self.ids.shape[1], "digest": digest}


def parse_methods(text: str) -> list[Named]:
    """Methods as they are written, separated by commas; plain decoding by transformers is always the first."""
    words: list[str] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        if words and "=" in word and ":" not in word.partition("=")[0]:
            words[-1] += f",{word}"  # a further parameter of the policy before
        else:
            words.append(word)
    found = [_named(word) for word in words]
    if not found:
        raise ValueError(f"--methods names at least one; choose from {_choices()}")
    return list(dict.fromkeys([Named(PLAIN, "plain"), *found]))


def _named(word: str) -> Named:
    if word in WRITTEN:
        return Named(WRITTEN[word], "plain" if word == "transformers" else "peer")
    if word == str(OFF):
        return Named(word, "off")
    if word.rpartition(":")[2].partition("@")[0].isdecimal():
        return Named(str(Arm.parse(word)), "arm")
    try:
        build_policy(word, (OFF, Arm("suffix", 2), Arm("suffix", 4)), tokens=100)  # refused now, not after loading
    except ValueError as error:
        raise ValueError(f"{word!r} is no method ({error}); choose from {_choices()}") from None
    return Named(word, "policy")


def _choices() -> str:
    return f"{', '.join(WRITTEN)}, off, an arm such as suffix:4, or a policy such as auto"


def default_methods(names: Sequence[str], model: str) -> list[Named]:
    """These methods, without arms whose drafter does not lie ready for the model."""
    there = shipped.available(model)

    def ready(method: Named) -> bool:
        spec = method.name.rpartition(":")[0]
        return method.kind != "arm" or shipped.split(spec) is None or spec in there

    return [method for method in parse_methods(",".join(names)) if ready(method)]


def arms_of(methods: Sequence[Named], model: Any) -> list[str]:
    """What policies choose from: the arms that are played alone, else those of `wager generate`; off is the first."""
    fixed = [method.name for method in methods if method.kind == "arm"]
    if not fixed and any(method.kind == "policy" for method in methods):
        from wager.decoding.decoder import DRAFTERS, LENGTHS

        ready = shipped.expand(DRAFTERS, *_known(model))
        fixed = [f"{drafter}:{length}" for drafter in ready for length in LENGTHS]
    return [str(OFF), *fixed]


def _known(model: Any) -> tuple[str, shipped.Mark]:
    """By what drafters that lie ready for a model are found."""
    from wager.models.fingerprint import fingerprint

    return getattr(model, "name_or_path", ""), lambda: fingerprint(model)


def build(
    methods: Sequence[Named], model: Any, tokenizer: Any, *, tokens: int, seed: int = 0, specs: Sequence[str] = ()
) -> list[Method]:
    """The methods, each with drafters of its own; ``tokens`` is how much text is to come in all.

    A drafter is made from its name in the arm, or from the one of ``specs`` that has the name: ``eagle:mine=PATH``.
    """
    from wager.bench import peers
    from wager.decoding.arms import build_drafters

    arms = arms_of(methods, model)
    written = {spec.partition("=")[0]: spec for spec in specs}

    def ours(name: str, policy: str, played: Sequence[str]) -> Method:
        names = dict.fromkeys(Arm.parse(arm).drafter for arm in played if arm != str(OFF))
        drafters = list(build_drafters([written.get(each, each) for each in names], model, tokenizer).values())
        return peers.wager_method(name, model, policy, drafters, played, tokens, seed=seed)

    made = []
    for method in methods:
        if method.name == ASSISTED:
            made.append(peers.transformers_method(ASSISTED, model, assistant_model=_assistant(model)))
        elif method.kind in ("plain", "peer"):
            lookup = {"prompt_lookup_num_tokens": peers.LOOKED_UP} if method.name == LOOKUP else {}
            made.append(peers.transformers_method(method.name, model, **lookup))
        elif method.kind == "arm":
            made.append(ours(method.name, peers.fixed(Arm.parse(method.name)), [method.name]))
        else:
            made.append(ours(method.name, method.name, arms if method.kind == "policy" else arms[:1]))
    return made


def without_impossible(methods: Sequence[Named], model: Any) -> list[Named]:
    """These methods, less assisted generation where there is no draft model for the target and none can be cut."""
    from wager.models.shaped import SHAPED

    cut = type(model).__name__ in SHAPED and model.config.num_hidden_layers > 1
    return [method for method in methods if method.name != ASSISTED or cut or _drafts(model)]


def _assistant(model: Any) -> Any:
    """A draft model for transformers: one that lies ready for the target, else some of the target's own layers."""
    from wager.bench.peers import truncated
    from wager.models import load_model

    drafts = _drafts(model)
    if not drafts:
        return truncated(model, max(1, model.config.num_hidden_layers // CUT))
    one = next((each for each in drafts if each.spec == "draft:ofa"), drafts[0])
    return load_model(one.folder, dtype=str(model.dtype).removeprefix("torch."), device=str(model.device))


def _drafts(model: Any) -> list[shipped.Shipped]:
    """The draft models that lie ready for it."""
    there = shipped.available(*_known(model))
    return [one for spec, one in there.items() if spec.startswith("draft:")]


def questions(prompts: Sequence[Prompt], tokenizer: Any, longest: int, device: Any) -> list[Question]:
    """The prompts with their tokens, each numbered within its task."""
    counts: dict[str, int] = {}
    found = []
    for prompt in prompts:
        number = counts.setdefault(prompt.task, 0)
        counts[prompt.task] += 1
        found.append(Question(f"{prompt.task}-{number}", prompt, prompt.ids(tokenizer, longest, device)))
    return found


def head(
    methods: Sequence[Named], asked: Sequence[Question], target: Any, described: Mapping[str, Any], **settings: Any
) -> dict[str, Any]:
    """What a run's file says of how it is made; ``target`` is the loaded model."""
    from wager.models.fingerprint import fingerprint

    return {
        **settings,
        **described,
        "weights": fingerprint(target),
        "methods": [method.json() for method in methods],
        "prompts": [question.json() for question in asked],
        "arms": arms_of(methods, target),
    }


def play(
    run: Run,
    methods: Sequence[Method],
    asked: Sequence[Question],
    tokenizer: Any,
    *,
    tokens: int,
    seed: int = 0,
    warming: Callable[[str], None] = lambda name: None,
) -> Iterator[tuple[Question, str]]:
    """Answer what is not answered yet, every prompt with every method in turn; yields after each answer it keeps.

    ``warming`` is told the name of each method that is warmed up first.
    """
    from wager.bench import peers

    policies = [method["name"] for method in run.head["methods"] if method["kind"] == "policy"]
    shown = _shown(policies, asked)
    for method in methods:
        warming(method.name)
        peers.warm_up(method, asked[0].ids.device, tokens)
        if method.decoder is not None:
            method.decoder.reset()  # what warming up taught is nobody's to use
            _go_on(run, method, asked, policies)
    for question, method in peers.turns(methods, asked, seed=seed):
        key = question.id, method.name
        if key in run.answers:
            continue
        answer = method.run(question.ids, tokens)
        policy = method.decoder.policy if method.decoder is not None and method.name in policies else None
        pieces = method.latest.pieces(tokenizer) if method.latest is not None and key in shown else None
        run.add(key, answer, pieces=pieces, state=None if policy is None else policy.state_dict())
        yield question, method.name


def _shown(policies: Sequence[str], asked: Sequence[Question]) -> set[tuple[str, str]]:
    """Whose tokens are kept one by one: the first policy's answer to one prompt of each task, then the next one's."""
    first = {question.prompt.task: question.id for question in reversed(asked)}
    return set([(at, name) for name in policies for at in reversed(first.values())][:SHOWN])


def _go_on(run: Run, method: Method, asked: Sequence[Question], policies: Sequence[str]) -> None:
    """Bring a method to where it was: its policy's state is loaded, its drafters read their earlier texts again."""
    decoder = method.decoder
    assert decoder is not None
    prompts = {question.id: question.ids[0].tolist() for question in asked}
    for (at, name), answer in run.answers.items():
        if name == method.name:
            if "prompt" in getattr(decoder.policy, "uses", ()):
                decoder.prompts.features(prompts[at], 1.0)
            for drafter in decoder.drafters.values():
                drafter.begin(prompts[at])
                drafter.extend(answer.tokens)
                drafter.end()
    if method.name in policies and run.given(method.name):
        decoder.policy.load_state_dict(run.state(method.name))
