"""What vLLM is started with for a model and its settings, and what that costs an engine that does not draft."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from wager.drafters import shipped
from wager.drafters.datastore import Datastore, fingerprint
from wager.models import load_tokenizer, resolve
from wager.models.embedded import NAME as EMBEDDED
from wager.models.embedded import Progress
from wager.vllm import compat, plugin, state
from wager.vllm.drafter_check import check_drafter_fits, head_kind, weights_fingerprint
from wager.vllm.placement import in_speculator, place
from wager.vllm.settings import (
    ADOPTED,
    DRAFTERS,
    ENGINE_DRAFTERS,
    HEADS,
    KEY,
    MAX_LENGTH,
    POLICY,
    PROPOSER,
    SCHEDULER,
    Settings,
    adopt,
    engine_kind,
    parse_drafter,
)

log = logging.getLogger("wager")

SCHEDULER_CLASS = "wager.vllm.scheduler.scheduler"
PROPOSER_CLASS = "wager.vllm.proposer.Proposer"
EMBEDDED_CACHE = 2 << 30  # bytes: 46,000 tokens of the embedded model
GRAPH_REQUESTS = 256  # a step of so many requests has graphs at every length, unless max_num_seqs allows fewer
GRAPH_PROMPTS = 1024  # tokens of prompts that are read beside so many requests within graphs
OWN_CHOICE = {"method", "model"}  # settings that make a speculative configuration the user's own
TABLE = "num_speculative_tokens_per_batch_size"
LOSSY = ("fly",)  # of vLLM's rejection_sample_method


def engine_args(
    model: str | Path, *, drafters: Sequence[str] | str = DRAFTERS, policy: str = POLICY, max_length: int = MAX_LENGTH,
    budget: int = 0, uniform: str = "auto", policy_seed: int = 0, state: str | Path = "",
    progress: Progress | None = None, **vllm: Any,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments for ``vllm.LLM``, with speculation that adapts.

    >>> llm = vllm.LLM(**wager.vllm.engine_args("smollm2-135m", max_model_len=2048))

    drafters: ``prompt-lookup``, ``suffix``, ``retrieval=PATH`` side by side, or one that vLLM runs: ``ngram``,
    ``draft-model=MODEL``, ``eagle=MODEL``, or ``eagle:NAME`` and ``draft:NAME`` for one shipped for the model.
    On a GPU ``prompt-lookup`` and ``suffix`` can stand beside such a model.
    policy: as listed by ``wager policies``. budget: most draft tokens in a step over all requests. state: a file that
    keeps what is learned. Everything else goes to vLLM as it is.
    """
    names = tuple(name.strip() for name in drafters.split(",")) if isinstance(drafters, str) else tuple(drafters)
    matching = in_speculator(names, on_cpu=on_cpu(), budget=budget)
    settings = Settings(names, max_length, policy, budget, uniform, policy_seed, str(state), speculator=matching)
    return arguments(model, settings, vllm, progress=progress)


