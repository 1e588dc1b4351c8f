"""EAGLE heads: against a slow reference, through the engine, by name, and with bugs planted."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from draws import Draws, choosing
from fit import FITS, misfit
from heads import PROMPT, TEXT, VOCABULARY, config, plain, save, tiny, weights
from identity import first_difference_is_a_tie
from reference.eagle import SlowHead

import wager
from wager.core import Arm, Signal, Tree
from wager.decoding.arms import build_arms
from wager.decoding.choosing import RESIDUAL, RULES
from wager.decoding.features import Prompts
from wager.decoding.loop import Loop, Request
from wager.decoding.processors import Processors
from wager.decoding.stopping import Stopping
from wager.drafters import Draft, Drafter
from wager.drafters.draft_model import DraftModel
from wager.drafters.eagle import Eagle
from wager.drafters.together import Together
from wager.models import head as head_module
from wager.models import head_graphs
from wager.models.choose import runner
from wager.models.eager import Eager
from wager.models.head import SINKS, Head
from wager.models.head_graphs import HeadGraphs
from wager.models.runner import Runner
from wager.policies import build

pytestmark = pytest.mark.usefixtures("one_thread")


def reading(model: Any, text: Sequence[int] = TEXT) -> Runner:
    """A target that has read the text but for its last token."""
    target = runner(model)
    target.watch()
    target.begin()
    target.prefill(text[:-1])
    return target


def feed(target: Runner, text: Sequence[int]) -> None:
    """Let the target read what it has not."""
    if target.length < len(text):
        target.prefill(text[target.length :])


def following(folder: Path, target: Runner, text: Sequence[int] = TEXT, **how: Any) -> Eagle:
    """A drafter at the end of a text that the target has read."""
    eagle = Eagle(folder, **how)
    eagle.follow(target)
    eagle.begin(text[:-1])
    eagle.extend(text[-1:])
    return eagle


def slow(model: Any, seed: int = 1) -> SlowHead:
    return SlowHead(weights(model, seed), config(model), model)


def features(model: Any, text: Sequence[int] = TEXT) -> torch.Tensor:
    """The model's own, not through wager."""
    with torch.no_grad():
        return model.model(input_ids=torch.tensor([text])).last_hidden_state[0]


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """A tree's tokens, each with those before it."""
    found: list[tuple[int, ...]] = []
    assert draft.parents is not None
    for at, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        assert -1 <= parent < at, "parents come first"
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


# -- the forward


def test_a_chain_is_the_references(tmp_path: Path) -> None:
    model = tiny()
    target, reference = reading(model), slow(model)
    eagle = following(save(tmp_path, model), target)
    expected = reference.chain(reference.entries(TEXT, features(model)), 6)
    assert len(set(expected)) > 2
    assert eagle.propose(6).tokens == expected
    assert eagle.propose(6).tokens == expected, "asked again, it says the same"
    assert eagle.propose(3).tokens == expected[:3]


