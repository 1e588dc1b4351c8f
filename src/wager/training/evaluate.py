"""What a drafter is worth on greedy answers it has not seen: acceptance per position, and tokens a round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from wager.training import answers
from wager.training.answers import Text
from wager.training.batches import once
from wager.training.config import Answers
from wager.training.learners import Learner, mixed
from wager.training.prompts import Prompt

LENGTHS = (1, 2, 3, 4, 5)  # of drafts
BATCH_TOKENS = 16384

Rows = dict[str, dict[str, dict[str, Any]]]  # drafter -> task -> figures


@dataclass(slots=True)
class Judged:
    """Drafts of one length over many greedy texts, each text walked round by round as decoding would."""

    length: int
    rounds: int = 0
    tokens: int = 0
    reached: list[int] = field(default_factory=list)  # rounds whose draft was right up to each position

    def add(self, accepted: Sequence[int]) -> None:
        """One text, by what a draft from each of its tokens would have had accepted; -1: nothing to draft there."""
        self.reached = self.reached or [0] * self.length
        at = next((i for i, count in enumerate(accepted) if count >= 0), len(accepted))
        while at < len(accepted) and accepted[at] >= 0:
            count = min(accepted[at], self.length)
            self.rounds += 1
            self.tokens += count + 1
            for position in range(count):
                self.reached[position] += 1
            at += count + 1

    @property
    def mat(self) -> float:
        """Mean tokens a round, the target's own included."""
        return self.tokens / max(1, self.rounds)

    @property
    def acceptance(self) -> list[float]:
        """Per position: of the drafts that came so far, the share that is right there too."""
        return [r / b if b else 0.0 for r, b in zip(self.reached, [self.rounds, *self.reached], strict=False)]


def judge(
    learner: Learner, texts: Sequence[Text], tokens: int, device: torch.device, lengths: Sequence[int]
) -> list[Judged]:
    """The drafter on these greedy texts, once for every length."""
    found = [Judged(length) for length in lengths]
    for batch in once(texts, tokens):
        with mixed(device):
            rows = learner.accepted(batch).tolist()
        for row in rows:
            for one in found:
                one.add(row)
    return found


def greedy_answers(model: Any, tokenizer: Any, prompts: Sequence[Prompt], tokens: int, longest: int,
                   kept: Path | None, done: Callable[[int], None]) -> list[Text]:  # fmt: skip
    """The target's greedy answers, kept in a folder or taken from it; ``done`` gets the number of parts after each."""
    how = Answers((0.0,), (1.0,), tokens, longest, 256 if model.device.type == "cuda" else 1)
    work = answers.parts(prompts, tokenizer, how)
    with TemporaryDirectory() as spare:
        folder = kept or Path(spare)
        answers.answer(model, work, folder, tokens, done=lambda *_: done(len(work)))
        wanted = {prompt.key for part in work for prompt, _ in part.prompts}
        found = {text.key: text for text in answers.texts(folder) if text.key in wanted}
    if found.keys() != wanted:
        raise ValueError(f"{folder} holds answers to other prompts; give another folder with --answers")
    return list(found.values())


def judge_by_task(drafters: Mapping[str, Any], texts: Sequence[Text], tasks: Sequence[str], model: Any,
                  done: Callable[[str, str], None]) -> Rows:  # fmt: skip
    """Tokens a round and acceptance of every drafter on every task."""
    rows: Rows = {name: {} for name in drafters}
    for name, learner in drafters.items():
        for task in tasks:
            own = [text for text in texts if text.domain == task]
            found = judge(learner, own, BATCH_TOKENS, model.device, LENGTHS)
            rows[name][task] = {
                "texts": len(own),
                "mat": {str(j.length): round(j.mat, 4) for j in found},
                "acceptance": [round(share, 4) for share in found[-1].acceptance],
                "rounds": {str(j.length): j.rounds for j in found},
                "tokens": {str(j.length): j.tokens for j in found},
            }
            done(name, task)
    return rows


def mat_over(rows: Rows, tasks: Sequence[str], length: str = "4") -> dict[str, float]:
    """Every drafter's tokens a round over all of these tasks, with drafts of this length."""

    def total(row: Mapping[str, Any], what: str) -> int:
        return sum(row[task][what][length] for task in tasks)

    return {name: round(total(row, "tokens") / total(row, "rounds"), 4) for name, row in rows.items()}
