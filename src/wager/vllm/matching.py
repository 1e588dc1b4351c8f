"""Drafts by matching, next to the texts on the GPU: the longest end of a text that stood somewhere before.

Each request's own text is searched (prompt lookup) and, where there is one, a ring of finished outputs of all requests
(suffix matching across requests) and a datastore (retrieval). The longest match wins, then the most recent; the text
itself is more recent than what is finished, and that than a datastore. Nothing is copied to the CPU and nothing waits
for the device.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch

from wager.drafters.datastore import Datastore
from wager.vllm.draft_choice import MEMORY, DraftChoice
from wager.vllm.stored import Stored

SHORTEST, LONGEST = 2, 16  # tokens a match has at least, and at most as far as it is followed
RING = 1 << 16  # tokens of finished outputs to remember; 32 requests read as much in about 10 µs on an H200
BLOCK = 1024  # positions one program of a kernel looks at
COPY_BLOCK = 1024  # tokens copied at once into the ring
SEPARATOR = -1  # between texts in the ring: no token


def match_reference(
    text: Sequence[int], finished: Sequence[int], most: int, shortest: int = SHORTEST, longest: int = LONGEST
) -> tuple[list[int], int]:
    """The drafted tokens, ``most`` or fewer, and the length of the match they follow: slow, and what the kernels do.

    finished: texts of other requests, oldest first, each followed by SEPARATOR.
    """
    match, source, place = 0, text, 0
    for candidate in (finished, text):  # the later wins where matches are equally long
        for after in range(1, len(candidate)):
            run = 0
            while run < min(longest, after, len(text)) and candidate[after - 1 - run] == text[-1 - run]:
                run += 1
            if run >= max(shortest, match):
                match, source, place = run, candidate, after
    if not match:
        return [], 0
    if source is text:
        period = len(text) - place  # past its end a text is taken to go on in its period
        return [text[place + step % period] for step in range(most)], match
    copied = list(source[place : place + most])
    return copied[: copied.index(SEPARATOR)] if SEPARATOR in copied else copied, match


class Matcher:
    """Searches the texts of a model runner's ``RequestState``, on whatever device they are.

    Kernels on a GPU, and in Triton's interpreter; the reference elsewhere.
    """

    def __init__(
        self, texts: Any, length: int, *, ring: int = 0, store: Datastore | None = None, shortest: int = SHORTEST,
        longest: int = LONGEST,
    ) -> None:  # fmt: skip
        if ring & (ring - 1) or 0 < ring < BLOCK:
            raise ValueError(f"a ring of finished texts holds 0 or a power of two from {BLOCK} tokens, not {ring}")
        self.texts, self.length, self.shortest, self.longest = texts, length, shortest, longest
        device, slots = texts.total_len.gpu.device, texts.max_num_reqs
        self.ring_size = ring
        self.ring = torch.full((max(ring, 1),), SEPARATOR, dtype=torch.int32, device=device)
        # Tokens ever written to it. Two, used in turn: whoever writes the one reads the other.
        self._head, self._next_head = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self._written = 0  # at most so many tokens are in the ring, as far as the CPU knows
        self._ended: list[tuple[int, int]] = []  # slots whose text is to be remembered, and where its output starts
        self._best = torch.zeros(slots, dtype=torch.int64, device=device)
        self.matched = torch.zeros(slots, dtype=torch.int32, device=device)  # [requests]: of the last drafts
        self.counts = torch.zeros(slots, dtype=torch.int32, device=device)
        self.choice = DraftChoice(slots, length, longest, device)  # between a match and a model's draft
        self.stored = Stored(store, texts, length, shortest) if store is not None else None
        self.kernels: Any = None
        if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            from wager.vllm import match_kernels

            self.kernels = match_kernels

    def draft(
        self,
        rows: torch.Tensor,
        sampled: torch.Tensor,
        last: torch.Tensor,
        drafts: torch.Tensor,
        longest_text: int,
        drafted: int | None = None,
        *,
        by_slot: bool = False,
    ) -> None:
        """Write every request's draft into ``drafts`` [requests, length], or [slots, length] where it is ``by_slot``.

        rows: slot of each request; sampled: tokens it got in this step, 0 for one still reading its prompt; last: by
        slot, the token sampled last; longest_text: tokens, at least those of the longest text. Without ``drafted``
        every row is written, with the last sampled token where nothing is found: it is verified and rejected. With it
        a model's drafts of so many tokens are there, and only the rows are written whose match is likely to be better.
        """
        self.flush()
        if self.stored is not None:
            self.stored.search(rows, sampled)
        if self.kernels is None:
            into = rows.tolist() if by_slot else range(rows.shape[0])
            self._draft_by_reference(rows, sampled, last, drafts, drafted, into)
            return
        requests, choice, fill = rows.shape[0], self.choice, drafted is None
        tokens, lengths = self.texts.all_token_ids.gpu, self.texts.total_len.gpu
        own, finished = -(-longest_text // BLOCK), -(-self._written // BLOCK)
        self.kernels.scan[(requests, own + finished)](
            tokens, tokens.stride(0), rows, lengths, sampled, self.ring, self._head, self._best, own,
            self.ring_size - finished * BLOCK, choice.kept, choice.gains, choice.judged, SHORTEST=self.shortest,
            LONGEST=self.longest, RING=self.ring_size, BLOCK=BLOCK, K=self.length, K_BLOCK=_power(self.length),
            FILL=fill,
        )  # fmt: skip
        stored_run, stored = (self.stored.matched, self.stored.found) if self.stored else (self.matched, self.counts)
        self.kernels.draft[(requests,)](
            tokens, tokens.stride(0), rows, lengths, last, self.ring, self._head, self._best, drafts, drafts.stride(0),
            self.matched, self.counts, stored_run, stored, choice.kept, choice.gains, choice.judged, drafted or 0,
            STORED=self.stored is not None, RING=self.ring_size, K=self.length, K_BLOCK=_power(self.length), FILL=fill,
            BY_SLOT=by_slot, MEMORY=MEMORY, RUN_BLOCK=_power(self.longest + 1), RUNS=self.longest + 1, num_warps=1,
        )  # fmt: skip

    def end(self, slot: int) -> None:
        """The text in this slot is finished: remember its output before the slot is used again."""
        if not self.ring_size:
            return
        prompt = int(self.texts.prompt_len.np[slot])
        known = max(int(self.texts.prefill_len.np[slot]), int(self.texts.num_computed_tokens_np[slot]))
        start = max(0, prompt - self.longest)  # with the end of the prompt, so that an output matches from its start
        self._written = min(self.ring_size, self._written + known - start + 2 * (self.length + 2))
        self._ended.append((slot, start))

    def flush(self) -> None:
        """Copy the finished texts into the ring; must be called before their slots are written to."""
        if not self._ended:
            return
        count, most = len(self._ended), min(self.ring_size // 4, self.ring_size // len(self._ended) - 1)
        ended, self._ended = self._ended, []
        if self.kernels is None:
            self._remember_by_reference(ended, most)
            return
        tokens, there = self.texts.all_token_ids.gpu, self.ring  # the latter is not read where there is one
        if count > 1:
            there = torch.tensor(list(zip(*ended, strict=True)), dtype=torch.int32)
            if self.ring.is_cuda:
                there = there.pin_memory().to(self.ring.device, non_blocking=True)
        self.kernels.remember[(count, most // COPY_BLOCK + 1)](
            tokens, tokens.stride(0), self.texts.total_len.gpu, there, *ended[0], count, most, self.ring, self._head,
            self._next_head, RING=self.ring_size, SLOTS=_power(self.texts.max_num_reqs), BLOCK=COPY_BLOCK,
            ONE=count == 1,
        )  # fmt: skip
        self._head, self._next_head = self._next_head, self._head

    def forget(self) -> None:
        """Empty the ring."""
        self._ended.clear()
        self.ring.fill_(SEPARATOR)
        self._written = 0

    def warm_up(self, drafts: torch.Tensor, drafted: int | None = None, *, by_slot: bool = False) -> None:
        """Compile the kernels, so that no request waits for it; what is drafted for nobody goes to the first row."""
        nobody = torch.zeros(1, dtype=torch.int64, device=drafts.device)
        if self.ring_size:
            for texts in (2, 1):
                self._ended += [(0, self.texts.max_model_len)] * texts  # empty: nothing is remembered
                self.flush()
        self.draft(nobody, nobody.int(), torch.zeros_like(self._best), drafts, BLOCK, drafted, by_slot=by_slot)

    def finished(self) -> list[int]:
        """What the ring holds, oldest first; waits for the device: for tests."""
        if not self.ring_size:
            return []
        head = int(self._head) % self.ring_size
        return self.ring.roll(-head).tolist()

    def _draft_by_reference(
        self,
        rows: torch.Tensor,
        sampled: torch.Tensor,
        last: torch.Tensor,
        drafts: torch.Tensor,
        drafted: int | None,
        into: Sequence[int],
    ) -> None:
        finished, slots, new = self.finished(), rows.tolist(), sampled.tolist()
        texts = [self.texts.all_token_ids.gpu[slot, : int(self.texts.total_len.gpu[slot])].tolist() for slot in slots]
        if drafted is not None:
            for slot, text, count in zip(slots, texts, new, strict=True):
                if count:
                    self.choice.judge(slot, text, count)
        for request, (slot, text) in enumerate(zip(slots, texts, strict=True)):
            tokens: list[int] = []
            match = 0
            if new[request]:
                tokens, match = match_reference(text, finished, self.length, self.shortest, self.longest)
                if self.stored is not None and int(self.stored.matched[request]) > match:
                    match = int(self.stored.matched[request])
                    tokens = [token for token in self.stored.found[request].tolist() if token >= 0]
            self.matched[request], self.counts[request] = match, len(tokens)
            if drafted is None:
                drafts[into[request], : self.length] = last[slot]
            elif not self.choice.take(slot, len(text), match, tokens, drafts[into[request]], drafted):
                continue
            drafts[into[request], : len(tokens)] = torch.tensor(tokens, dtype=drafts.dtype)
        if drafted is not None:
            self.choice.forget()

    def _remember_by_reference(self, ended: Sequence[tuple[int, int]], most: int) -> None:
        head = int(self._head)
        for slot, start in ended:
            size = int(self.texts.total_len.gpu[slot])
            kept = self.texts.all_token_ids.gpu[slot, max(start, size - most) : size].tolist()
            for token in [*kept, SEPARATOR] if kept else []:
                self.ring[head % self.ring_size] = token
                head += 1
        self._head.fill_(head)


def _power(number: int) -> int:
    """The power of two that holds as many."""
    return 1 << max(0, number - 1).bit_length()
