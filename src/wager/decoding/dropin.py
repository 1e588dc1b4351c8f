"""wager inside ``model.generate``."""

from __future__ import annotations

from typing import Any, cast

import torch

from wager.decoding import prepare
from wager.decoding.decoder import Decoder
from wager.models.compat_transformers import mask_length
from wager.models.hf_runner import HFRunner
from wager.models.runner import Runner

KEPT = "_wager_decoder"  # the attribute of a model that holds the decoder made for it


def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    streamer: Any = None,
    decoder: Decoder | None = None,
    **inputs: Any,
) -> Any:
    """Drop-in for transformers: ``model.generate(**inputs, custom_generate=wager.generate)``.

    The first call makes a Decoder with the defaults for this model and later ones go on with it; pass ``decoder=`` for
    one of your own. transformers does not hand a streamer to a custom function: use ``Decoder.stream``, or
    ``custom_generate=functools.partial(wager.generate, streamer=…)``.
    """
    request = prepare.prepared(model, input_ids, logits_processor, stopping_criteria, generation_config, **inputs)
    if decoder is None:
        decoder = model.__dict__.get(KEPT)  # on the model, so that both go when nobody holds the model any more
        if decoder is None:
            decoder = model.__dict__[KEPT] = Decoder(model)
    if decoder.model is not model:
        raise ValueError(f"the decoder passed was made for another {type(decoder.model).__name__}")
    cache, mask = inputs.get("past_key_values"), inputs.get("attention_mask")
    held = cache.get_seq_length() if cache is not None else 0
    # Without an all-ones mask, which transformers drops, only its length tells new tokens alone from the whole text.
    whole = mask.shape[1] if mask is not None else mask_length(generation_config, input_ids.shape[1])
    if held and not held < input_ids.shape[1] == whole:
        wanted = "pass the whole text, with at least one token that is not in the cache"
        raise ValueError(f"past_key_values hold {held} tokens and input_ids {input_ids.shape[1]}; {wanted}")
    target: Runner = decoder.current_target()
    if held or mask is not None or generation_config.return_dict_in_generate:
        from transformers import DynamicCache

        own = cache if cache is not None else DynamicCache(config=model.config)  # none with use_cache=False
        target = HFRunner(model, own, mask)  # over the caller's own cache or padding
    tokens = [token for step in decoder.run(request, target, streamer=streamer) for token in step.tokens]
    sequences = torch.cat((input_ids, input_ids.new_tensor([tokens])), dim=1)
    if not generation_config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences), past_key_values=cache)
