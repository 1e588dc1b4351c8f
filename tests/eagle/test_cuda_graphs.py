"""The bodies that are captured as CUDA graphs, and the head's kernels, against the plain forward and torch."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import cuda_setup
import pytest
import torch
from draws import Draws
from eagle_setup import begun, feed, following, graphed, reading
from heads import TEXT, VOCABULARY, save, tiny

import wager
from wager.core import Arm, Tree
from wager.decoding.sampler import GumbelSampler
from wager.eagle import cuda_graphs, graph_inputs
from wager.eagle.cuda_graphs import CUDAGraphHead
from wager.eagle.drafter import Eagle
from wager.eagle.head import Head
from wager.models.select import runner


@pytest.mark.parametrize("frequent", [(), (3, 17, 4, 9, 20)])
@pytest.mark.parametrize("window", [0, 6])
def test_fixed_shapes_give_the_same(
    tmp_path: Path, frequent: tuple[int, ...], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not captured here, but the same bodies."""
    monkeypatch.setattr(cuda_graphs, "LEAST", 16)  # so that the cache has to grow
    model = tiny()
    target = reading(model, TEXT[:6])
    plain = following(save(tmp_path, model, frequent=frequent), target, TEXT[:6], window=window)
    eagle, graphs = graphed(tmp_path, target, TEXT[:6], window=window)
    pair, at = (plain, eagle), 6
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
    assert graphs.captures
    graphs._warm()  # as on CUDA
    assert graphs.captures
    assert {("read", width) for width in cuda_graphs.WIDTHS} <= graphs.replays.keys()


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
        assert done == ["copy", ("read", read), ("likeliest", 4, 0)]
        done.clear()
        eagle.propose_tree(3, Tree(2, 5))
        eagle.propose(2)
        assert done == [("likeliest", 3, 2), ("likeliest", 2, 0)], "the device knows where to go on"
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
    assert {("likeliest", 5, 0), ("likeliest", 3, 0), ("likeliest", 4, 2), ("likeliest", 3, 3)} < warm
    eagle.begin(TEXT[:-1])
    eagle.extend(TEXT[-1:])
    plain = following(tmp_path, target)
    for length in (1, 3, 4, 5):
        one, other = eagle.propose(length), plain.propose(length)
        assert one.tokens == other.tokens
        assert one.logits.shape == (length, VOCABULARY)
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    for depth, shape in ((1, Tree(3, 2)), (2, Tree(3, 7)), (3, Tree(2, 6)), (2, Tree(2, 4))):
        one, other = (each.propose_tree(depth, shape) for each in (eagle, plain))
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
    assert set(graphs.replays) == warm, "a text's end is no reason to capture"
    eagle.propose(6)
    assert ("likeliest", 6, 0) in graphs.replays


class StepsOnOneSlot(CUDAGraphHead):
    """Puts all entries of a chain into one slot."""

    def forward(self, tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        if self.part == graph_inputs.CHAIN:
            self.ahead = 0
        return super().forward(tokens, features)


class GoesOnFromThePadding(CUDAGraphHead):
    """Takes the last row that was read, real or not."""

    def _tell(self, tokens: Sequence[int], width: int) -> None:
        super()._tell(tokens, width)
        self.inputs[graph_inputs.LAST] = max(0, len(tokens) - 1)


@pytest.mark.parametrize("bug", [StepsOnOneSlot, GoesOnFromThePadding])
def test_a_bug_in_the_bodies_is_noticed(tmp_path: Path, bug: type[CUDAGraphHead]) -> None:
    model, text = tiny(), TEXT[:12]  # 11 entries, padded to 12
    target = reading(model, text)
    sound = following(save(tmp_path, model), target, text)
    wrong, _ = graphed(tmp_path, target, text, bug)
    assert wrong.propose(6).tokens != sound.propose(6).tokens


class Doubles(CUDAGraphHead):
    """Computes something else."""

    def _masked(self, *given: Any) -> torch.Tensor:
        return 2 * super()._masked(*given)


class NotCaptured(CUDAGraphHead):
    """Runs where nothing can be captured."""

    def _captured(self, body: Any) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [Doubles, NotCaptured])
