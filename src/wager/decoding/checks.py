"""What users pass to a decoder, checked before anything is computed: a wrong type or value is one sentence."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from wager.core import OFF, Arm, TraceWriter
from wager.core.require import is_whole, require, require_type
from wager.policies.base import Policy

# Settings of ``model.generate`` that transformers compares or adds up without looking: the least each may be.
WHOLE = {"max_new_tokens": 1, "max_length": 1, "num_beams": 1, "num_return_sequences": 1, "min_length": 0}
WHOLE |= dict.fromkeys(("min_new_tokens", "top_k", "no_repeat_ngram_size"), 0)
NUMBERS: tuple[str, ...] = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "max_time")
NUMBERS += ("repetition_penalty", "length_penalty", "guidance_scale")
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "forced_bos_token_id", "forced_eos_token_id")
CALLED = ("logits_processor", "stopping_criteria")
MODES = ("greedy_search", "sample", "assisted_generation")


def kind(value: object) -> str:
    """The name of a value's type."""
    return type(value).__name__


def check_setup(tokenizer: Any, state: Any, tokens: Any, trace: Any) -> None:
    """Refuse arguments of ``Decoder`` that are something else."""
    reads = callable(tokenizer) and hasattr(tokenizer, "decode") and not isinstance(tokenizer, type)
    loads = "wager.models.load_tokenizer(NAME) loads one by name"
    require_type(tokenizer is None or reads, f"a Decoder takes a loaded tokenizer, not a {kind(tokenizer)}; {loads}")
    require_type(isinstance(state, (bool, str, Path)), f"state is True, False or a file's path, not a {kind(state)}")
    require(tokens is None or (is_whole(tokens) and tokens > 0), f"tokens is a whole number above 0, not {tokens!r}")
    writes = "trace is a wager.core.TraceWriter, as TraceWriter(PATH)"
    require_type(trace is None or isinstance(trace, TraceWriter), f"{writes}, not a {kind(trace)}")


def check_policy(policy: Any, arms: Sequence[Arm]) -> None:
    """Refuse a policy that is none, or that was made for other arms than these."""
    require_type(isinstance(policy, Policy), f"a policy is a name or a wager.policies.Policy, not a {kind(policy)}")
    unknown = [str(arm) for arm in arms if arm not in policy.slot and arm != OFF]  # it need not play plain decoding
    made = f"the policy was made for the arms {', '.join(map(str, policy.arms))}"
    require(not unknown, f"{made}, and the decoder has {', '.join(unknown)} too; pass arms=policy.arms")


def check_settings(settings: Mapping[str, Any], vocabulary: int) -> None:
    """Refuse settings of ``model.generate`` that would end in an error without a sentence, or have no effect."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() & WHOLE.keys():
        ok = is_whole(given[name]) and given[name] >= WHOLE[name]
        require(ok, f"{name} is a whole number of at least {WHOLE[name]}, not {given[name]!r}")
    for name in given.keys() & set(NUMBERS):
        ok = isinstance(given[name], Real) and math.isfinite(given[name])
        require(ok, f"{name} is a finite number, not {given[name]!r}")
    require(given.get("temperature", 0) >= 0, f"temperature is at least 0, not {given.get('temperature')}")
    for name in given.keys() & set(TOKENS):
        value = given[name].tolist() if isinstance(given[name], torch.Tensor) else given[name]
        ids = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        require(all(map(is_whole, ids)), f"{name} is a token's number or a list of them, not {given[name]!r}")
        known = not name.startswith("forced") or all(0 <= token < vocabulary for token in ids)
        require(known, f"{name} is a number from 0 to {vocabulary - 1}, not {given[name]!r}")
    for name in given.keys() & set(CALLED):
        ok = isinstance(given[name], Sequence) and all(map(callable, given[name]))
        require_type(ok, f"{name} is a list of functions, not {given[name]!r}")
    if (stops := given.get("stop_strings")) is not None:
        ok = isinstance(stops, str) or (isinstance(stops, Sequence) and all(isinstance(stop, str) for stop in stops))
        require_type(ok, f"stop_strings is a text or a list of texts, not {stops!r}")
    if not isinstance(given.get("do_sample", True), bool):
        raise TypeError(f"do_sample is True or False, not {given['do_sample']!r}")
    allowed = given.get("prefix_allowed_tokens_fn")
    require_type(allowed is None or callable(allowed), f"prefix_allowed_tokens_fn is a function, not {allowed!r}")


def check_listeners(streamer: Any, watch: Any) -> None:
    """Refuse what cannot be given the text as it comes."""
    hears = streamer is None or all(callable(getattr(streamer, name, None)) for name in ("put", "end"))
    require_type(hears, f"a streamer has put() and end(), as transformers.TextStreamer has, not a {kind(streamer)}")
    require_type(watch is None or callable(watch), f"watch is a function of a piece, not a {kind(watch)}")


def check_config(config: Any) -> None:
    """Refuse a generation config that is something else."""
    from transformers import GenerationConfig

    ok = config is None or isinstance(config, GenerationConfig)
    require_type(ok, f"generation_config is a transformers.GenerationConfig, not a {kind(config)}")


def check_tokens(ids: Sequence[Any], vocabulary: int) -> None:
    """Refuse a prompt with anything but the model's tokens."""
    several = any(isinstance(token, str) for token in ids)
    require(not several, "a prompt is one text, or the numbers of its tokens; give several texts one by one")
    for token in ids:
        known = type(token) is int and 0 <= token < vocabulary
        require(known, f"a prompt's tokens are numbers from 0 to {vocabulary - 1}, not {token!r}")


def check_ids(ids: torch.Tensor, vocabulary: int) -> None:
    """Refuse a prompt with tokens that the model does not know."""
    whole = not ids.dtype.is_floating_point and ids.dtype is not torch.bool
    require(whole, f"input_ids are whole numbers, not {str(ids.dtype).removeprefix('torch.')}")
    least, most = (int(end) for end in ids.aminmax())
    wrong = least if least < 0 else most
    require(0 <= wrong < vocabulary, f"a prompt's tokens are numbers from 0 to {vocabulary - 1}, not {wrong}")


def check_mode(config: Any) -> None:
    """Refuse ways to decode that are neither greedy nor sampling, such as beam search."""
    if config.num_beams > 1:
        raise ValueError(f"wager has no beam search; num_beams is 1, not {config.num_beams}")
    mode = str(config.get_generation_mode().value)
    require(mode in MODES, f"wager decodes greedily or samples; it has no {mode.replace('_', ' ')}")