@pytest.mark.parametrize("chunk", [512, 7])
def test_catching_up_in_pieces_leads_to_the_same_draft(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_wide_read_and_a_narrow_one_agree(tmp_path: Path) -> None:
    model = tiny()
    head = Head(save(tmp_path, model))
    target = reading(model)
    head.follow(target)
    whole = head.read(TEXT[1:], target.features[: len(TEXT) - 1], 0)
    head.begin()
    for p in range(len(TEXT) - 1):
        one = head.read(TEXT[p + 1 : p + 2], target.features[p : p + 1], p)
    torch.testing.assert_close(whole, one, rtol=1e-4, atol=1e-5)


def test_a_target_through_transformers_own_forward_is_followed_too(tmp_path: Path) -> None:
    model, text = tiny(), TEXT[:20]
    target = Eager(model)
    target.watch()
    target.begin()
    target.prefill(text[:-1])
    reference = slow(model)
    eagle = following(save(tmp_path, model), target, text)
    assert eagle.propose(5).tokens == reference.chain(reference.entries(text, features(model, text)), 5)


def test_a_cut_head_drafts_frequent_tokens_only(tmp_path: Path) -> None:
    model, frequent = tiny(), [3, 17, 4, 9, 20]
    target, reference = reading(model), slow(model)
    eagle = following(save(tmp_path, model, frequent=frequent), target)
    entries = reference.entries(TEXT, features(model))
    assert eagle.propose(5).tokens == reference.chain(entries, 5, among=frequent)
    tree = eagle.propose_tree(2, Tree(8, 12))  # wider than there are tokens
    assert set(tree.tokens) <= set(frequent)
    drawn = eagle.propose(4, Draws(lambda text, logits: (int(logits.argmax()), torch.softmax(logits, -1))))
    assert drawn.probs is not None
    assert drawn.probs.shape == (4, VOCABULARY)
    assert float(drawn.probs[:, [t for t in range(VOCABULARY) if t not in frequent]].sum()) == 0.0
    due = torch.softmax(reference.logits(reference.out(entries[-1]))[frequent], 0)
    torch.testing.assert_close(drawn.probs[0, frequent], due.float(), rtol=1e-4, atol=1e-5)
    assert drawn.hint.confidence[0] == pytest.approx(float(due.max()), abs=1e-4)


def test_what_is_drawn_comes_with_what_it_was_drawn_from(tmp_path: Path) -> None:
    model = tiny()
    target, reference = reading(model), slow(model)
    eagle = following(save(tmp_path, model), target)
    chosen, seen = [5, 11, 2], []

    def sample(text: Sequence[int], logits: torch.Tensor) -> tuple[int, torch.Tensor]:
        seen.append(list(text))
        return chosen[len(text) - len(TEXT)], torch.softmax(logits, -1)

    draft = eagle.propose(3, Draws(sample))
    assert draft.tokens == chosen
    assert seen == [TEXT + chosen[:n] for n in range(3)]
    last = reference.entries(TEXT, features(model))[-1]
    for at, token in enumerate(chosen):
        out = reference.out(last)
        assert draft.probs is not None
        torch.testing.assert_close(
            draft.probs[at], torch.softmax(reference.logits(out), 0).float(), rtol=1e-3, atol=1e-5
        )
        last = type(last)(token, out, last.position + 1, [*last.sees, last])


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


@pytest.mark.parametrize("frequent", [(), (3, 17, 4, 9, 20)])
@pytest.mark.parametrize("window", [0, 6])
def test_the_fixed_shapes_of_the_graphs_give_the_same(
    tmp_path: Path, frequent: tuple[int, ...], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not captured here, but the same bodies."""
    monkeypatch.setattr(head_graphs, "LEAST", 16)  # so that the cache has to grow
    model = tiny()
    save(tmp_path, model, frequent=frequent)
    target = runner(model)
    pair = [Eagle(tmp_path, window=window) for _ in range(2)]
    pair[1].head = HeadGraphs(tmp_path, window=window)
    for eagle in pair:
        eagle.follow(target)
        eagle.begin(TEXT[:5])
    target.begin()
    target.prefill(TEXT[:5])
    at = 5
    for step, drafts in ((1, 5), (2, 3), (1, 0), (7, 4), (20, 2), (1, 1), (4, 6), (3, 3), (8, 2)):
        feed(target, TEXT[: at + step - 1])
        for eagle in pair:
            eagle.extend(TEXT[at : at + step])
        at += step
        if drafts:
            assert pair[1].propose(drafts).tokens == pair[0].propose(drafts).tokens
            one, other = (eagle.propose_tree(drafts, Tree(3, 10)) for eagle in pair)
            assert (one.tokens, one.parents) == (other.tokens, other.parents)
            assert one.hint.confidence == pytest.approx(other.hint.confidence, abs=1e-4)
        assert pair[0].head.length == pair[1].head.length
    graphs = pair[1].head
    assert isinstance(graphs, HeadGraphs)
    assert graphs.captures
    graphs._warm()  # as on CUDA
    assert graphs.captures
    assert {("read", width) for width in head_graphs.WIDTHS} <= graphs.replays.keys()


def graphed(folder: Path, target: Runner, text: Sequence[int] = TEXT) -> tuple[Eagle, HeadGraphs]:
    """A drafter by the graphs' bodies, which nothing captures here."""
    eagle = Eagle(folder)
    eagle.head = graphs = HeadGraphs(folder)
    eagle.follow(target)
    eagle.begin(text[:-1])
    eagle.extend(text[-1:])
    return eagle, graphs


def test_a_draft_is_one_copy_and_two_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = tiny(), TEXT[:8]
    target = reading(model, text)
    eagle, graphs = graphed(save(tmp_path, model), target, text)
    done: list[Any] = []
    tell, replayed, forward = graphs._tell, graphs._replayed, Head.forward
    monkeypatch.setattr(graphs, "_tell", lambda *given: (done.append("copy"), tell(*given))[1])
    monkeypatch.setattr(graphs, "_replayed", lambda key, body: (done.append(key), replayed(key, body))[1])
    monkeypatch.setattr(Head, "forward", lambda *given: (done.append("eager"), forward(*given))[1])
    for token, read in ((TEXT[8], 7), (TEXT[9], 1)):
        eagle.propose(4)
        assert done == ["copy", ("read", read), ("chain", 4)]
        done.clear()
        eagle.propose_tree(3, Tree(2, 5))
        eagle.propose(2)
        assert done == [("tree", 3, 2), ("chain", 2)], "the device knows where to go on"
        done.clear()
        target.forward([eagle._text[-1]], 1)
        eagle.extend([token])


def test_a_captured_chain_is_not_drawn_where_the_target_is_sampled(tmp_path: Path) -> None:
    model = tiny()
    folder, target = save(tmp_path, model), reading(model)
    eagle, graphs = graphed(folder, target)
    plain = eagle.propose(4)
    drafted = eagle.propose(4, Draws(lambda *_: pytest.fail("every drawn token would be waited for")))
    assert (drafted.tokens, drafted.probs) == (plain.tokens, None)  # proposed for certain, which acceptance knows
    graphs.captures = False
    drawn = eagle.propose(4, Draws(lambda text, logits: (7, torch.softmax(logits, -1))))
    assert drawn.tokens == [7] * 4
    assert drawn.probs is not None


def test_what_was_warmed_serves_whatever_is_shorter(tmp_path: Path) -> None:
    model = tiny()
    target = reading(model)
    eagle, graphs = graphed(save(tmp_path, model), target)
    eagle.warm([Arm("eagle", 5), Arm("eagle", 3), Arm("eagle", 4, Tree(2, 6)), Arm("eagle", 3, Tree(3, 9))])
    warm = set(graphs.replays)
    assert {("chain", 5), ("chain", 3), ("tree", 4, 2), ("tree", 3, 3)} < warm
    eagle.begin(TEXT[:-1])
    eagle.extend(TEXT[-1:])
    plain = following(tmp_path, target)
    for length in (1, 3, 4, 5):
        one, other = eagle.propose(length), plain.propose(length)
        assert one.tokens == other.tokens
        assert one.logits is not None
        assert one.logits.shape == (length, VOCABULARY)
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    for depth, shape in ((1, Tree(3, 2)), (2, Tree(3, 7)), (3, Tree(2, 6)), (2, Tree(2, 4))):
        one, other = (each.propose_tree(depth, shape) for each in (eagle, plain))
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
    assert set(graphs.replays) == warm, "a text's end is no reason to capture"
    eagle.propose(6)
    assert ("chain", 6) in graphs.replays


class StepsOnOneSlot(HeadGraphs):
    """Puts all entries of a chain into one slot."""

    def forward(self, tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        if self.part == head_graphs.CHAIN:
            self.ahead = 0
        return super().forward(tokens, features)


class GoesOnFromThePadding(HeadGraphs):
    """Takes the last row that was read, real or not."""

    def _tell(self, tokens: Sequence[int], width: int) -> None:
        super()._tell(tokens, width)
        self.inputs[head_graphs.LAST] = max(0, len(tokens) - 1)


@pytest.mark.parametrize("bug", [StepsOnOneSlot, GoesOnFromThePadding])
def test_a_bug_in_the_bodies_is_noticed(tmp_path: Path, bug: type[HeadGraphs]) -> None:
    model, text = tiny(), TEXT[:12]  # 11 entries, padded to 12
    target = reading(model, text)
    sound = following(save(tmp_path, model), target, text)
    wrong = Eagle(tmp_path)
    wrong.head = bug(tmp_path)
    wrong.follow(target)
    wrong.begin(text)
    assert wrong.propose(6).tokens != sound.propose(6).tokens


class Doubles(HeadGraphs):
    """Computes something else."""

    def _masked(self, *given: Any) -> torch.Tensor:
        return 2 * super()._masked(*given)


class NotCaptured(HeadGraphs):
    """Runs where nothing can be captured."""

    def _captured(self, body: Any) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [Doubles, NotCaptured])
def test_graphs_that_do_not_work_are_done_without(
    tmp_path: Path, kind: type[HeadGraphs], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny()
    target = reading(model)
    sound = following(save(tmp_path, model), target)
    eagle = Eagle(tmp_path)
    eagle.head = graphs = kind(tmp_path)
    eagle.follow(target)
    graphs._warm()  # as on CUDA
    assert not graphs.captures
    assert "slower" in caplog.text
    eagle.begin(TEXT)
    assert eagle.propose(5).tokens == sound.propose(5).tokens
    assert eagle.propose_tree(3, Tree(2, 6)) == replace(sound.propose_tree(3, Tree(2, 6)), lag=ANY, lag_seconds=ANY)


KERNELS_ON = "cuda" if torch.cuda.is_available() else "cpu"
needs_kernels = pytest.mark.skipif(
    KERNELS_ON == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="needs CUDA, or Triton's interpreter"
)


@needs_kernels
@pytest.mark.parametrize("size", [12, 16])
@pytest.mark.parametrize("window", [0, 6])
def test_captured_drafts_are_the_eager_ones(
    tmp_path: Path, size: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_graphs, "FUSED_ON", (KERNELS_ON,))
    monkeypatch.setattr(head_graphs, "LEAST", 16)
    text = TEXT[:] if KERNELS_ON == "cpu" else TEXT * 4 + TEXT[:13]  # before it is over the cache has to grow
    model = tiny(head_dim=16).to(KERNELS_ON)
    save(tmp_path, model, frequent=(3, 17, 4, 9, 20), shape={"head_dim": size})
    target = reading(model, text)
    captured, eager = (Eagle(tmp_path, window=window) for _ in range(2))
    for eagle in (captured, eager):
        eagle.head = HeadGraphs(tmp_path, window=window)
        eagle.follow(target)
        eagle.warm([Arm("eagle", 4), Arm("eagle", 4, Tree(3, 10))])
        eagle.begin(text[:-1])
        eagle.extend(text[-1:])
    graphs = captured.head
    assert isinstance(graphs, HeadGraphs)
    assert graphs.fused == (size == 16 and window == 0)
    if KERNELS_ON == "cuda":
        assert graphs.cut is None
    eager.head.captures = False  # type: ignore[attr-defined]
    before = graphs.replays.get(("chain", 4))
    for step in range(3):
        for length in (1, 4, 7):
            one, other = captured.propose(length), eager.propose(length)
            assert one.tokens == other.tokens
            torch.testing.assert_close(one.logits, other.logits, rtol=1e-3, atol=1e-3)
            one, other = (eagle.propose_tree(length, Tree(3, 10)) for eagle in (captured, eager))
            assert (one.tokens, one.parents) == (other.tokens, other.parents)
            assert one.hint.confidence == pytest.approx(other.hint.confidence, abs=1e-3)
        target.prefill(TEXT[: step + 1])
        for eagle in (captured, eager):
            eagle.extend(TEXT[: step + 1])
    assert graphs.captures
    assert {("chain", 4), ("chain", 7), ("tree", 4, 3)} <= graphs.replays.keys()
    if graphs.fused:
        assert graphs.replays["chain", 4] is before, "a cache that grows needs no new capture"


@needs_kernels
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 24, 3), (4, 3000, 4), (3, 1025, 16)])
def test_the_likeliest_are_those_of_torch(rows: int, size: int, count: int) -> None:
    from wager.models.head_kernels import likeliest

    logits = 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(size)).to(KERNELS_ON)
    logits[0, [5, 17, 11]] = logits.max() + 1  # of three as likely the lowest comes first
    logp, found = likeliest(logits, count)
    expected = torch.log_softmax(logits, -1).topk(count)
    torch.testing.assert_close(logp, expected.values, rtol=1e-5, atol=1e-5)
    assert found[0, :3].tolist() == [5, 11, 17]
    assert torch.equal(found[1:], expected.indices[1:])
    assert float(logp.max()) <= 0.0