def test_graphs_that_fail_are_left_out(
    tmp_path: Path, kind: type[CUDAGraphHead], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny()
    target = reading(model)
    sound = following(save(tmp_path, model), target)
    eagle, graphs = graphed(tmp_path, target, kind=kind)
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


@pytest.mark.parametrize("size", [16, 12])  # on CUDA: the kernels' own, and one they do not take
def test_captured_drafts_are_drawn_with_the_noise(tmp_path: Path, size: int) -> None:
    model = tiny(head_dim=16).to(KERNELS_ON)
    save(tmp_path, model, shape={"head_dim": size})
    target, text, drafters = runner(model), TEXT[:21], (Head(tmp_path), CUDAGraphHead(tmp_path))
    for head in drafters:
        head.follow(target)
    drafters[1].warm([(5, 0), (3, 3)])
    target.begin()
    target.prefill(text[:-1])
    outs = [head.read(text[1:], target.features[:20], 0).clone() for head in drafters]
    for seed in range(6):
        noise = GumbelSampler(VOCABULARY, torch.device(KERNELS_ON), seed).gumbel(0, 8)
        for temperature, length in ((1.0, 5), (0.4, 3), (0.0, 5)):  # 0: greedy, in between
            drafts = []
            for head, out in zip(drafters, outs, strict=True):
                gumbel = head.gumbel(noise, temperature) if temperature else None
                chain = head.chain(out, length, gumbel).tokens.tolist()
                head.crop(20)
                drafts.append((chain, *head.tree(out, 3, 3, 9, gumbel)[:2]))
                head.crop(20)
            assert drafts[0] == drafts[1]


@pytest.mark.skipif(KERNELS_ON == "cpu", reason="needs CUDA")
@pytest.mark.parametrize("size", [32, 12])
def test_a_seed_has_one_text_whatever_captured_drafts_bring(tmp_path: Path, size: int) -> None:
    model = cuda_setup.tiny()
    head = Eagle(save(tmp_path, model, shape={"head_dim": size}))
    arms = ["off", "eagle:4", "eagle:2", "eagle:3@3x8", "suffix:3", "suffix:3@2x6"]
    played = wager.Decoder(model, drafters=[head, "suffix"], policy="random", arms=arms)
    alone = wager.Decoder(model, drafters="off", policy="off")
    kept = 0
    for seed in range(4):
        settings = {"max_new_tokens": 80, "do_sample": True, "temperature": 0.7, "top_k": 8, "seed": seed}
        made = played.generate([1, 2, 3, 4] * 5, **settings)
        assert made.tokens == alone.generate([1, 2, 3, 4] * 5, **settings).tokens
        kept += sum(r.accepted for r in made.rounds)
    assert kept > 0
    assert head.head.captures
    assert {("sampled", 4, 0), ("sampled", 3, 3)} <= head.head.replays.keys()


@needs_kernels
@pytest.mark.parametrize("size", [12, 16])
@pytest.mark.parametrize("window", [0, 6])
def test_captured_drafts_are_eager_ones(
    tmp_path: Path, size: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "FUSED_ON", (KERNELS_ON,))
    monkeypatch.setattr(cuda_graphs, "LEAST", 16)
    text = TEXT[:] if KERNELS_ON == "cpu" else TEXT * 4 + TEXT[:13]  # before it is over the cache has to grow
    model = tiny(head_dim=16).to(KERNELS_ON)
    save(tmp_path, model, frequent=(3, 17, 4, 9, 20), shape={"head_dim": size})
    target = reading(model, text)
    (captured, graphs), (eager, plain) = (graphed(tmp_path, target, text, window=window) for _ in range(2))
    for eagle in (captured, eager):
        eagle.warm([Arm("eagle", 4), Arm("eagle", 4, Tree(3, 10))])
    target.begin()  # on CUDA rounds were rehearsed on it
    target.prefill(text[:-1])
    for eagle in (captured, eager):
        begun(eagle, target, text)
    assert graphs.fused == (size == 16 and window == 0)
    if KERNELS_ON == "cuda":
        assert graphs.pruned is None
    plain.captures = False
    before = graphs.replays.get(("likeliest", 4, 0))
    for step in range(3):
        for length in (1, 4, 7):
            one, other = captured.propose(length), eager.propose(length)
            assert one.tokens == other.tokens != []
            torch.testing.assert_close(one.logits, other.logits, rtol=1e-3, atol=1e-3)
            one, other = (eagle.propose_tree(length, Tree(3, 10)) for eagle in (captured, eager))
            assert (one.tokens, one.parents) == (other.tokens, other.parents)
            assert one.hint.confidence == pytest.approx(other.hint.confidence, abs=1e-3)
        target.prefill(TEXT[: step + 1])
        for eagle in (captured, eager):
            eagle.extend(TEXT[: step + 1])
    assert graphs.captures
    assert {("likeliest", 4, 0), ("likeliest", 7, 0), ("likeliest", 4, 3)} <= graphs.replays.keys()
    if graphs.fused:
        assert graphs.replays["likeliest", 4, 0] is before, "a cache that grows needs no new capture"


@needs_kernels
def test_prompts_that_cannot_be_captured_cost_a_head_neither_kernels_nor_other_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_graphs, "FUSED_ON", (KERNELS_ON,))
    monkeypatch.setattr(cuda_graphs, "WIDE", (32, 64))
    model = tiny(head_dim=16).to(KERNELS_ON)
    save(tmp_path, model, shape={"head_dim": 16})
    target = reading(model, TEXT[:40])
    eagle, graphs = graphed(tmp_path, target, TEXT[:40])
    sound = graphs._captured

    def captured(body: Any) -> Any:
        if getattr(body, "args", ())[:1] == (64,):
            raise RuntimeError("out of memory")
        return sound(body)

    monkeypatch.setattr(graphs, "_captured", captured)
    graphs._warm()
    assert "reads prompts without CUDA graphs (RuntimeError: out of memory)" in caplog.text
    assert graphs.captures
    assert graphs.fused
    assert graphs.widths == cuda_graphs.WIDTHS
    assert {key[1] for key in graphs.replays if key[0] == "read"} <= set(cuda_graphs.WIDTHS)
    plain = following(tmp_path, target, TEXT[:40])
    begun(eagle, target, TEXT[:40])
    assert eagle.propose(4).tokens == plain.propose(4).tokens


