"""Whether a plan's target can be trained for, by its configuration and tokenizer alone: before anything is computed."""

from collections.abc import Sequence
from typing import Any

from wager.models.embedded import quiet
from wager.models.resolve import load_config, load_tokenizer
from wager.training.config import Plan

SMALL = ("vocab_size", "max_position_embeddings", "rms_norm_eps")  # what every drafter takes from the target
HEAD = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rope_parameters")


def check_target(plan: Plan, names: Sequence[str] = ()) -> None:
    """Refuse, in one sentence, a target that the plan's drafters, or those of these names, cannot be trained for."""
    config = load_config(plan.target).get_text_config()
    if load_tokenizer(plan.target).chat_template is None:
        raise ValueError(
            f"the tokenizer of {plan.target} has no chat template, by which prompts are put to it; "
            "add one to its tokenizer_config.json, or train for the model that was tuned to follow instructions"
        )
    drafters = [plan.drafters[name] for name in names or plan.drafters]
    heads = [drafter.name for drafter in drafters if drafter.kind.startswith("eagle")]
    if why := _why_not(config, bool(heads)):
        what = f"drafter {heads[0]!r}, a head, cannot" if heads and not _why_not(config, False) else "drafters cannot"
        raise ValueError(f"{what} be trained for {plan.target} ({config.model_type}): {why}")
    for drafter in drafters:  # it starts from the target's embedding, squeezed into fewer directions
        if drafter.kind == "draft" and drafter.hidden > config.hidden_size:
            large = f"drafter {drafter.name!r} has a hidden size of {drafter.hidden}, the target {config.hidden_size}"
            raise ValueError(f"{large}; set hidden to no more than the target's")


def _why_not(config: Any, head: bool) -> str:
    """What stands against a target; empty if nothing does."""
    if missing := [name for name in SMALL + (HEAD if head else ()) if getattr(config, name, None) is None]:
        return f"its configuration has no {missing[0]}, so it is not shaped like a Llama"
    if getattr(config, "final_logit_softcapping", None) is not None:
        return "it caps its logits, so they are not its output head's alone"
    if any(getattr(config, name, 1.0) != 1.0 for name in ("logits_scaling", "logit_scale")):
        return "it scales its logits, so they are not its output head's alone"
    if head and "rope_type" not in config.rope_parameters:
        return "its layers rotate by different angles, and a head has one kind of layer"
    body = _skeleton(config)
    if not hasattr(body, "lm_head") or not hasattr(body, "model"):
        return "it has no lm_head over a model"
    return "it has no rotary embedding" if head and not hasattr(body.model, "rotary_emb") else ""


def _skeleton(config: Any) -> Any:
    """The model without memory for its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), quiet():
        return AutoModelForCausalLM.from_config(config)
