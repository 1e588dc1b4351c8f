"""A method is one way to decode: plain transformers, its own speculation, a fixed arm of wager's, or a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from wager.bench.summary import Answer
from wager.core import OFF, Arm, require
from wager.drafters import shipped
from wager.drafters.registry import DRAFTERS, parse
from wager.policies import build as build_policy
from wager.policies import fixed
from wager.policies.base import PAPER
from wager.policies.registry import resets

if TYPE_CHECKING:
    import torch

    from wager.decoding.decoder import Decoder
    from wager.decoding.generation import Generation
    from wager.drafters import Drafter
    from wager.policies.base import Policy

PLAIN, LOOKUP, ASSISTED = "transformers", "transformers prompt lookup", "transformers assisted"
WRITTEN = {"transformers": PLAIN, "transformers-lookup": LOOKUP, "transformers-assisted": ASSISTED}
CHOICES = f"{', '.join(WRITTEN)}, off, an arm such as suffix:4, or a policy such as auto"
LOOKUP_TOKENS = 10  # tokens transformers' own prompt lookup drafts
WARM_UP_TOKENS = 32
Before = Callable[[list[int]], object]  # what gets a prompt's tokens before they are answered
# What `wager bench` runs unless told otherwise: in the quick suite, and in the others.
QUICK = ("transformers", "transformers-lookup", "off", "suffix:4", "suffix:8", "prompt-lookup:4", "eagle:ofa:3", "auto",
         "ucbspec")  # fmt: skip
FULL = ("transformers", "transformers-lookup", "transformers-assisted", "off", "suffix:2", "suffix:4", "suffix:8",
        "prompt-lookup:4", "prompt-lookup:8", "eagle:ofa:2", "eagle:ofa:3", "auto", "ucbspec", "meta-ucb", "analytical",
        "nightjar")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """What all methods of a run share: the model and how it generates."""

    model: Any
    tokenizer: Any = None
    tokens: int = 10_000  # of text to come in all, for policies that plan ahead
    answer: int | None = None  # tokens of one text, for those of them that are started anew with each
    reset: str = PAPER  # when policies are started anew (RESETS)
    seed: int = 0  # of the policies, and of every sampled text
    specs: Sequence[str] = ()  # drafters that need more than their name: retrieval=PATH
    draft: Any = None  # the model of the drafter draft-model, where no specification names one
    sampling: str = "shared-noise"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of generate; without them greedy

    def drafters(self, arms: Iterable[str]) -> list[Drafter]:
        """Drafters for these arms, made anew."""
        from wager.decoding.arms import build_drafters
        from wager.drafters.draft_model import DraftModel

        specs = {parse(spec)[0]: spec for spec in self.specs}
        names = dict.fromkeys(Arm.parse(arm).drafter for arm in arms if arm != str(OFF))
        wanted: dict[str, str | Drafter] = {name: specs.get(name, name) for name in names}
        if self.draft is not None and "draft-model" in wanted:
            wanted["draft-model"] = DraftModel(self.draft)
        return list(build_drafters(list(wanted.values()), self.model, self.tokenizer).values())


@dataclass(slots=True)
class TextGenerator:
    """A method made for a target: ``run`` answers a prompt, (1, length), with so many tokens."""

    name: str
    run: Callable[[torch.Tensor, int], Answer]
    decoder: Decoder | None = None  # of wager's own methods: what they learn is there
    latest: Generation | None = None  # and how the last answer came about
    trials: int = 0  # texts its policy learns from before it is measured
    repetition: int = 0  # how often it was started anew

    def restart(self) -> None:
        """Forget all texts; what is drawn at random is drawn anew."""
        self.repetition += 1
        if self.decoder is not None:
            self.decoder.policy.seed += 1
            self.decoder.reset()

    def warm_up(self, device: Any, count: int) -> int:
        """Warm up kernels, graphs and caches on a text that is no prompt's; the number of tokens made."""
        import torch

        with nullcontext() if self.decoder is None else self.decoder.rehearsal():
            made = self.run(torch.arange(5, 69, device=device)[None], min(count, WARM_UP_TOKENS))
        self.latest = None
        return len(made.tokens)

    def practise(self, prompts: Sequence[torch.Tensor], count: int) -> None:
        """Let a policy whose paper measures it after some texts play those; its drafters forget them."""
        for at in range(self.trials):
            self.run(prompts[at % len(prompts)], count)
        if self.trials and self.decoder is not None:
            for drafter in self.decoder.drafters.values():
                drafter.forget()
        self.latest = None


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode before there is a model; ``make`` gets the target and the arms that policies choose from."""

    name: str
    kind: str  # plain, peer, off, arm or policy
    make: Callable[[Target, Sequence[str]], TextGenerator] = field(compare=False, repr=False)


def transformers_method(name: str) -> Method:
    """transformers' own generate: plain, with prompt lookup, or assisted by the target's draft model or another."""

    def make(target: Target, arms: Sequence[str]) -> TextGenerator:
        more: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if name == LOOKUP else {}
        if name == ASSISTED:
            from wager.bench.draft_models import assistant

            more = {"assistant_model": target.draft or assistant(target.model)}
        return transformers_generator(name, target, **more)

    return Method(name, "plain" if name == PLAIN else "peer", make)


def arm_method(arm: Arm) -> Method:
    """wager with one arm in every round; ``off`` is one."""
    name, kind = str(arm), "off" if arm == OFF else "arm"
    return Method(name, kind, lambda target, arms: wager_generator(name, target, fixed(arm), [name]))


def policy_method(spec: str) -> Method:
    """wager with a policy that chooses an arm for every round."""
    return Method(spec, "policy", lambda target, arms: wager_generator(spec, target, spec, arms))


def router_method(classify: Callable[[list[int]], str]) -> Method:
    """wager with one arm for a whole text, that of the domain its prompt is classified as."""

    def make(target: Target, arms: Sequence[str]) -> TextGenerator:
        from wager.bench.routing import Routed

        routed = Routed([Arm.parse(arm) for arm in arms])
        return wager_generator("router", target, routed, arms, before=lambda ids: routed.take(classify(ids)))

    return Method("router", "policy", make)


def transformers_generator(name: str, target: Target, **more: Any) -> TextGenerator:
    """``model.generate``, timed; ``more`` are settings of its own."""
    import torch

    model = target.model

    def run(ids: torch.Tensor, count: int) -> Answer:
        forwards: list[float] = []  # when each began
        hook = model.register_forward_pre_hook(lambda *_: forwards.append(perf_counter()))
        try:
            began = perf_counter()
            settings = {"max_new_tokens": count, "do_sample": False, **target.settings, **more}
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
            tokens = out[0, ids.shape[1] :].tolist()
            seconds = perf_counter() - began
        finally:
            hook.remove()
        first = forwards[1] - began if len(forwards) > 1 else seconds  # the second forward reads the first token
        return Answer(tokens, seconds, len(forwards), prefill_seconds=first)

    return TextGenerator(name, run)


def wager_generator(
    name: str,
    target: Target,
    policy: str | Policy,
    arms: Sequence[str],
    *,
    drafters: Sequence[Drafter] | None = None,
    before: Before = lambda ids: None,
) -> TextGenerator:
    """wager with a policy over these arms; ``target.reset`` says whether it keeps what it learns from text to text."""
    from wager.decoding.decoder import Decoder

    made = target.drafters(arms) if drafters is None else list(drafters)
    anew = isinstance(policy, str) and resets(policy, target.reset)
    tokens = target.answer if anew and target.answer is not None else target.tokens
    shared: dict[str, Any] = {"tokens": tokens, "seed": target.seed, "sampling": target.sampling}
    decoder = Decoder(target.model, drafters=made, policy=policy, arms=arms, reset_per_request=anew, **shared)
    generator = decoder_generator(name, decoder, target, before)
    generator.trials = decoder.policy.trials if target.reset == PAPER else 0
    return generator


def decoder_generator(name: str, decoder: Decoder, target: Target, before: Before = lambda ids: None) -> TextGenerator:
    """wager with this decoder, greedy or as the target says; ``before`` gets every prompt's tokens first."""

    def run(ids: torch.Tensor, count: int) -> Answer:
        began = perf_counter()
        before(ids[0].tolist())
        # All methods draw a text with the same seed, and every prompt has another one, in every repetition.
        drawn = (target.seed + generator.repetition + crc32(ids.cpu().numpy().tobytes())) % (1 << 63)
        made = decoder.generate(ids, seed=drawn, **{"max_new_tokens": count, "do_sample": False, **target.settings})
        seconds = perf_counter() - began
        own = made.decode_seconds - sum(r.seconds for r in made.rounds)
        generator.latest = made
        return Answer(made.tokens, seconds, 1 + len(made.rounds), made.rounds, max(0.0, own), made.prefill_seconds)

    generator = TextGenerator(name, run, decoder)
    return generator


