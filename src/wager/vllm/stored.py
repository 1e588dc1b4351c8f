"""A datastore on the GPU: what follows the end of a text in a corpus, for every request of a step at once."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wager.drafters.datastore import DEPTH, Datastore
from wager.drafters.retrieval import Retrieval

LOOK = 32  # occurrences of a match that are counted, as in wager.drafters.retrieval; a power of two


class Stored:
    """The corpus and its suffixes on the device of the texts, and what was found in the last step."""

    def __init__(self, store: Datastore, texts: Any, length: int, shortest: int) -> None:
        device = texts.total_len.gpu.device
        self.texts, self.length, self.shortest = texts, length, shortest
        self.matched = torch.zeros(texts.max_num_reqs, dtype=torch.int32, device=device)
        self.found = torch.zeros(texts.max_num_reqs, length, dtype=torch.int32, device=device)
        self.reference = Retrieval(store, shortest=shortest, look=LOOK)
        self.kernels: Any = None
        if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            from wager.vllm import retrieve_kernels

            self.kernels = retrieve_kernels
            cells = np.frombuffer(store.corpus(), dtype=f">u{store.header.width}").astype(np.int64)
            cells[cells == (1 << 8 * store.header.width) - 1] = retrieve_kernels.END
            self.corpus = torch.from_numpy(cells.astype(np.int32)).to(device)
            self.suffixes = torch.from_numpy(np.frombuffer(store.suffixes, dtype=np.uint32).astype(np.int32)).to(device)

    def search(self, rows: torch.Tensor, sampled: torch.Tensor) -> None:
        """Find the tokens that follow each request's text; rows and sampled as in `Matcher.draft`."""
        tokens, lengths, requests = self.texts.all_token_ids.gpu, self.texts.total_len.gpu, rows.shape[0]
        if self.kernels is not None:
            self.kernels.retrieve[(requests,)](
                tokens, tokens.stride(0), rows, lengths, sampled, self.corpus, self.corpus.shape[0], self.suffixes,
                self.suffixes.shape[0], self.matched, self.found, SHORTEST=self.shortest, DEPTH=DEPTH, K=self.length,
                LOOK=LOOK, num_warps=1,
            )  # fmt: skip
            return
        for request, (row, new) in enumerate(zip(rows.tolist(), sampled.tolist(), strict=True)):
            match, follows = self.look_up(tokens[row, : int(lengths[row])].tolist()) if new else (0, [])
            self.matched[request] = match
            self.found[request] = torch.tensor([*follows, *[-1] * (self.length - len(follows))], dtype=torch.int32)

    def look_up(self, text: Sequence[int]) -> tuple[int, list[int]]:
        """The longest match of a text's end and what follows it most often: slow, and what the kernel does.

        Where nothing follows the longest match nothing is found, unlike on a CPU, where shorter ones are tried.
        """
        self.reference.begin(text)
        draft, store = self.reference.propose(self.length), self.reference.datastore
        _, longest = store.find(store.key(text))
        return (longest, draft.tokens) if draft.hint.match == longest else (0, [])