def arguments(
    model: str | Path, settings: Settings, vllm: Mapping[str, Any], *, progress: Progress | None = None
) -> dict[str, Any]:
    """The same from settings; refuses with one sentence what could only fail later."""
    compat.check_version()
    if not on_cpu() and (caution := compat.gpu_caution()):
        log.warning(caution)
    given = dict(vllm)
    if "scheduler_cls" in given:
        raise ValueError("wager is the scheduler class here; leave scheduler_cls out")
    rows = given.get("max_num_seqs")
    if own := [spec for spec in settings.drafters if spec.startswith(f"{ADOPTED}:")]:
        stands = "stands for a speculative configuration of your own; give that itself, with --speculative-config"
        raise ValueError(f"drafter {own[0]!r} {stands}")
    extra = _extra(given.pop("speculative_config", None))
    if extra.keys() & OWN_CHOICE:
        settings = adopt(settings, extra)
    settings = place(settings, on_cpu=on_cpu(), rows=int(rows) if rows else None)
    if settings.speculator:
        plugin.check()
    elif settings.hook == SCHEDULER and not on_cpu() and (why := plugin.missing()):
        if int(given.get("data_parallel_size") or 1) > 1:
            raise ValueError(why)
        log.warning("a drafter runs even in steps without drafts, and lengths stall when they are first used: %s", why)
    if settings.hook == PROPOSER and int(given.get("pipeline_parallel_size") or 1) > 1:
        names = ", ".join(settings.names)
        cannot = f"{names} cannot follow texts through a pipeline, where a request sits out every other step"
        raise ValueError(f"{cannot}; take a drafter that vLLM runs, or tensor parallelism")
    where = resolve(model, progress=progress)
    settings = located(settings, model, where)
    _check_drafters(where, settings, other_vocabulary=bool(extra.get("use_heterogeneous_vocab")))
    if settings.state:
        if not (folder := Path(settings.state).resolve().parent).is_dir():
            raise ValueError(f"cannot keep policy state in {settings.state}: no folder {folder}")
        state.open_state(Path(settings.state), settings.build_policy())
    speculative = {**speculative_config(settings, progress), **extra}
    if TABLE in speculative and rows and int(rows) <= settings.max_length:
        least = f"raise it from {rows} to at least {settings.max_length + 1}, or the maximum length is too long"
        raise ValueError(f"vLLM makes graphs for lengths up to one less than max_num_seqs: {least}")
    if settings.hook == SCHEDULER and not on_cpu() and not _graphs_are_set(given):
        requests = min(int(rows or GRAPH_REQUESTS), GRAPH_REQUESTS)
        sizes, most = capture_sizes(requests, settings.max_length), int(given.get("max_num_batched_tokens") or 0)
        given["cudagraph_capture_sizes"] = [size for size in sizes if not most or size <= most]
    additional = dict(given.pop("additional_config", None) or {})
    if KEY in additional:
        raise ValueError(f"additional_config[{KEY!r}] is made here; pass its settings as arguments")
    if on_cpu() and given.get("dtype") is None:
        given["dtype"] = "float32"  # half precision is far slower on most CPUs, and this is what texts are compared in
    if on_cpu() and model == EMBEDDED and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        given.setdefault("kv_cache_memory_bytes", EMBEDDED_CACHE)  # vLLM would take nearly all memory there is
    return {
        **given,
        "model": str(where),
        "scheduler_cls": SCHEDULER_CLASS,
        "speculative_config": speculative,
        "additional_config": {**additional, **settings.additional_config()},
    }


def located(settings: Settings, model: str | Path, where: Path | str) -> Settings:
    """The same settings, with the folder of every drafter shipped for this model, which is at ``where``."""
    known = str(model), partial(weights_fingerprint, where)
    specs = shipped.expand(settings.drafters, *known)
    found = (f"{spec}={shipped.find(spec, *known).folder}" if shipped.split(spec) else spec for spec in specs)
    return replace(settings, drafters=tuple(found))