@needs_kernels
@pytest.mark.parametrize("count", [1, 3, 16])
def test_the_best_paths_and_the_joined_rows_are_those_of_torch(count: int) -> None:
    from wager.models import head_kernels

    made = torch.Generator().manual_seed(count)
    scores, logp = (torch.randn(*shape, generator=made).to(KERNELS_ON) for shape in ((count,), (count, count)))
    tokens = torch.randperm(count**2, generator=made).to(KERNELS_ON)
    expected = Head.best(None, scores, logp, tokens)  # type: ignore[arg-type]
    for ours, theirs in zip(head_kernels.best(scores, logp, tokens), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    embed, one = torch.randn(count**2, 20).to(KERNELS_ON), torch.randn(1, 20).to(KERNELS_ON)
    for features in (one.expand(count, -1), torch.randn(count, 20).to(KERNELS_ON)):
        found = head_kernels.beside(tokens[:count], embed, features)
        assert torch.equal(found, torch.cat((embed[tokens[:count]], features), dim=-1))


# -- bugs that the comparison must notice


class FeatureTooEarly(Eagle):
    """Joins every token with the feature before its own."""

    def _catch_up(self) -> torch.Tensor:
        assert self._target is not None
        for start, end in self.head.spans(len(self._text) - 1):
            shifted = self._target.features[: end - 1] if start == 0 else self._target.features[start - 1 : end - 1]
            if start == 0:
                shifted = torch.cat((shifted[:1] * 0, shifted))
            self._out = self.head.read(self._text[start + 1 : end + 1], shifted, start)
        assert self._out is not None
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
    eagle = FeatureTooEarly(save(tmp_path, model))
    eagle.follow(target)
    eagle.begin(TEXT[:-1])
    eagle.extend(TEXT[-1:])
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
    monkeypatch.setattr(head_module, "Head", bug)
    assert trees() != sound


# -- through the engine


@pytest.mark.parametrize("window", [0, 5])
def test_greedy_text_is_the_targets_own_with_several_heads_at_once(tmp_path: Path, window: int) -> None:
    model = tiny(vocab_size=8, num_hidden_layers=1)
    heads = [Eagle(save(tmp_path / f"{n}", model, n), f"eagle:{n}", window=window) for n in (1, 2)]
    cut = Eagle(save(tmp_path / "cut", model, 3, frequent=[1, 5, 6, 2]), "eagle:cut", window=window)
    arms = [f"eagle:{n}:{length}" for n in ("1", "2", "cut") for length in (1, 4, "2@2x3", "3@3x9")]
    decoder = wager.Decoder(model, drafters=[*heads, cut, "prompt-lookup"], policy="random", arms=arms)
    kept = 0
    for start in range(4):
        prompt = [token % 8 for token in TEXT[start : start + 9 + start]]
        made = decoder.generate(prompt, max_new_tokens=60, do_sample=False)
        assert first_difference_is_a_tie(model, prompt, made.tokens, plain(model, prompt), 1e-3)
        kept += sum(played.accepted for played in made.rounds)
    assert kept > 10


def distributed(target: Runner, model: Any, drafter: Drafter, arms: Sequence[str], texts: int, rule: str) -> float:
    """How far the first three tokens of sampled texts are from the model's own joint distribution."""
    vocabulary, prompt = model.config.vocab_size, [0, 1, 2, 1, 0]
    played = build_arms(list(arms), {drafter.name: drafter}, (1,))
    loop = Loop(
        target, {drafter.name: drafter}, build("random", played, seed=1), played, frozenset(), Prompts().features
    )
    drafter.follow(target)
    seen = np.zeros((vocabulary,) * 3)
    with torch.inference_mode():
        for _ in range(texts):
            target.begin()
            stopping = Stopping([], len(prompt) + 6)
            for _step in loop.run(Request(prompt, Processors([]), stopping, choosing(rule, vocabulary))):
                if len(loop.text) >= len(prompt) + 3:
                    break
            seen[tuple(loop.text[len(prompt) : len(prompt) + 3])] += 1
        due = np.zeros_like(seen)
        for first in range(vocabulary):
            for second in range(vocabulary):
                text = torch.tensor([[*prompt, first, second]])
                p = torch.softmax(model(input_ids=text).logits[0, len(prompt) - 1 :].double(), -1).numpy()
                due[first, second] = texts * p[0, first] * p[1, second] * p[2]
    return misfit(seen, due)


SMALL: dict[str, Any] = {"vocab_size": 4, "num_hidden_layers": 1, "hidden_size": 16, "initializer_range": 0.5}


@pytest.mark.parametrize("arms", [("eagle:1", "eagle:3"), ("eagle:2@2x4", "eagle:3@3x9")])
@pytest.mark.parametrize("frequent", [(), (1, 3)])
@pytest.mark.parametrize("rule", RULES)
def test_sampled_texts_are_distributed_as_the_targets(
    tmp_path: Path, arms: tuple[str, ...], frequent: tuple[int, ...], rule: str
) -> None:
    torch.manual_seed(3)
    model = tiny(**SMALL)
    torch.manual_seed(4)
    assert distributed(runner(model), model, Eagle(save(tmp_path, model, frequent=frequent)), arms, 700, rule) < FITS


class Checked(Loop):
    """Works out every overlap again, one position after the other."""

    compared = 0

    def _draft(self, arm: Arm, room: int, proposals: Any) -> Draft:
        self.at_draft = list(self.text)
        return super()._draft(arm, room, proposals)

    def _overlap(self, scores: torch.Tensor, draft: Draft) -> tuple[float, ...]:
        found = super()._overlap(scores, draft)
        for at in range(len(draft.tokens)):
            assert draft.logits is not None
            text = torch.tensor([self.at_draft + draft.tokens[:at]])
            q = torch.softmax(self.request.processors(text, draft.logits[at : at + 1]), -1)
            p = torch.softmax(scores[at], -1)
            assert found[at] == pytest.approx(float(torch.minimum(p, q[0]).sum()), abs=1e-5)
            assert 0.0 < found[at] < 1.0
            self.compared += 1
        return found


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.5}, {"repetition_penalty": 1.5, "min_length": 30}])
@pytest.mark.parametrize("kind", ["eagle", "cut", "draft-model"])
def test_greedy_rounds_tell_the_overlap_of_both_distributions(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    model = tiny(eos_token_id=3)
    drafter: Drafter = DraftModel(tiny(1))
    if kind != "draft-model":
        drafter = Eagle(save(tmp_path, model, frequent=[1, 5, 6, 2, 9] if kind == "cut" else ()), kind)
    arms = build_arms([f"{drafter.name}:1", f"{drafter.name}:4"], {drafter.name: drafter}, (1,))
    target = runner(model)
    drafter.follow(target)
    needs = frozenset({Signal.OVERLAP})
    loop = Checked(target, {drafter.name: drafter}, build("random", arms), arms, needs, Prompts().features)
    prepared = wager.Decoder(model, drafters="off", policy="off").prepare(PROMPT, {"max_new_tokens": 25, **settings})
    target.begin()
    for step in loop.run(Request(list(PROMPT), prepared.processors, Stopping([], len(PROMPT) + 25))):
        assert step.round is None or len(step.round.overlap) == step.round.drafted
    assert loop.compared > 10


@pytest.mark.parametrize("kind", ["eagle", "cut", "draft-model"])
def test_logits_of_a_greedy_draft_are_what_it_would_have_drawn_from(tmp_path: Path, kind: str) -> None:
    model = tiny()
    target = reading(model)
    if kind == "draft-model":
        drafter: Drafter = DraftModel(tiny(1))
        drafter.begin(TEXT)
    else:
        drafter = following(save(tmp_path, model, frequent=[1, 5, 6, 2, 9] if kind == "cut" else ()), target)
    draft = drafter.propose(5)
    assert draft.probs is None
    assert draft.logits is not None
    told = torch.softmax(draft.logits, -1)
    if kind == "draft-model":
        drafter.begin(TEXT)
    drawn = drafter.propose(5, Draws(lambda _, logits: (int(logits.argmax()), torch.softmax(logits, -1))))
    assert drawn.logits is None
    assert drawn.tokens == draft.tokens
    torch.testing.assert_close(told, drawn.probs, rtol=1e-4, atol=1e-5)
    short = draft.cut(2).logits
    assert short is not None
    torch.testing.assert_close(torch.softmax(short, -1), told[:2])


def test_a_decoder_warms_every_drafter_for_its_own_arms() -> None:
    warmed: dict[str, list[str]] = {}

    class Warmed(DraftModel):
        def warm(self, arms: Iterable[Arm]) -> None:
            warmed[self.name] = [str(arm) for arm in arms]

    model = tiny()
    one, other, third = (Warmed(tiny(n), f"m:{n}") for n in (1, 2, 3))
    together = Together([other, third])
    arms = ["m:1:2", "m:1:4", "together:3", "together:5@2x8"]
    wager.Decoder(model, drafters=[one, together], policy="random", arms=arms)
    assert warmed == {"m:1": ["m:1:2", "m:1:4"], "m:2": ["m:2:3", "m:2:5"], "m:3": ["m:3:3", "m:3:5"]}


class TellsAnother(Eagle):
    """Says it drew from another distribution than it did."""

    def _draw(self, out: torch.Tensor, length: int, sample: Any) -> tuple[list[int], torch.Tensor]:
        tokens, probs = super()._draw(out, length, sample)
        return tokens, probs.flip(-1)


def test_a_wrong_q_is_noticed(tmp_path: Path) -> None:
    model = tiny(**SMALL)
    torch.manual_seed(4)
    drafter = TellsAnother(save(tmp_path, model))
    assert distributed(runner(model), model, drafter, ("eagle:1", "eagle:3"), 700, RESIDUAL) > FITS


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
    target = runner(model)
    eagle = Eagle(save(tmp_path, model))
    assert eagle.propose(3) == Draft()
    eagle.follow(target)
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
