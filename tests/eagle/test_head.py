"""An EAGLE head's chains, trees and cache against a slow reference, and with bugs planted."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from draws import Draws
from eagle_setup import begun, features, feed, following, reading, slow
from heads import PROMPT, TEXT, VOCABULARY, plain, save, tiny, weights
from identity import first_difference_is_a_tie
from small import paths

import wager
from wager.core import Tree
from wager.drafters import Draft
from wager.drafters.draft_model import DraftModel
from wager.eagle import head as head_module
from wager.eagle.drafter import Eagle
from wager.eagle.head import SINKS, Head
from wager.models import calibration, packed
from wager.models.compat_torch import has_packed_linear
from wager.models.hf_runner import HFRunner
from wager.models.runner import Runner
from wager.models.select import runner

ALTERNATING = (packed.PACKED, packed.PACKED, packed.PLAIN, packed.PACKED, packed.PLAIN, packed.PACKED)


@pytest.mark.parametrize("kind", [runner, HFRunner])
def test_a_chain_is_the_references_whichever_forward_the_target_has(tmp_path: Path, kind: Any) -> None:
    model = tiny()
    target, reference = kind(model), slow(model)
    target.watch()
    target.begin()
    target.prefill(TEXT[:-1])
    eagle = following(save(tmp_path, model), target)
    expected = reference.chain(reference.entries(TEXT, features(model)), 6)
    assert len(set(expected)) > 2
    assert eagle.propose(6).tokens == expected
    assert eagle.propose(6).tokens == expected, "asked again, it says the same"
    assert eagle.propose(3).tokens == expected[:3]


@pytest.mark.parametrize("chunk", [512, 7])
def test_catching_up_in_pieces_drafts_the_same(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "CHUNK", chunk)
    model = tiny()
    target, reference = runner(model), slow(model)
    eagle = Eagle(save(tmp_path, model))
    eagle.follow(target)
    target.begin()
    eagle.begin(TEXT[:9])
    target.prefill(TEXT[:9])
    at = 9
    for step, drafts in ((1, 4), (1, 0), (3, 2), (1, 1), (2, 0), (36, 0), (5, 3)):  # what a text may bring
        eagle.extend(TEXT[at : at + step])
        feed(target, TEXT[: at + step - 1])
        at += step
        if drafts:
            entries = reference.entries(TEXT[:at], features(model, TEXT[:at]))
            assert eagle.propose(drafts).tokens == reference.chain(entries, drafts), f"after {at} tokens"
            assert eagle.head.length == at - 1


@pytest.mark.parametrize(("depth", "breadth", "nodes"), [(1, 3, 2), (3, 2, 5), (4, 3, 10), (3, 3, 60), (3, 1, 3)])
def test_a_tree_is_the_references(tmp_path: Path, depth: int, breadth: int, nodes: int) -> None:
    model, text = tiny(), TEXT[:20]
    target, reference = reading(model, text), slow(model)
    eagle = following(save(tmp_path, model), target, text)
    eagle.propose(4)  # whose entries must be gone
    expected = reference.tree(reference.entries(text, features(model, text)), depth, breadth, nodes)
    for _ in range(2):
        draft = eagle.propose_tree(depth, Tree(breadth, nodes))
        found = paths(draft)
        assert set(found) == set(expected)
        assert len(found) == len(expected) <= nodes
        assert max(map(len, found)) <= depth
        for path, sure in zip(found, draft.hint.confidence, strict=True):
            assert math.log(sure) == pytest.approx(expected[path] - expected.get(path[:-1], 0.0), abs=1e-4)
        assert draft.probs is None


def test_a_cut_head_drafts_frequent_tokens_only(tmp_path: Path) -> None:
    model, frequent = tiny(), [3, 17, 4, 9, 20]
    target, reference = reading(model), slow(model)
    eagle = following(save(tmp_path, model, frequent=frequent), target)
    entries = reference.entries(TEXT, features(model))
    assert eagle.propose(5).tokens == reference.chain(entries, 5, among=frequent)
    tree = eagle.propose_tree(2, Tree(8, 12))  # wider than there are tokens
    assert set(tree.tokens) <= set(frequent)
    drawn = eagle.propose(4, Draws(lambda text, logits: (int(logits.argmax()), torch.softmax(logits, -1))))
    assert drawn.probs.shape == (4, VOCABULARY)
    assert float(drawn.probs[:, [t for t in range(VOCABULARY) if t not in frequent]].sum()) == 0.0
    due = torch.softmax(reference.logits(reference.out(entries[-1]))[frequent], 0)
    torch.testing.assert_close(drawn.probs[0, frequent], due.float(), rtol=1e-4, atol=1e-5)
    assert drawn.hint.confidence[0] == pytest.approx(float(due.max()), abs=1e-4)


def test_a_bounded_cache_holds_the_first_and_the_last_entries(tmp_path: Path) -> None:
    model, window = tiny(), 6
    target, reference = reading(model), slow(model)
    eagle = following(save(tmp_path, model), target, window=window)
    kept = [*range(SINKS), *range(len(TEXT) - 1 - window, len(TEXT) - 1)]
    assert eagle.propose(4).tokens == reference.chain(reference.entries(TEXT, features(model), kept), 4)
    target.begin()
    target.prefill(TEXT[:8])
    eagle.begin(TEXT[:8])
    for token in TEXT[8:]:  # one by one: what is let go, and when, is the head's affair
        eagle.extend([token])
        eagle.propose(3)
        target.forward([token], 1)
        assert eagle.head.slots <= SINKS + 2 * window
        assert eagle.head.length - eagle.head.gone == eagle.head.slots
    # Positions are those of the text, so with a window that lets nothing go the draft is the whole text's.
    wide = following(tmp_path, reading(model), window=100)
    assert wide.propose(5).tokens == following(tmp_path, reading(model)).propose(5).tokens


class FeatureTooEarly(Eagle):
    """Joins every token with the feature before its own."""

    def _catch_up(self, target: Runner) -> torch.Tensor:
        for start, end in self.head.spans(len(self._text) - 1):
            shifted = target.features.roll(1, 0)[start:end]
            self._out = self.head.read(self._text[start + 1 : end + 1], shifted, start)
        return self._out


class LeavesDraftsBehind(Head):
    """Keeps the entries it drafted."""

    def crop(self, length: int) -> None:
        self.length = length


class ForgetsAncestors(Head):
    """Lets every node of a tree see itself only."""

    def branch(self, tokens: torch.Tensor, features: torch.Tensor, depth: int, seen: torch.Tensor) -> torch.Tensor:
        only = torch.zeros_like(seen)
        only[:, -len(tokens) :] = torch.eye(len(tokens), dtype=torch.bool)
        return super().branch(tokens, features, depth, only)


def test_a_feature_off_by_one_is_noticed(tmp_path: Path) -> None:
    model = tiny()
    target, reference = reading(model), slow(model)
    eagle = begun(FeatureTooEarly(save(tmp_path, model)), target)
    assert eagle.propose(6).tokens != reference.chain(reference.entries(TEXT, features(model)), 6)


@pytest.mark.parametrize("bug", [LeavesDraftsBehind, ForgetsAncestors])
def test_a_bug_in_the_cache_is_noticed(tmp_path: Path, bug: type[Head], monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = tiny(), TEXT[:20]
    folder = save(tmp_path, model)

    def trees() -> list[tuple[tuple[int, ...], ...]]:
        target, drafts = reading(model, text[:15]), []
        eagle = following(folder, target, text[:15])
        for at in range(15, 20):
            drafts.append(tuple(sorted(paths(eagle.propose_tree(4, Tree(3, 12))))))
            eagle.extend(text[at : at + 1])
            target.forward(text[at - 1 : at], 1)
        return drafts

    sound = trees()
    monkeypatch.setattr("wager.eagle.drafter.Head", bug)
    assert trees() != sound


def test_lag_is_what_was_not_read_when_others_played(tmp_path: Path) -> None:
    model = tiny()
    target = reading(model, TEXT[:21])
    eagle = following(save(tmp_path, model), target, TEXT[:21])
    assert eagle.lag == 19  # entries 0 to 19, and the last is the round's own
    draft = eagle.propose(2)
    assert draft.lag == 19
    assert draft.lag_seconds >= 0
    assert eagle.lag == 0
    eagle.extend(TEXT[21:24])
    assert eagle.lag == 0
    eagle.extend(TEXT[24:25])
    assert eagle.lag == 3
    target.prefill(TEXT[20:24])
    assert eagle.propose(2).lag == 3
    eagle.begin(TEXT[:3])
    assert eagle.propose(3) == Draft() or target.length >= 2
    eagle.begin([])
    assert eagle.propose(3) == Draft()


def test_a_head_without_its_features_has_no_idea(tmp_path: Path) -> None:
    model = tiny()
    eagle = Eagle(save(tmp_path, model))
    assert eagle.propose(3) == Draft()
    eagle.follow(runner(model))
    eagle.begin(TEXT)
    assert eagle.propose(3) == eagle.propose_tree(3, Tree(2, 5)) == Draft()


def test_what_it_takes_is_told(tmp_path: Path) -> None:
    model = tiny()
    eagle = Eagle(save(tmp_path, model, frequent=[1, 2, 3]))
    alone = eagle.memory
    assert alone == sum(4 * tensor.numel() for tensor in weights(model).values())
    eagle = following(tmp_path, reading(model))
    eagle.propose(1)
    assert eagle.memory > alone + 2 * 3 * 60 * 8 * 4
    drafter = DraftModel(tiny(1))
    assert drafter.memory >= sum(4 * p.numel() for p in tiny(1).parameters())


def test_a_draft_model_with_a_window_reads_the_first_and_the_last_tokens() -> None:
    model, window = tiny(), 10
    bounded, whole = DraftModel(model, window=window), DraftModel(model)
    for drafter in (bounded, whole):
        drafter.begin(TEXT[:40])
    assert (bounded.lag, whole.lag) == (SINKS + window - 1, 39)
    expected = DraftModel(model)
    expected.begin([*TEXT[:SINKS], *TEXT[40 - window : 40]])
    assert bounded.propose(4).tokens == expected.propose(4).tokens
    for token in TEXT[40:]:
        bounded.extend([token])
        bounded.propose(2)
        assert bounded.runner.length <= SINKS + 2 * window + 2
    text = wager.Decoder(model, drafters=[DraftModel(tiny(1), window=8)], policy="random").generate(
        PROMPT, max_new_tokens=60, do_sample=False
    )
    assert first_difference_is_a_tie(model, PROMPT, text.tokens, plain(model), 1e-3)


@pytest.mark.skipif(not has_packed_linear(), reason="this build of torch has no packed kernels")
@pytest.mark.parametrize("bug", [False, True])
def test_a_head_over_packed_weights_drafts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: bool) -> None:
    """Whichever way is the fastest at a width; a bug: packing loses half of a weight."""
    packs = packed.pack_weight
    monkeypatch.setattr(packed, "SMALLEST", 1)
    if bug:
        monkeypatch.setattr(
            packed, "pack_weight", lambda weight: packs(weight * (torch.arange(len(weight)) % 2)[:, None])
        )
    monkeypatch.setattr(calibration, "calibrated", lambda shapes, *rest: {key: [*ALTERNATING] for key in shapes})
    model = tiny()
    reference, target = slow(model), runner(model)
    target.watch()
    target.begin()
    target.prefill(TEXT[:-1])
    eagle = following(save(tmp_path, model), target)
    products = eagle.head.by.values()
    assert not any(product.nbytes for product in products), "packed when they are used"
    drafted = eagle.propose(6).tokens
    assert (drafted == reference.chain(reference.entries(TEXT, features(model)), 6)) is not bug
    held, copies = eagle.head.memory, [product.nbytes for product in products]
    assert min(copies) > 0
    for product in products:
        product.weight.unpack()
    assert held - eagle.head.memory == sum(copies)


def test_a_head_whose_weights_cannot_be_packed_drafts_by_plain_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(packed, "SMALLEST", 1)
    monkeypatch.setattr(calibration, "usable", lambda weight: True)
    monkeypatch.setattr(calibration, "calibrated", lambda shapes, *rest: {key: [*ALTERNATING] for key in shapes})
    monkeypatch.setattr(packed, "pack_weight", no_memory)
    model = tiny()
    reference, target = slow(model), HFRunner(model)
    target.watch()
    target.begin()
    target.prefill(TEXT[:-1])
    eagle = following(save(tmp_path, model), target)
    assert eagle.propose(6).tokens == reference.chain(reference.entries(TEXT, features(model)), 6)
    assert "could not be packed (DefaultCPUAllocator: can't allocate memory)" in caplog.text