@needs_kernels
@pytest.mark.parametrize("length", [21, 58, 180])
def test_prompts_are_read_as_by_the_plain_forward(tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From graphs, padded, and where none is as wide one after the other; padding leaves no trace."""
    monkeypatch.setattr(cuda_graphs, "FUSED_ON", (KERNELS_ON,))
    monkeypatch.setattr(cuda_graphs, "WIDE", (32, 64))
    model = tiny(head_dim=16).to(KERNELS_ON)
    save(tmp_path, model, shape={"head_dim": 16})
    text = (TEXT * 4)[:length]
    target = reading(model, text)
    (captured, graphs), (eager, plain) = (graphed(tmp_path, target, text) for _ in range(2))
    plain.captures = False
    for eagle in (captured, eager):
        begun(eagle, target, text)
    one, other = captured.propose(6), eager.propose(6)
    assert one.tokens == other.tokens
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(graphs.cache[:, : length - 1], plain.cache[:, : length - 1], rtol=1e-3, atol=1e-3)
    assert {key for key in graphs.replays if key[0] == "read"} & {("read", width) for width in cuda_graphs.WIDE}


@needs_kernels
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 24, 3), (4, 3000, 4), (3, 1025, 16)])
def test_the_likeliest_are_those_of_torch(rows: int, size: int, count: int) -> None:
    from wager.eagle.kernels import likeliest

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
    from wager.eagle import kernels as head_kernels

    made = torch.Generator().manual_seed(count)
    paths = torch.randn(count**2, generator=made).to(KERNELS_ON)
    tokens = torch.randperm(count**2, generator=made).to(KERNELS_ON)
    expected = Head.best(None, paths, tokens, count)  # type: ignore[arg-type]
    for ours, theirs in zip(head_kernels.best(paths, tokens, count), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    embed, one = torch.randn(count**2, 20).to(KERNELS_ON), torch.randn(1, 20).to(KERNELS_ON)
    for features in (one.expand(count, -1), torch.randn(count, 20).to(KERNELS_ON)):
        found = head_kernels.beside(tokens[:count], embed, features)
        assert torch.equal(found, torch.cat((embed[tokens[:count]], features), dim=-1))