def parse_methods(text: str) -> list[Method]:
    """Methods as they are written, separated by commas; plain decoding by transformers is always the first."""
    words: list[str] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        if words and "=" in word and ":" not in word.partition("=")[0]:
            words[-1] += f",{word}"  # a further parameter of the policy before
        else:
            words.append(word)
    require(bool(words), f"--methods names at least one; choose from {CHOICES}")
    return list(dict.fromkeys([transformers_method(PLAIN), *map(parse_method, words)]))


def parse_method(word: str) -> Method:
    """One method; an unknown drafter or policy is refused now, not after a model was loaded."""
    if word in WRITTEN:
        return transformers_method(WRITTEN[word])
    if word == str(OFF) or word.rpartition(":")[2].partition("@")[0].isdecimal():
        arm = Arm.parse(word)
        parse(arm.drafter or str(OFF))
        return arm_method(arm)
    try:
        build_policy(word, (OFF, Arm("suffix", 2), Arm("suffix", 4)), tokens=100)
    except ValueError as error:
        why = "an arm is a drafter and a length, such as suffix:4" if word.partition(":")[0] in DRAFTERS else error
        raise ValueError(f"{word!r} is no method ({why}); choose from {CHOICES}") from None
    return policy_method(word)


def default_methods(names: Sequence[str], model: str) -> list[Method]:
    """These methods, without arms whose drafter is not shipped for the model."""
    drafted, there = {arm: arm.rpartition(":")[0] for arm in names}, shipped.available(model)
    return parse_methods(",".join(arm for arm, s in drafted.items() if shipped.split(s) is None or s in there))


def arms_of(methods: Sequence[Method], model: Any) -> list[str]:
    """What policies choose from: the arms that are run alone, else those of `wager generate`; off is the first."""
    arms = [method.name for method in methods if method.kind == "arm"]
    if not arms and any(method.kind == "policy" for method in methods):
        from wager.decoding.decoder import DRAFTERS, LENGTHS
        from wager.models.fingerprint import fingerprint

        ready = shipped.expand(DRAFTERS, getattr(model, "name_or_path", ""), lambda: fingerprint(model))
        arms = [f"{drafter}:{length}" for drafter in ready for length in LENGTHS]
    return [str(OFF), *arms]
