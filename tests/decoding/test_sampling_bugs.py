"""Bugs planted in the loop and its processors are noticed by the checks of sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fit import FITS
from sampled import (
    PROCESSORS,
    Table,
    drafter,
    engine,
    off,
    off_together,
    rows_due,
    rows_seen,
    settings,
)

from wager.core import Arm
from wager.decoding.loop import Loop
from wager.decoding.prepare import Processors
from wager.decoding.sampler import RoundSampler
from wager.drafters import Draft

pytestmark = pytest.mark.usefixtures("one_thread")


class CertainOfDraws(Loop):
    """Keeps a drawn token by p / q, but takes what is left as if it had been certain."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        accepted, following, scores = super()._accept(logits, draft)
        if draft.probs is not None and accepted < len(draft.tokens):
            p = torch.softmax(scores, -1)[accepted].clone()
            p[draft.tokens[accepted]] = 0
            following = int(torch.multinomial(p, 1))
        return accepted, following, scores


class DrawsUnprocessed(Loop):
    """Draws drafts without the processors and says they were drawn with them."""

    def _draft(self, arm: Arm, room: int, proposals: Mapping[str, Draft]) -> Draft:
        sound = RoundSampler.__call__

        def unprocessed(sample: Any, text: Sequence[int], logits: torch.Tensor) -> tuple[int, torch.Tensor]:
            _, q = sound(sample, text, logits)
            return int(torch.multinomial(torch.softmax(logits, -1), 1)), q

        with patch.object(RoundSampler, "__call__", unprocessed):
            return super()._draft(arm, room, proposals)


class CropsTooLittle(Loop):
    """Leaves one token of a refused draft in the cache."""

    def _round(self) -> Any:
        crop = self.target.crop
        self.target.crop = lambda length: crop(length + 1)  # type: ignore[method-assign]
        try:
            return super()._round()
        finally:
            del self.target.crop


class ArgmaxBonus(Loop):
    """Takes the likeliest token after a draft that was kept whole."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        accepted, following, scores = super()._accept(logits, draft)
        if draft.tokens and accepted == len(draft.tokens):
            following = int(scores[-1].argmax())
        return accepted, following, scores


class AsksTwice(Loop):
    """Gives a draft a second chance where nothing of it was kept."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        first = super()._accept(logits, draft)
        return first if first[0] or not draft.tokens else super()._accept(logits, draft)


@pytest.mark.parametrize(
    ("bug", "kind", "temperature"),
    [
        (CertainOfDraws, "draft-model", 1.0),
        (DrawsUnprocessed, "draft-model", 0.5),
        (ArgmaxBonus, "near draft model", 1.0),
        (AsksTwice, "draft-model", 1.0),
    ],
)
def test_a_bug_in_the_loop_is_noticed_in_long_texts(
    bug: type[Loop], kind: str, temperature: float, store: Path
) -> None:
    """With fewer samples than sound code has to pass with: each is at least 6 standard deviations off."""
    target, processors = Table(5), settings(temperature=temperature)
    torch.manual_seed(4)
    seen, _ = rows_seen(engine(target, [drafter(kind, target, store)], bug), target, processors, 5_000)
    assert off(seen, rows_due(target, processors, seen)) > FITS


def test_a_crop_off_by_one_is_noticed_in_short_texts(store: Path) -> None:
    assert off_together({}, store, CropsTooLittle, 500) > FITS


class OneTokenLate(Processors):
    """Shows every position the text without its last token."""

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return super().__call__(ids[:, :-1], logits)


class OneTextForAll(Processors):
    """Shows every drafted position the same text, that of the first."""

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        before = ids[:, : ids.shape[1] - len(logits) + 1]
        return torch.cat([super(OneTextForAll, self).__call__(before, row[None]) for row in logits])


@pytest.mark.parametrize(
    ("bug", "name"),
    [(OneTokenLate, "custom"), (OneTokenLate, "no repeated n-gram"), (OneTextForAll, "no repeated n-gram")],
)
def test_processors_shown_the_wrong_text_are_noticed(bug: type[Processors], name: str, store: Path) -> None:
    given = PROCESSORS[name]
    wrong = bug([processor for processor, _ in settings(**given).steps])
    assert off_together(given, store, Loop, 400, wrong) > FITS
