"""Match or model: whose draft a request verifies, learned on the device from what both had right.

Both drafts of a step are kept. When the next tokens of the text are known, the two are compared with them, whichever
was verified, and the difference is added up by the length of the match. A match replaces the model's draft where
matches of its length had more tokens right than the model's drafts beside them.
"""

from collections.abc import Sequence

import torch

TRUSTED = 4  # tokens: matches from this length on are expected to be better until drafts were compared
PRIOR = 8  # tokens that this expectation counts
MEMORY = 256  # comparisons of one length of match after which what was learned counts half


class DraftChoice:
    """What was drafted last for each slot, and what comparing it has shown, on the device."""

    def __init__(self, slots: int, length: int, longest_match: int, device: torch.device) -> None:
        self.length = length
        # of each slot: length of the text, of the match and of the drafts; the match's draft, the model's draft
        self.kept = torch.zeros(slots, 3 + 2 * length, dtype=torch.int32, device=device)
        runs = torch.arange(longest_match + 1, device=device)
        self.gains = torch.where(runs >= TRUSTED, PRIOR, -PRIOR).int()  # by length of match: tokens right, difference
        self.judged = torch.zeros(longest_match + 1, dtype=torch.int32, device=device)

    def judge(self, slot: int, text: Sequence[int], new: int) -> None:
        """Compare the kept drafts of a text with its ``new`` last tokens; as the kernels do, on the CPU."""
        before, run, drafted, *tokens = self.kept[slot].tolist()
        if not run or before != len(text) - new:
            return
        true = text[before:][:drafted]
        match, model = tokens[: self.length], tokens[self.length :]
        self.gains[run] += _right(match, true) - _right(model, true)
        self.judged[run] += 1

    def take(self, slot: int, size: int, run: int, match: Sequence[int], draft: torch.Tensor, drafted: int) -> bool:
        """Keep both drafts for a text of ``size`` tokens; whether the match is to be verified."""
        padded = [*match, *[-1] * (self.length - len(match))]
        model = draft[: self.length].tolist()
        self.kept[slot] = torch.tensor([size, run, drafted, *padded, *model], dtype=torch.int32)
        return bool(self.gains[run] > 0)

    def forget(self) -> None:
        """Halve what rests on many comparisons, without a change of what is taken now."""
        many = self.judged >= MEMORY
        self.judged[many] //= 2
        self.gains[many] = (self.gains[many] + 1) >> 1


def _right(draft: Sequence[int], true: Sequence[int]) -> int:
    """Tokens of a draft up to the first that is wrong."""
    return next((at for at, (one, other) in enumerate(zip(draft, true, strict=False)) if one != other), len(true))
