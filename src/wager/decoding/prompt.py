"""A prompt as its tokens: a text, chat messages, or token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from wager.core.require import require
from wager.decoding.checks import check_tokens


def prompt_ids(prompt: Any, tokenizer: Any, vocabulary: int) -> list[int]:
    """The tokens of a prompt, all of them from such a vocabulary."""
    if hasattr(prompt, "tolist"):  # a tensor or an array
        prompt = prompt.tolist()
    if isinstance(prompt, str) or (isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping)):
        require(tokenizer is not None, "a prompt in words needs a tokenizer: Decoder(model, tokenizer)")
        ids = tokenizer(prompt).input_ids if isinstance(prompt, str) else _chat_ids(prompt, tokenizer)
    elif not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise TypeError(f"a prompt is text, token ids or chat messages, not a {type(prompt).__name__}")
    else:
        ids = list(prompt)
        if ids and isinstance(ids[0], list):
            require(len(ids) <= 1, f"wager decodes one text at a time, not a batch of {len(ids)}")
            ids = ids[0]
    require(bool(ids), "the prompt is empty; give at least one token")
    check_tokens(ids, vocabulary)
    return list(ids)


def _chat_ids(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[int]:
    has = getattr(tokenizer, "chat_template", None)
    require(bool(has), "this tokenizer has no chat template; pass the prompt as text, or set chat_template")
    try:
        ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    except (TemplateError, TypeError) as error:
        raise ValueError(f"the chat template takes no such messages: {error}") from None
    return ids
