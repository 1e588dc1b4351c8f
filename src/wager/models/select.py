"""Which runner a model gets."""

import logging
from typing import Any

from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.llama_weights import configured, llama_weights, outline, sample_of, why_not
from wager.models.runner import TOLERANCE, Runner, apart, vocabulary

log = logging.getLogger("wager")


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
    plain = HFRunner(model)
    plain.temporary = temporary
    return plain


def current(model: Any, known: Runner) -> Runner:
    """The runner as it was, or another one if the model has changed under it: hooks, adapters, weights, vocabulary."""
    if isinstance(known, LlamaRunner):
        changed = known.outline != outline(model) or bool(configured(model))
        if changed or known.weights is not llama_weights(model):
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
        model, tried = some, LlamaRunner(some)
    plain = HFRunner(model)
    plain.begin()
    tried.begin()
    for chunk in (tokens[:8], tokens[8:9], tokens[9:12], tokens[12:]):  # few, one, some, and many as in a prompt
        off = apart(*(r.forward(chunk, len(chunk)) for r in (tried, plain)))
        if not off <= TOLERANCE.get(model.dtype, 1e-4):
            return f"LlamaRunner's logits are {off:.2g} standard deviations from its own"
    tried.begin()
    return ""
