"""wager and its peers on the same model, prompt by prompt, in one interleaved run."""

from __future__ import annotations

import copy
import random
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeVar
from zlib import crc32

import torch

from wager.bench.answers import Answer, mat, ratio, tokens_per_second
from wager.bench.routing import Classifier, Routed
from wager.bench.workloads import Prompt
from wager.core import OFF, Arm
from wager.decoding.arms import build_drafters
from wager.decoding.choosing import SHARED
from wager.decoding.decoder import Decoder
from wager.decoding.generation import Generation
from wager.decoding.identity import difference
from wager.drafters import Drafter
from wager.drafters.registry import parse
from wager.models.llama_weights import LLAMA_LIKE
from wager.policies.base import Policy

PLAIN, OURS = "transformers", "wager off"
LOOKUP, ASSISTED = "transformers prompt lookup", "transformers assisted"
LOOKED_UP = 10  # tokens transformers' own prompt lookup drafts
Asked = tuple[Prompt, torch.Tensor]  # a prompt and its tokens, (1, length)
Item = TypeVar("Item")


@dataclass(slots=True)
class Method:
    """One way to generate; ``run`` answers a prompt, (1, length), with so many tokens."""

    name: str
    run: Callable[[torch.Tensor, int], Answer]
    answers: list[Answer] = field(default_factory=list)
    decoder: Decoder | None = None  # of wager's own methods: what they learn is there
    latest: Generation | None = None  # and how the answer before this came about


def truncated(model: Any, layers: int) -> Any:
    """A draft model for any Llama-shaped target, with nothing to train: its first layers under its own head.

    It shares the target's weights; only what wager packs of them is a copy.
    """
    body = getattr(model, "model", None)
    if type(model).__name__ not in LLAMA_LIKE or body is None:
        raise ValueError(f"only {', '.join(LLAMA_LIKE)} can be cut to a draft model, not {type(model).__name__}")
    if not 0 < layers < len(body.layers):
        raise ValueError(f"a draft model has between 1 and {len(body.layers) - 1} of the target's layers, not {layers}")
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.device("meta"):
        draft = type(model)(config)
    draft.model.embed_tokens, draft.model.norm = model.model.embed_tokens, model.model.norm
    draft.model.layers = torch.nn.ModuleList(list(model.model.layers[:layers]))
    draft.model.rotary_emb, draft.lm_head = model.model.rotary_emb, model.lm_head
    draft.generation_config = copy.deepcopy(model.generation_config)
    return draft.eval()


def transformers_method(name: str, model: Any, **settings: Any) -> Method:
    """transformers' own generate, greedy unless told otherwise."""

    def run(ids: torch.Tensor, count: int) -> Answer:
        forwards: list[float] = []  # when each began

        def counted(*_: Any) -> None:
            forwards.append(perf_counter())

        hook = model.register_forward_pre_hook(counted)
        try:
            began = perf_counter()
            how = {"max_new_tokens": count, "do_sample": False, **settings}
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
            tokens = out[0, ids.shape[1] :].tolist()
            seconds = perf_counter() - began
        finally:
            hook.remove()
        first = forwards[1] - began if len(forwards) > 1 else seconds  # the second forward reads the first token
        return Answer(tokens, seconds, len(forwards), prefill_seconds=first)

    return Method(name, run)


def wager_method(
    name: str,
    model: Any,
    policy: str | Policy,
    drafters: Sequence[Drafter],
    arms: Sequence[str],
    tokens: int = 10_000,
    *,
    seed: int = 0,
    before: Callable[[list[int]], None] | None = None,
    sampling: str = SHARED,
    **settings: Any,
) -> Method:
    """wager with a policy over some arms; what it learns it keeps from prompt to prompt.

    ``seed`` is the policy's, and that of every sampled text; ``before`` is shown every prompt's tokens first.
    """
    decoder = Decoder(
        model, drafters=list(drafters), policy=policy, arms=arms, tokens=tokens, seed=seed, sampling=sampling
    )
    return decoder_method(name, decoder, before, seed=seed, **settings)


def decoder_method(
    name: str, decoder: Decoder, before: Callable[[list[int]], None] | None = None, *, seed: int = 0, **settings: Any
) -> Method:
    """wager as this decoder does it."""

    def run(ids: torch.Tensor, count: int) -> Answer:
        began = perf_counter()
        if before is not None:
            before(ids[0].tolist())
        # A text's seed is that of all its methods, and another for every prompt.
        drawn = (seed + crc32(ids.cpu().numpy().tobytes())) % (1 << 63)
        made = decoder.generate(ids, seed=drawn, **{"max_new_tokens": count, "do_sample": False, **settings})
        seconds = perf_counter() - began
        own = made.decode_seconds - sum(r.seconds for r in made.rounds)
        method.latest = made
        return Answer(made.tokens, seconds, 1 + len(made.rounds), made.rounds, max(0.0, own), made.prefill_seconds)

    method = Method(name, run, decoder=decoder)
    return method


