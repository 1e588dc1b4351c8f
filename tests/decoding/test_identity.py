"""Where two texts differ that should be the same: greedy ones, and sampled ones of one seed."""

from __future__ import annotations

import pytest
from heads import PROMPT, tiny

from wager import Decoder
from wager.decoding.identity import difference

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLED = {"do_sample": True, "temperature": 0.8, "top_k": 5}


def test_sampled_texts_are_compared_by_scores_and_noise() -> None:
    model = tiny()
    off = Decoder(model, drafters="off")
    text = off.generate(PROMPT, seed=3, max_new_tokens=6, eos_token_id=None, **SAMPLED).tokens
    vocabulary = model.config.vocab_size

    def compared(token: int) -> tuple[float | None, bool]:
        found = difference(model, PROMPT, [*text[:4], token], text, seed=3, **SAMPLED)
        assert found is not None
        assert found.at == 4
        return found.gap, found.tie

    outcomes = [compared(token) for token in range(vocabulary) if token != text[4]]
    assert sum(gap is not None for gap, _ in outcomes) == 4, "top_k leaves four others, none of which ties"
    assert all(tie is (gap is None) for gap, tie in outcomes), "a token that was removed may have been at the edge"


def test_processors_count() -> None:
    model = tiny()
    text = Decoder(model, drafters="off").generate(PROMPT, max_new_tokens=3, do_sample=False, eos_token_id=None).tokens
    second = [*text[:2], (text[2] + 1) % model.config.vocab_size]
    plain, penalised = (
        difference(model, PROMPT, second, text, do_sample=False, **more) for more in ({}, {"repetition_penalty": 9.0})
    )
    assert plain is not None
    assert penalised is not None
    without = difference(model, PROMPT, second, text)
    assert without is not None
    assert plain.gap == pytest.approx(without.gap, rel=1e-4)
    assert penalised.gap != pytest.approx(without.gap, rel=1e-2)
