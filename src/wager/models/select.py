"""Which runner a model gets."""

import logging
from typing import Any

import torch

from wager.models import compat_torch
from wager.models import compat_transformers as compat
from wager.models.hf_runner import SMALL_WINDOW, TRIED, HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.llama_shape import configured
from wager.models.llama_weights import llama_weights, outline, sample_of, why_not
from wager.models.runner import TOLERANCE, Runner, apart, context_limit, vocabulary
from wager.models.state_runner import StateRunner
from wager.models.step_runner import StepRunner

log = logging.getLogger("wager")

NO_DRAFTS = "gives several tokens at once other logits than one by one, or keeps a state that cannot be copied"
COMPARED = 8  # positions of a forward whose logits are compared: an output head may be a fifth of a model
_OWN: dict[tuple[Any, ...], type[HFRunner] | None] = {}  # per family: the way that works; None: token by token only


def runner(model: Any) -> Runner:
    """The fastest way to run a model that gives its own logits, checked against them once."""
    reason = why_not(model)
    temporary = bool(reason)
    if not reason:
        try:
            if model.device.type == "cuda":
                from wager.models.cuda_graph_runner import CUDAGraphRunner

                ours: LlamaRunner = CUDAGraphRunner(model)
            else:
                ours = LlamaRunner(model)
            reason = _disagreement(model, ours)
        except Exception as error:  # a compiler, a driver, too little memory: the model's own forward still works
            reason = f"LlamaRunner failed ({type(error).__name__}: {error})"
        if not reason:
            ours.outline = outline(model)
            return ours
    level = logging.INFO if temporary else logging.WARNING
    log.log(level, "%s runs through transformers' own forward: %s", type(model).__name__, reason)
    plain = own_forward(model)
    if isinstance(plain, HFRunner):
        plain.temporary = temporary
    return plain


def own_forward(model: Any) -> Runner:
    """Runs the model through its own forward, in the first of three ways in which a refused draft leaves no trace."""
    kinds = frozenset(map(type, (*compat_torch.modules(model), *model.parameters())))  # of its layers and weights
    family = type(model), model.config.to_json_string(), model.dtype, model.device.type, kinds
    if family not in _OWN:
        with compat.small_windows(model, SMALL_WINDOW):
            _OWN[family] = next((kind for kind in (HFRunner, StateRunner) if _takes_back(kind, model)), None)
    kind, limit = _OWN[family], context_limit(model)
    if limit < (getattr(model.config.get_text_config(), "max_position_embeddings", None) or 0):
        why = "beyond them its LongRoPE would rotate all keys anew"
        log.warning("texts of %s end at %d tokens here: %s", type(model).__name__, limit, why)
    return StepRunner(model, f"{type(model).__name__} {NO_DRAFTS}") if kind is None else kind(model)


def _takes_back(kind: type[HFRunner], model: Any) -> bool:
    """Whether drafts have the logits that their tokens have one by one, and leave no trace if they are refused."""
    tokens = [token % vocabulary(model) for token in TRIED]
    try:
        made, single = kind(model), kind(model)
        for one in (made, single):
            one.begin()
            one.forward(tokens[:6], 1)
        expected = [single.forward([token], 1).clone() for token in tokens[6:]]
        rows = [made.forward([*tokens[6:8], *tokens[2:4]], 4)[:2].clone()]
        made.crop(8)
        rows.append(made.forward(tokens[8:9], 1).clone())
        rows.append(made.forward(tokens[9:], 3))
    except Exception as error:  # it has another cache, or none, or an arithmetic that starts at the text's beginning
        log.info("%s: no %s (%s: %s)", type(model).__name__, kind.__name__, type(error).__name__, error)
        return False
    same = apart(torch.cat(rows), torch.cat(expected)) <= TOLERANCE.get(model.dtype, 1e-4)
    return same and compat.well_known(made.cache)


def current(model: Any, known: Runner) -> Runner:
    """The runner as it was, or another one if the model has changed under it: hooks, adapters, weights, vocabulary."""
    if isinstance(known, LlamaRunner):
        now = outline(model)
        if known.outline != now or bool(configured(model)) or known.weights is not llama_weights(model, now):
            return runner(model)
    if isinstance(known, HFRunner) and known.temporary and not why_not(model):
        return runner(model)
    known.vocabulary = vocabulary(model)
    return known


def _disagreement(model: Any, ours: LlamaRunner) -> str:
    """Why LlamaRunner is not to be trusted with this model; empty if it gives what the model gives."""
    tokens = [(7 + 31 * i) % ours.vocabulary for i in range(48)]
    tried: Runner = ours
    if model.device.type == "cpu" and (some := sample_of(model)) is not None:
        model, tried = some, LlamaRunner(some, ours.weights.of_layers(some))
    plain = HFRunner(model)
    plain.begin()
    for chunk in (tokens[:8], tokens[8:9], tokens[9:12], tokens[12:]):  # few, one, some, and many as in a prompt
        off = apart(*(r.forward(chunk, min(len(chunk), COMPARED)) for r in (tried, plain)))
        if not off <= TOLERANCE.get(model.dtype, 1e-4):
            return f"LlamaRunner's logits are {off:.2g} standard deviations from its own"
    tried.crop(0)
    return ""