def speculative_config(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """vLLM's speculative configuration for these drafters, which have been located."""
    length = settings.max_length
    if settings.hook == PROPOSER:
        return {"method": "custom_class", "model": PROPOSER_CLASS, "num_speculative_tokens": length}
    name, value = parse_drafter(settings.model or "ngram")
    kind = engine_kind(name)
    chosen: dict[str, Any] = {"num_speculative_tokens": length}
    if not on_cpu():
        chosen[TABLE] = compat.table_of_lengths(length)
    if kind == ADOPTED:
        return chosen
    chosen["method"] = ENGINE_DRAFTERS[kind]
    if kind in HEADS:
        chosen["method"] = head_kind(value) or kind
    if kind == "ngram":
        # vLLM's V2 runner drafts n-grams on the GPU under both names, but schedules asynchronously only under this one
        chosen["method"] = "ngram" if on_cpu() else "ngram_gpu"
        # as wager's own prompt lookup; vLLM's default of 5 finds next to nothing
        return {**chosen, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    chosen["model"] = str(resolve(value, progress=progress))
    return chosen


def capture_sizes(requests: int, longest: int) -> list[int]:
    """Tokens of a step to capture CUDA graphs for: up to so many requests at the maximum length, and prompts beside.

    vLLM's own list ends at 512 tokens: 128 requests with 4 draft tokens each are 640, and such a step takes three
    times as long outside the graphs. A step that also reads prompts runs in pieces of graphs, or outside of them all,
    which takes twice as long again: with drafts a batch is closer to that limit, and finishes requests sooner.
    """
    top = requests * (1 + longest)
    most, wide = top + GRAPH_PROMPTS, max(top, 1024)
    strides = ((8, 64, 8), (64, 256, 16), (256, 512, 32), (512, wide, 64), (wide, most, 128))  # tokens: from, to, step
    sizes = {1, 2, 4, top, most}.union(*(range(*stride) for stride in strides))
    return sorted(size for size in sizes if size <= most)


def _graphs_are_set(given: Mapping[str, Any]) -> bool:
    """Whether the user has decided what graphs are captured, or that there are none."""
    own, config = ("cudagraph_capture_sizes", "max_cudagraph_capture_size"), given.get("compilation_config")
    read: Callable[[str], Any] = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    return bool(given.get("enforce_eager") or any(given.get(key) or read(key) for key in own) or read("cudagraph_mode"))


def _extra(given: Any) -> dict[str, Any]:
    """Speculative settings of the user's: further ones, or a whole configuration."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"speculative_config is a mapping of vLLM's settings, not {given!r}")
    ours = (TABLE,) if OWN_CHOICE & given.keys() else (TABLE, "num_speculative_tokens")
    if clash := [key for key in ours if key in given]:
        follows = "follows from the drafter and the maximum length; leave it out"
        raise ValueError(f"{', '.join(clash)} in speculative_config {follows}")
    if (method := given.get("rejection_sample_method")) in LOSSY:
        accepts = "accepts tokens that the model would not have written, which wager never does"
        raise ValueError(f"rejection_sample_method {method} {accepts}; leave it out, or serve with vLLM alone")
    return dict(given)


def _check_drafters(where: Path | str, settings: Settings, *, other_vocabulary: bool) -> None:
    for spec in settings.drafters:
        name, value = parse_drafter(spec)
        if name == "retrieval":
            with closing(Datastore.open(value)) as store:
                store.check(fingerprint(load_tokenizer(where)))
        elif engine_kind(name) and value:
            check_drafter_fits(spec, resolve(value), where, other_vocabulary=other_vocabulary)


def on_cpu() -> bool:
    """Whether the installed vLLM runs models on the CPU."""
    return compat.is_cpu_build()


def idle_overhead(plain: Any, speculating: Any) -> list[str]:
    """What turning speculation on changes in an engine even while nothing is drafted, and which requests it then
    refuses, one sentence each.

    Both are vLLM's own configurations of the same engine, without and with speculation.
    """
    found = [(what, of(plain), of(speculating)) for what, of in _FEATURES.items()]
    said = [f"{what}: {one} without speculation, {other} with it" for what, one, other in found if one != other]
    speculative = speculating.speculative_config
    method = speculative.method
    skipping = method in (*HEADS, "draft_model", "mtp") and _reads_all(speculative.draft_model_config)
    lags = getattr(speculating, "use_v2_model_runner", False) and skipping
    if method not in ("ngram", "ngram_gpu", "custom_class") and not lags:  # wager.vllm.lagging
        said.append("drafter: one forward a step even at length 0, which keeps its cache in step")
    if _graphs(speculating) != "none" and method in ("ngram", "custom_class"):
        said.append(
            "CUDA graphs: whole ones only for steps in which every request has exactly the maximum length or none; "
            "drafts of unequal lengths run piecewise"
        )
    with compat.quiet():
        defaults = speculating.model_config.get_diff_sampling_param()
    if (least := defaults.get("min_p", 0)) > 0:
        said.append(
            f"requests: the model's generation config sets min_p to {least}, and vLLM refuses requests with min_p "
            """beside speculation; pass --override-generation-config '{"min_p": 0}', or let each request set it to 0"""
        )
    return said


def _reads_all(drafter: Any) -> bool:
    """Whether all layers of a model have full attention, as far as its config.json tells."""
    text = drafter.hf_text_config
    windows = (getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return not (any(windows) or drafter.is_hybrid or drafter.is_attention_free)


def _graphs(config: Any) -> str:
    mode = getattr(config.compilation_config, "cudagraph_mode", None)
    return "none" if mode is None else str(getattr(mode, "name", mode)).lower()


_FEATURES = {
    "scheduling": lambda c: "asynchronous" if c.scheduler_config.async_scheduling else "synchronous",
    "model runner": lambda c: "V2" if getattr(c, "use_v2_model_runner", False) else "V1",
    "CUDA graphs": _graphs,
}
