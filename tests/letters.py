"""A model and a tokenizer that cost nothing: 128 letters, and a random Llama that writes them."""

from collections.abc import Sequence
from typing import Any

import torch
from small import SHAPE
from transformers import LlamaConfig, LlamaForCausalLM

SIZE = 128


class Letters:
    """A token is a letter; a chat is its messages one after the other."""

    chat_template = "messages"

    def __call__(self, text: str) -> Any:
        return type("Encoded", (), {"input_ids": [ord(letter) % SIZE for letter in text]})

    def apply_chat_template(
        self, messages: Sequence[Any], add_generation_prompt: bool = True, return_dict: bool = True
    ) -> Any:
        ids = self(" ".join(message["content"] for message in messages)).input_ids
        return {"input_ids": ids} if return_dict else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


def writer() -> Any:
    """A random model over the letters; the same one every time."""
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(vocab_size=SIZE, max_position_embeddings=1024, **SHAPE)).eval()
