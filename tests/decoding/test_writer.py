"""Texts written several at once are those of plain decoding, and so are their recordings."""

from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from recorders import LONGEST, tiny

import wager
from wager.core import Tree
from wager.decoding import writer
from wager.decoding.recorder import Recorder
from wager.drafters import Drafter
from wager.drafters.draft_model import DraftModel
from wager.drafters.suffix import Suffix
from wager.eagle.drafter import Eagle

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPTS = [[1, 2, 3, 4, 1, 2, 3, 5, 1, 2], [5, 1], [7, 7, 2, 9, 4, 3], [2] * 9, [8, 3, 1, 6]]
LABELS = ["a", "b", "c", "d", "e"]


def recorder(model: Any, *drafters: Drafter, **how: Any) -> Recorder:
    own = {drafter.name: drafter for drafter in drafters}
    return Recorder(wager.Decoder(model, drafters="off", policy="off"), own, LONGEST, **how)


def same(one: Any, other: Any) -> bool:
    """Whether two recorded texts are the same; a batch adds up in another order, so probabilities nearly."""
    if one is None or other is None:
        return one is other
    alike = (one.label, one.prompt, one.tokens, one.limit) == (other.label, other.prompt, other.tokens, other.limit)
    for name, track in one.tracks.items():
        theirs = other.tracks[name]
        alike &= (track.size, track.agreed, track.trees) == (theirs.size, theirs.agreed, theirs.trees)
        alike &= theirs.overlap == pytest.approx(track.overlap, abs=1e-5)
        ours = [p for row in track.confidence for p in row]
        alike &= [p for row in theirs.confidence for p in row] == pytest.approx(ours, abs=1e-5)
    return alike


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_records_what_one_after_the_other_records(tmp_path: Path, temperature: float) -> None:
    model = heads.tiny(vocab_size=12)
    ends = heads.plain(model, PROMPTS[1], 6)[-1]  # so that some texts end early
    model.generation_config.eos_token_id = ends
    folder = heads.save(tmp_path / "head", model)
    made = []
    for batched in (False, True):
        one = recorder(model, Eagle(folder), DraftModel(tiny(1)), Suffix(), trees=[(3, Tree(2, 4))])
        how: dict[str, Any] = {"temperature": temperature, "seed": 5}
        if batched:
            made.append(list(one.record_batch(PROMPTS, LABELS, 24, batch=2, **how)))
        else:
            each = enumerate(zip(PROMPTS, LABELS, strict=True))
            made.append([one.record(p, name, 24, **{**how, "seed": 5 + i}) for i, (p, name) in each])
    assert all(same(*pair) for pair in zip(*made, strict=True))
    lengths = {text.tokens for text in made[0] if text is not None}
    assert len(lengths) > 1  # rows leave the batch while others go on


def test_a_batch_that_forgets_its_padding_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, one = tiny(), recorder(tiny(), Suffix())
    true = [wager.Decoder(model, drafters="off", policy="off").generate(p, max_new_tokens=12).tokens for p in PROMPTS]
    right = writer.write(model, one.decoder.target, PROMPTS, 12)
    assert [text.tokens for text in right] == true
    forward = model.base_model.forward

    def blind(**given: Any) -> Any:
        return forward(**{**given, "attention_mask": torch.ones_like(given["attention_mask"])})

    monkeypatch.setattr(model.base_model, "forward", blind)
    assert [text.tokens for text in writer.write(model, one.decoder.target, PROMPTS, 12)] != true


def test_detail_is_recorded_of_the_drafters_named_only(tmp_path: Path) -> None:
    model = heads.tiny(vocab_size=12)
    folder = heads.save(tmp_path / "head", model)
    drafters = (Eagle(folder, "eagle:a"), Eagle(folder, "eagle:b"))
    text = recorder(model, *drafters, trees=[(3, Tree(2, 4))], detail=["eagle:b"]).record(PROMPTS[0], "a", 30)
    assert text is not None
    without, full = (text.tracks[d.name] for d in drafters)
    assert (without.size, without.agreed, without.overlap) == (full.size, full.agreed, full.overlap)
    assert sum(full.agreed) > 0
    assert full.trees
    assert any(full.confidence)
    assert not without.trees
    assert not any(without.confidence)
    with pytest.raises(ValueError, match="eagle:c is not recorded"):
        recorder(model, *drafters, detail=["eagle:c"])
