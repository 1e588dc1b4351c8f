"""What heads say of how well they are aligned with the target: 1 - TV on trees, probabilities of greedy chains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_setup import following, graphed, reading
from heads import PROMPT, TEXT, save, tiny

import wager
from wager.core import OFF, Arm, Round, Signal
from wager.core.rewards import block_divergence, block_efficiency
from wager.decoding.acceptance import continued
from wager.decoding.recorder import Recorder
from wager.drafters import Draft
from wager.eagle.drafter import Eagle
from wager.policies import build

pytestmark = pytest.mark.usefixtures("one_thread")
FREQUENT = tuple(range(0, 24, 2))


def rounds(model: Any, folder: Path, arm: str, prompt: Sequence[int] = PROMPT, count: int = 24) -> list[Round]:
    policy = build(f"fixed:drafter=eagle,length={Arm.parse(arm).length}" + _tree(arm), (Arm.parse(arm), OFF))
    policy.needs = frozenset({Signal.OVERLAP})
    decoder = wager.Decoder(model, drafters=[Eagle(folder)], arms=(arm, str(OFF)), policy=policy)
    return decoder.generate(list(prompt), max_new_tokens=count, do_sample=False).rounds


def _tree(arm: str) -> str:
    shape = Arm.parse(arm).tree
    return "" if shape is None else f",tree={shape}"


@pytest.mark.parametrize("frequent", [(), FREQUENT])
def test_overlap_on_a_tree_of_one_branch_is_that_of_the_chain(tmp_path: Path, frequent: Sequence[int]) -> None:
    model = tiny()
    folder = save(tmp_path / "head", model, frequent=frequent)
    chain, tree = rounds(model, folder, "eagle:4"), rounds(model, folder, "eagle:4@1x4")
    assert [r.accepted for r in chain] == [r.accepted for r in tree]
    assert any(r.overlap for r in chain)
    for one, other in zip(chain, tree, strict=True):
        assert other.overlap == pytest.approx(one.overlap, abs=1e-4)
        assert block_divergence(other, 4) == pytest.approx(
            block_divergence(one, 4) if one.drafted == 4 else sum(one.overlap) / max(1, len(one.overlap)), abs=1e-4
        )


def test_overlap_on_a_tree_is_measured_along_the_accepted_path(tmp_path: Path) -> None:
    """At every position: the head that has read the path so far, against the target there."""
    model = tiny()
    folder = save(tmp_path / "head", model)
    wide = rounds(model, folder, "eagle:4@3x12", count=40)
    tokens = wager.Decoder(model, drafters="off", policy="off").generate(PROMPT, max_new_tokens=40).tokens
    at, compared = 1, 0
    for played in wide:
        text = [*PROMPT, *tokens[:at]]
        if not played.drafted:  # at the end there is no room
            continue
        first = rounds(model, folder, "eagle:1", text[:-1], 4)[0]
        assert played.overlap[0] == pytest.approx(first.overlap[0], abs=1e-4)  # the distribution after the text
        assert len(played.overlap) > min(played.accepted, 3)  # the path, and where it ended
        assert block_divergence(played, 4) == pytest.approx(sum(played.overlap) / len(played.overlap))
        compared += abs(block_divergence(played, 4) - block_efficiency(played, 4)) > 0.01
        at += played.emitted
    assert compared > len(wide) / 2  # it is not block efficiency under another name


def test_a_path_goes_on_by_the_first_token_after_each() -> None:
    parents = [-1, -1, 0, 0, 1, 2, 3]
    assert continued([], parents) == [0, 2, 5]
    assert continued([1], parents) == [1, 4]
    assert continued([0, 3], parents) == [0, 3, 6]
    assert continued([0, 2, 5], parents) == [0, 2, 5]


@pytest.mark.parametrize("graphs", [False, True])
def test_logits_of_a_trees_tokens_are_what_they_were_chosen_by(tmp_path: Path, graphs: bool) -> None:
    model = tiny()
    folder, target = save(tmp_path / "head", model), reading(model)
    eagle = graphed(folder, target)[0] if graphs else following(folder, target)
    draft = eagle.propose_tree(4, Arm.parse("eagle:4@3x14").tree)  # type: ignore[arg-type]
    assert draft.logits is not None
    chances = draft.logits.float().softmax(-1)[range(len(draft.tokens)), draft.tokens]
    assert chances.tolist() == pytest.approx(draft.hint.confidence, abs=1e-4)
    assert draft.raw is not None
    # products of fewer rows round otherwise on some processors
    torch.testing.assert_close(draft.raw([3, 1]), draft.logits[[3, 1]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frequent", [(), FREQUENT])
def test_a_greedy_chain_tells_the_probability_of_its_tokens_when_asked(
    tmp_path: Path, frequent: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    folder = save(tmp_path / "head", model, frequent=frequent)
    eagle = following(folder, reading(model))
    draft = eagle.propose(4)
    assert draft.hint.confidence == ()  # not made for nothing
    assert draft.logits is not None
    sure = draft.confidence()
    assert len(sure) == 4
    assert sure == pytest.approx(draft.logits.softmax(-1).max(-1).values.tolist())  # the likeliest, so the largest
    assert sure[0] == pytest.approx(eagle.propose_tree(1, Arm.parse("eagle:1@1x1").tree).hint.confidence[0], abs=1e-5)  # type: ignore[arg-type]
    assert Draft([1, 2]).confidence() == ()


def test_a_recording_of_a_head_has_the_confidence_a_threshold_needs(tmp_path: Path) -> None:
    """Without it a rule that stops at an unlikely token drafts nothing, whatever its threshold."""
    model = tiny()
    folder = save(tmp_path / "head", model)
    decoder = wager.Decoder(model, drafters="off", policy="off")
    text = Recorder(decoder, {"eagle": Eagle(folder)}, 4).record(TEXT[:12], "a", 20)
    assert text is not None
    track = text.tracks["eagle"]
    assert [len(sure) for sure in track.confidence] == track.size
    assert len(track.overlap) == len(track.size)
    chains = rounds(model, folder, "eagle:1", TEXT[:12], 20)
    at = 0
    for played in chains:  # what the engine measures where its rounds begin
        if played.overlap:
            assert track.overlap[at] == pytest.approx(played.overlap[0], abs=1e-3)
        at += played.emitted
    drafted = [
        sum(next((i for i, p in enumerate(sure) if p < least), len(sure)) for sure in track.confidence)
        for least in (0.0, 0.2, 0.5, 1.01)
    ]
    assert drafted[0] > drafted[1] >= drafted[2] >= drafted[3] == 0