def play(
    methods: Sequence[Method], prompts: Sequence[Asked], count: int, *, seed: int = 0
) -> Iterator[tuple[Prompt, str]]:
    """Answer every prompt with every method, in an order drawn anew for each prompt; yields after each answer."""
    for method in methods:
        warm_up(method, prompts[0][1].device, count)
    for (prompt, ids), method in turns(methods, prompts, seed=seed):
        method.answers.append(method.run(ids, count))
        yield prompt, method.name


def warm_up(method: Method, device: Any, count: int) -> int:
    """Warm up kernels, graphs and caches, on a text that no prompt shares; the tokens that were made."""
    return len(method.run(torch.arange(5, 69, device=device)[None], min(count, 32)).tokens)


def turns(methods: Sequence[Method], prompts: Iterable[Item], *, seed: int = 0) -> Iterator[tuple[Item, Method]]:
    """Every prompt with every method, in an order drawn anew for each prompt."""
    order = random.Random(seed)
    for asked in prompts:
        for method in order.sample(list(methods), len(methods)):
            yield asked, method


def summarize(methods: Sequence[Method], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Per method: tokens a second as a ratio to the first method, over all and per task, MAT, and what differed.

    ``tasks`` names each prompt's task. Ratios are of summed seconds per token; the spread is over single prompts.
    """
    plain = methods[0]
    rows = []
    for method in methods:
        ratios = [
            (b.seconds / len(b.tokens)) / (a.seconds / len(a.tokens))
            for a, b in zip(method.answers, plain.answers, strict=True)
        ]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else (ratios[0],) * 3
        per_task = {}
        for task in dict.fromkeys(tasks):
            at = [i for i, name in enumerate(tasks) if name == task]
            own = [method.answers[i] for i in at]
            per_task[task] = {
                "ratio": round(ratio(own, [plain.answers[i] for i in at]), 4),
                "mat": round(mat(own), 4),
                "arms": _shares(own),
                "arms_over_rounds": _over_rounds(own),
            }
        rows.append(
            {
                "method": method.name,
                "ratio": round(ratio(method.answers, plain.answers), 4),
                "median_ratio": round(statistics.median(ratios), 4),
                "quartiles": [round(low, 4), round(high, 4)],
                "mat": round(mat(method.answers), 4),
                "tokens_per_second": round(tokens_per_second(method.answers), 2),
                "different_texts": sum(
                    a.tokens != b.tokens for a, b in zip(method.answers, plain.answers, strict=True)
                ),
                "arms": _shares(method.answers),
                "tasks": per_task,
            }
        )
    return rows


def steady(methods: Sequence[Method], off: str = OURS) -> dict[str, float]:
    """wager's methods beside its plain decoding on a machine without stalls: what each round took is replaced.

    A round counts as long as the median of all rounds of the run that verified as many tokens, its drafting as the
    method's own median for as many tokens, and so does the rest. On a machine that is shared, one stall outweighs every
    difference between two methods; which rounds a method plays stays as it was.
    """
    ours = {m.name: [a for a in m.answers if a.rounds] for m in methods if any(a.rounds for a in m.answers)}
    verifying = _medians((r.drafted, r.verify_seconds) for answers in ours.values() for a in answers for r in a.rounds)
    speeds = {}
    for name, answers in ours.items():
        rounds = [r for a in answers for r in a.rounds]
        drafting = _medians(((r.arm.drafter, r.drafted), r.draft_seconds + r.lag_seconds) for r in rounds)
        own = statistics.median(a.own / len(a.rounds) for a in answers)
        seconds = sum(verifying[r.drafted] + drafting[r.arm.drafter, r.drafted] + own for r in rounds)
        speeds[name] = sum(r.emitted for r in rounds) / seconds
    plain = speeds.get(off)
    return {name: round(speed / plain, 4) for name, speed in speeds.items()} if plain else {}


def _shares(answers: Sequence[Answer]) -> dict[str, float]:
    """The share of rounds each arm was played in, the most frequent first."""
    counts = Counter(str(r.arm) for a in answers for r in a.rounds)
    return {arm: round(count / counts.total(), 4) for arm, count in counts.most_common()}


def _over_rounds(answers: Sequence[Answer], parts: int = 10) -> list[dict[str, float]]:
    """The shares in each tenth of the rounds, first to last; empty where there are too few or one arm has them all."""
    rounds = [r for a in answers for r in a.rounds]
    if len(rounds) < parts or len({r.arm for r in rounds}) == 1:
        return []
    edges = [len(rounds) * part // parts for part in range(parts + 1)]
    told = []
    for first, last in pairwise(edges):
        counts = Counter(str(r.arm) for r in rounds[first:last])
        told.append({arm: round(count / counts.total(), 4) for arm, count in counts.most_common()})
    return told


def _medians(pairs: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    found: dict[Hashable, list[float]] = {}
    for key, seconds in pairs:
        found.setdefault(key, []).append(seconds)
    return {key: statistics.median(seconds) for key, seconds in found.items()}


def standard(
    model: Any,
    drafters: Mapping[str, Callable[[], Drafter]],
    lengths: Mapping[str, Sequence[int]],
    policies: Sequence[str],
    draft: Any | None,
    free: Sequence[int] = (),
) -> list[Method]:
    """transformers' three ways, wager with every fixed arm, and wager with each policy.

    ``drafters`` makes a drafter by name, ``lengths`` says how many tokens the fixed arms of each draft; policies choose
    from the same arms, or from drafts of all ``free`` lengths. ``draft`` is the draft model that transformers gets.
    """
    methods = [
        transformers_method(PLAIN, model),
        transformers_method(LOOKUP, model, prompt_lookup_num_tokens=LOOKED_UP),
    ]
    if draft is not None:
        methods.append(transformers_method(ASSISTED, model, assistant_model=draft))
    methods.append(wager_method(OURS, model, "off", [], [str(OFF)]))
    for name, make in drafters.items():
        for length in lengths[name]:
            arm = Arm(name, length)
            methods.append(wager_method(f"wager {arm}", model, fixed(arm), [make()], [str(arm)]))
    arms = [f"{name}:{length}" for name in drafters for length in free or lengths[name]]
    return methods + [
        wager_method(f"wager {policy}", model, policy, [make() for make in drafters.values()], arms)
        for policy in policies
    ]


def fixed(arm: Arm) -> str:
    """The policy that always plays this arm."""
    return f"fixed:drafter={arm.drafter},length={arm.length}" + (f",tree={arm.tree}" if arm.tree else "")


def over_arms(
    model: Any,
    tokenizer: Any,
    arms: Sequence[str],
    policies: Sequence[str],
    *,
    plain: bool = True,
    classifier: Classifier | None = None,
    alone: Sequence[str] = (),
    specs: Sequence[str] = (),
    sampling: str = SHARED,
    seed: int = 0,
    **settings: Any,
) -> list[Method]:
    """transformers as it is, wager with each of these arms alone, and wager with each policy over all of them.

    Arms in ``alone`` are played alone and left out of every policy's choice.

    With a ``classifier`` also wager with the arm of the domain that each prompt is taken for. ``settings`` are those of
    generate, the same for all; ``sampling`` is wager's rule, ``seed`` its policies' and its texts'.

    Every method has drafters of its own, made from the arms' names: ``eagle:ofa:4`` is drafted by ``eagle:ofa``. A
    drafter that needs more than its name is specified in ``specs``: ``retrieval=PATH``.
    """
    given = [Arm.parse(arm) for arm in arms]
    known = {parse(spec)[0]: spec for spec in specs}
    methods = [transformers_method(PLAIN, model, **settings)] if plain else []
    settings |= {"sampling": sampling, "seed": seed}
    methods.append(wager_method(OURS, model, "off", [], [str(OFF)], **settings))

    def made(names: Iterable[str]) -> list[Drafter]:
        wanted = [known.get(name, name) for name in dict.fromkeys(names)]
        return list(build_drafters(wanted, model, tokenizer).values())

    methods += [
        wager_method(f"wager {arm}", model, fixed(arm), made([arm.drafter]), [str(arm)], **settings)
        for arm in [*given, *map(Arm.parse, alone)]
    ]
    every = [arm.drafter for arm in given]
    if classifier is not None:
        routed = Routed(given)

        def route(ids: list[int]) -> None:
            routed.take(classifier(ids))

        methods.append(wager_method("wager router", model, routed, made(every), arms, before=route, **settings))
    return methods + [
        wager_method(f"wager {policy}", model, policy, made(every), arms, **settings) for policy in policies
    ]


def unlike(methods: Sequence[Method]) -> dict[str, int]:
    """How many of wager's sampled answers are not those of its plain decoding; with shared noise none should be."""
    off = next(method for method in methods if method.name == OURS)
    others = [method for method in methods if method is not off and method.decoder is not None]
    pairs = [(a.tokens, b.tokens) for method in others for a, b in zip(method.answers, off.answers, strict=True)]
    return {"answers": len(pairs), "texts": sum(ours != theirs for ours, theirs in pairs)}


def ties(model: Any, methods: Sequence[Method], prompts: Sequence[torch.Tensor]) -> dict[str, Any]:
    """How many answers differ from the first method's, and how far apart the logits of both tokens are where they part.

    ``largest_gap`` is in standard deviations of the logits; ``unexplained`` counts differences that are no tie.
    """
    plain = methods[0]
    parted = [
        difference(model, ids[0].tolist(), ours.tokens, theirs.tokens)
        for method in methods
        for ids, ours, theirs in zip(prompts, method.answers, plain.answers, strict=True)
    ]
    found = [each for each in parted if each is not None]
    return {
        "answers": len(parted),
        "texts": len(found),
        "unexplained": sum(not each.tie for each in found),
        "largest_gap": round(max((each.gap for each in found if each.gap is not None), default=0.0), 6),
    }
