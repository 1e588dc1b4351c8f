"""wager inside ``model.generate``."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn.utils.rnn import pad_sequence

from wager.decoding import prepare
from wager.decoding.checks import check_ids
from wager.decoding.decoder import DRAFTERS, Decoder
from wager.decoding.rows import of_row
from wager.drafters.draft_model import DraftModel
from wager.models.compat_transformers import croppable, hidden_arguments, mask_length, pad_token, pass_tokenizer_to
from wager.models.hf_runner import HFRunner
from wager.models.runner import Runner
from wager.models.unwrap import unwrapped

KEPT = "_wager_decoder"  # the attribute of a model that holds the decoder made for it


def generate(model: Any, input_ids: torch.Tensor, logits_processor: Any = None, stopping_criteria: Any = None,
             generation_config: Any = None, streamer: Any = None, decoder: Decoder | None = None,
             tokenizer: Any = None, **inputs: Any) -> Any:  # fmt: skip
    """Drop-in for transformers: ``model.generate(**inputs, custom_generate=wager.generate)``.

    The first call makes a Decoder with the defaults for this model and later ones go on with it; an ``assistant_model``
    is one more drafter. Pass ``decoder=`` for one of your own. A batch is decoded text by text, with one policy. The
    ``tokenizer`` is for transformers, which makes a stopping criterion of it and ``stop_strings``.
    """
    if generation_config is None:
        raise TypeError("wager.generate is called by transformers: model.generate(..., custom_generate=wager.generate)")
    how = (logits_processor, stopping_criteria, generation_config)
    cache, mask = inputs.get("past_key_values"), inputs.get("attention_mask")
    held = cache.get_seq_length() if cache is not None else 0
    if len(input_ids) > 1 and not held and not generation_config.return_dict_in_generate:
        masks, texts = mask, []
        for at, row in enumerate(input_ids):
            mask = None if masks is None or bool(masks[at].all()) else masks[at : at + 1]
            own = [of_row(given, at, len(input_ids)) for given in (logits_processor, stopping_criteria)]
            more: dict[str, Any] = {"streamer": streamer, "decoder": decoder, "attention_mask": mask}
            texts.append(generate(model, row[None], own[0], own[1], generation_config, **more)[0])
        return pad_sequence(texts, batch_first=True, padding_value=pad_token(generation_config))
    if decoder is not None and not isinstance(decoder, Decoder):
        raise TypeError(f"decoder is a wager.Decoder, not a {type(decoder).__name__}")
    request = prepare.prepared(model, input_ids, *how, **inputs)
    hidden = hidden_arguments()
    decoder = decoder or _kept(model, hidden.get("assistant_model"))
    if decoder.model is not model:
        raise ValueError(f"the decoder passed was made for another {type(decoder.model).__name__}")
    # Without an all-ones mask, which transformers drops, only its length tells new tokens alone from the whole text.
    whole = mask.shape[1] if mask is not None else mask_length(generation_config, input_ids.shape[1])
    if held and not held < input_ids.shape[1] == whole:
        wanted = "pass the whole text, with at least one token that is not in the cache"
        raise ValueError(f"past_key_values hold {held} tokens and input_ids {input_ids.shape[1]}; {wanted}")
    target: Runner = decoder.current_target()
    check_ids(input_ids, target.vocabulary)
    filled = hidden.get("past_key_values")  # the caller's own, to go on from later
    fills = filled is not None and all(map(croppable, filled.layers))
    if held or fills or mask is not None or generation_config.return_dict_in_generate:
        from transformers import DynamicCache

        own = cache if cache is not None else DynamicCache(config=model.config)  # none with use_cache=False
        target = HFRunner(model, own, mask)  # over the caller's own cache or padding
    tokens: list[int] = []
    shown: Any = hidden.get("streamer")  # which has had the prompt already
    for step in decoder.run(request, target, streamer=streamer):
        tokens += step.tokens
        for token in step.tokens if shown is not None else ():
            shown.put(torch.tensor([token]))
    if shown is not None:
        shown.end()
    sequences = torch.cat((input_ids, input_ids.new_tensor([tokens])), dim=1)
    if not generation_config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences), past_key_values=cache)


pass_tokenizer_to(generate)


def _kept(model: Any, assistant: Any) -> Decoder:
    """The decoder of earlier calls, on the model so that both go together; one that has this assistant as a drafter."""
    decoder: Decoder | None = model.__dict__.get(KEPT)
    drafting = [] if decoder is None else [getattr(d.runner, "model", None) for d in decoder.drafters.values()]
    if decoder is None or (assistant is not None and not any(drafter is unwrapped(assistant) for drafter in drafting)):
        if assistant is not None and not hasattr(assistant, "config"):
            raise TypeError(f"assistant_model is a loaded model, not a {type(assistant).__name__}")
        more = [] if assistant is None else [DraftModel(assistant)]
        decoder = model.__dict__[KEPT] = Decoder(model, drafters=[*DRAFTERS, *more])
    return decoder
