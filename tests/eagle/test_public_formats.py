"""Heads in the formats that people publish: read, run as chains and trees, and refused where they do not fit.

Chains are compared with vLLM's in tests/vllm/test_public_heads.py.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import public_heads
import pytest
import torch
from eagle_setup import features, feed, following, graphed, reading
from identity import first_difference_is_a_tie
from public_heads import DRAFTED, PROMPT, TEXT, VOCABULARY, Weights, drafted_tokens, eagle, eagle3, speculators, target
from reference.eagle import SlowEagle3, SlowHead
from small import paths

import wager
from wager.core import Tree
from wager.eagle import cuda_graphs
from wager.eagle.cuda_graphs import CUDAGraphEagle3Head
from wager.eagle.drafter import Eagle
from wager.eagle.head import Head
from wager.models.attention import attend, mask, rotate
from wager.models.hf_runner import HFRunner
from wager.models.select import runner


def published(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the configuration in a folder."""
    return torch.load(folder / "pytorch_model.bin"), json.loads((folder / "config.json").read_text())


def plain(model: Any, count: int = 40) -> list[int]:
    ids = torch.tensor([PROMPT])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    tokens: list[int] = made[0, len(PROMPT) :].tolist()
    return tokens


@pytest.mark.parametrize("how", [{}, {"fc_bias": True, "qkv_bias": True}, {"embed": False}])
def test_an_authors_eagle_head_drafts_as_the_reference(tmp_path: Path, how: dict[str, bool]) -> None:
    model, text = target(), TEXT[:24]
    folder = eagle(tmp_path, **how)
    reference = SlowHead(*published(folder), model)
    entries = reference.entries(text, features(model, text))
    drafter = following(folder, reading(model, text), text)
    assert drafter.propose(5).tokens == reference.chain(entries, 5)
    assert set(paths(drafter.propose_tree(3, Tree(3, 8)))) == set(reference.tree(entries, 3, 3, 8))


@pytest.mark.parametrize("kind", [runner, HFRunner])
def test_an_eagle3_head_drafts_chains_and_trees_as_the_reference(tmp_path: Path, kind: Any) -> None:
    model, text = target(), TEXT[:20]
    folder = eagle3(tmp_path)
    reference, drafter = SlowEagle3(*published(folder), model), Eagle(folder)
    made = kind(model)
    drafter.follow(made)
    assert made.features.numel() == 0, "only what it reads of the target is kept"
    made.begin()
    made.prefill(text[:-1])
    drafter.begin(text[:-1])
    drafter.extend(text[-1:])
    entries = reference.entries(text, reference.features(model, text))
    assert drafter.propose(5).tokens == reference.chain(entries, 5)
    for depth, breadth, nodes in ((3, 2, 5), (4, 3, 12)):
        draft, expected = (
            drafter.propose_tree(depth, Tree(breadth, nodes)),
            reference.tree(entries, depth, breadth, nodes),
        )
        assert set(paths(draft)) == set(expected)
        assert len(draft.tokens) == nodes
    assert set(draft.tokens) <= set(drafted_tokens(2).tolist())


def test_the_bodies_of_the_graphs_draft_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not captured here, but the same bodies."""
    monkeypatch.setattr(cuda_graphs, "LEAST", 16)  # so that the cache has to grow
    model = target()
    folder, made = eagle3(tmp_path), runner(model)
    plain_drafter = Eagle(folder)
    plain_drafter.follow(made)
    made.begin()
    made.prefill(TEXT[:5])
    plain_drafter = following(folder, made, TEXT[:6])
    captured, graphs = graphed(folder, made, TEXT[:6], kind=CUDAGraphEagle3Head)
    at = 6
    for step, drafts in ((1, 5), (2, 3), (1, 0), (7, 4), (17, 2), (1, 1), (4, 6)):
        feed(made, TEXT[: at + step - 1])
        for drafter in (plain_drafter, captured):
            drafter.extend(TEXT[at : at + step])
        at += step
        if drafts:
            assert captured.propose(drafts).tokens == plain_drafter.propose(drafts).tokens
            one, other = (d.propose_tree(drafts, Tree(3, 10)) for d in (captured, plain_drafter))
            assert (one.tokens, one.parents) == (other.tokens, other.parents)
    graphs._warm()  # as on CUDA
    assert graphs.captures


class Kernels:
    """What the CUDA kernels do, in torch, for a head that is told them by its own cache and tables."""

    def __init__(self, head: CUDAGraphEagle3Head) -> None:
        self.head = head

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, delta: Any = None) -> torch.Tensor:
        assert x.is_contiguous()
        if delta is not None:
            x.add_(delta)
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

    def gate(self, gated: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(gated) * up

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, where: torch.Tensor, *more: Any) -> Any:
        earlier = more[-1]  # after the layer and the scratch memory
        head, width, start = self.head, len(q), int(where[4])
        assert where[:4].tolist() == list(head.where)
        at = torch.arange(width)
        depths, seen = at, torch.ones(width, width, dtype=torch.bool).tril()
        if int(where[5]):
            depths, words = where[6 + width : 6 + 2 * width], where[6 + 2 * width : 6 + 3 * width]
            seen = (words[:, None] >> torch.arange(earlier + width) & 1).bool()
        rope = head.cos[start + depths], head.sin[start + depths]
        q, k = rotate(q, *rope), rotate(k, *rope)
        slots = start + earlier + at
        head.cache[:, slots] = torch.cat((k, v), 1).transpose(0, 1)
        end, kv = start + earlier + width, head.num_kv_heads
        unseen = mask(head.fc, width, end - seen.shape[1], seen)
        return attend(q.transpose(0, 1), head.cache[:kv, :end], head.cache[kv:, :end], unseen, head.scale)


@pytest.mark.parametrize("make", [eagle3, lambda f: speculators(f, "qwen3", norm_output=True)])
def test_the_fused_layer_drafts_the_same(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are torch's here."""
    model, folder = target(), make(tmp_path)
    made = runner(model)
    Eagle(folder).follow(made)
    made.begin()
    made.prefill(TEXT[:15])
    plain_drafter = following(folder, made, TEXT[:16])
    captured, graphs = graphed(folder, made, TEXT[:16], kind=CUDAGraphEagle3Head)
    fake: Any = Kernels(graphs)
    monkeypatch.setitem(sys.modules, "wager.models.kernels", fake)
    monkeypatch.setattr("wager.models.kernels", fake, raising=False)
    own = SimpleNamespace(likeliest=lambda x, n: Head._top(graphs, x, n), best=lambda *x: Head.best(graphs, *x))
    monkeypatch.setitem(sys.modules, "wager.eagle.kernels", own)
    monkeypatch.setattr("wager.eagle.kernels", own, raising=False)
    monkeypatch.setattr(graphs, "fused", True)
    at = 16
    for step in (1, 2, 5):
        feed(made, TEXT[: at + step - 1])
        for drafter in (plain_drafter, captured):
            drafter.extend(TEXT[at : at + step])
        at += step
        assert captured.propose(5).tokens == plain_drafter.propose(5).tokens
        one, other = (d.propose_tree(4, Tree(3, 10)) for d in (captured, plain_drafter))
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
        assert one.hint.confidence == pytest.approx(other.hint.confidence, abs=1e-4)
    assert graphs.captures
    assert graphs.fused


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_drafts_are_eager_ones_on_a_gpu(tmp_path: Path) -> None:
    model, folder = target().to("cuda"), eagle3(tmp_path)
    made = runner(model)
    Eagle(folder).follow(made)
    made.begin()
    made.prefill(TEXT[:-1])
    with torch.no_grad():
        states = model(torch.tensor([TEXT[:-1]], device="cuda"), output_hidden_states=True).hidden_states
    for layer, rows in made.states.items():
        torch.testing.assert_close(rows[: len(TEXT) - 1], states[layer][0], rtol=1e-3, atol=1e-3)
    (captured, graphs), (eager, plain_head) = (graphed(folder, made, kind=CUDAGraphEagle3Head, text=TEXT) for _ in "ab")
    plain_head.captures = False
    for length in (1, 4, 7):
        assert captured.propose(length).tokens == eager.propose(length).tokens
        one, other = (drafter.propose_tree(length, Tree(3, 10)) for drafter in (captured, eager))
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
    assert graphs.captures
    assert graphs.fused


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("llama", lambda folder: eagle(folder)),
        ("llama", lambda folder: eagle3(folder)),
        ("qwen3", lambda folder: speculators(folder, "qwen3", norm_before_fc=True)),
        ("qwen3", lambda folder: eagle3(folder, embed=True, hidden=48, target_hidden_size=64, head_dim=32)),
    ],
)
def test_texts_with_chains_and_trees_are_the_targets_own(tmp_path: Path, kind: str, make: Any) -> None:
    model, folder = target(kind), make(tmp_path / "head")
    arms = ["off", "eagle:1", "eagle:3", "eagle:3@2x6", "eagle:4@3x12"]
    for options in ({}, {"do_sample": True, "temperature": 0.8, "seed": 3}):
        decoder = wager.Decoder(model, drafters=f"eagle={folder}", arms=arms, policy="random")
        made = decoder.generate(PROMPT, max_new_tokens=40, **({"do_sample": False} | options))
        if not options:
            assert first_difference_is_a_tie(model, PROMPT, made.tokens, plain(model), 1e-3)
        assert {str(played.arm) for played in made.rounds} >= {"eagle:3", "eagle:4@3x12"}


def test_a_draft_that_is_right_is_accepted(tmp_path: Path) -> None:
    """Read after the target's last layer and passed on as it is, so that it drafts what the target just said."""
    model = target()
    weights = published(eagle3(tmp_path, whole=True))[0]
    count, hidden = public_heads.LAYERS, public_heads.SIZES["hidden_size"]
    weights = {name: torch.zeros_like(t) if "proj" in name else t for name, t in weights.items()}
    weights["fc.weight"] = torch.eye(hidden)
    weights["norm.weight"] = model.model.norm.weight.detach().clone()
    weights["lm_head.weight"] = model.lm_head.weight.detach().clone()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    edit(tmp_path, eagle_aux_hidden_state_layer_ids=[count])
    drafter = following(tmp_path, _read_after(model, tmp_path), TEXT)
    with torch.no_grad():
        said = int(model(torch.tensor([TEXT[:-1]])).logits[0, -1].argmax())
    assert drafter.propose(1).tokens == [said]
    with pytest.raises(ValueError, match="does not show its states after layers 7"):
        Eagle(tmp_path).follow(HFRunner(model))


def _read_after(model: Any, folder: Path) -> Any:
    made = runner(model)
    Eagle(folder).follow(made)
    made.begin()
    made.prefill(TEXT[:-1])
    return made


def test_an_embedding_that_is_the_targets_is_kept_once(tmp_path: Path) -> None:
    model = target()
    weights = published(eagle(tmp_path))[0]
    own = following(tmp_path, reading(model, TEXT[:9]), TEXT[:9])
    weights["embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    shared = following(tmp_path, reading(model, TEXT[:9]), TEXT[:9])
    assert shared.head.embed.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert own.head.embed.data_ptr() != shared.head.embed.data_ptr()
    assert own.memory - shared.memory == VOCABULARY * 64 * 4


def edit(folder: Path, **content: Any) -> None:
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**known, **content}))


def changed(folder: Path, **tensors: torch.Tensor | None) -> None:
    """The head of a folder with a tensor more or, where it is None, less."""
    weights = published(folder)[0] | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    torch.save({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "pytorch_model.bin")


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no file of torch's": (lambda f: (eagle3(f) / "pytorch_model.bin").write_bytes(b"x" * 99), "cannot read"),
    "code": (lambda f: torch.save({"fc.weight": print}, eagle3(f) / "pytorch_model.bin"), "cannot read"),
    "no tensors": (lambda f: torch.save([1], eagle3(f) / "pytorch_model.bin"), "does not hold tensors by name"),
    "another speculator": (
        lambda f: edit(speculators(f), speculators_model_type="dflash"),
        "is a speculator of the kind 'dflash'; wager runs those of the kind 'eagle3'",
    ),
    "no layer": (lambda f: edit(speculators(f), transformer_layer_config=None), "no mapping under 'transformer_layer"),
    "another shape": (
        lambda f: edit(eagle3(f), model_type="deepseek_v3"),
        "has a layer of the type 'deepseek_v3'; wager runs llama and qwen3",
    ),
    "one state": (
        lambda f: edit(eagle3(f), eagle_config={"use_aux_hidden_state": False}),
        "reads only the target's last state",
    ),
    "two layers": (lambda f: edit(eagle3(f), num_hidden_layers=2), "a model of 2 layers"),
    "a layer twice": (lambda f: edit(eagle3(f), eagle_aux_hidden_state_layer_ids=[2, 2, 4]), "where one is twice"),
    "no numbers": (lambda f: edit(eagle3(f), eagle_aux_hidden_state_layer_ids="abc"), "is a list of numbers"),
    "four layers": (
        lambda f: edit(eagle3(f), eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4]),
        r"has fc.weight of shape \(64, 192\) where its config.json says \(64, 256\)",
    ),
    "no map": (lambda f: changed(eagle3(f), d2t=None), "has no tensor d2t"),
    "a wrong map": (
        lambda f: changed(eagle3(f), d2t=torch.full((DRAFTED,), VOCABULARY)),
        f"d2t that does not lead to different tokens below {VOCABULARY}",
    ),
    "a quantized map": (lambda f: changed(eagle3(f), d2t=torch.zeros(DRAFTED)), "has d2t in torch.float32"),
    "parallel drafting": (lambda f: changed(eagle3(f), mask_hidden=torch.zeros(1, 192)), "has a tensor mask_hidden"),
    "no norm": (lambda f: edit(speculators(f), norm_before_fc=True), "has no tensor input_norm.weight"),
    "an LM head": (lambda f: changed(eagle(f), lm_head__weight=torch.zeros(VOCABULARY, 64)), "has a tensor lm_head"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_run_is_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    spoil, says = BAD[case]
    spoil(tmp_path)
    with pytest.raises(ValueError, match=says) as told:
        Eagle(tmp_path)
    assert "\n" not in str(told.value)


def test_a_target_of_another_shape_is_refused(tmp_path: Path) -> None:
    for model, says in (
        (target(hidden_size=96), "has states of size 64 and the target 96"),
        (target(vocab_size=80), f"a vocabulary of {VOCABULARY} and the target 80"),
        (target(num_hidden_layers=5), "reads the target after layers 2, 2, 2, and it has 5"),
    ):
        with pytest.raises(ValueError, match=says):
            Eagle(eagle3(tmp_path)).follow(runner(model))
    edit(tmp_path, eagle_aux_hidden_state_layer_ids=[2, 4, 9])
    with pytest.raises(ValueError, match="the target has 7 layers, and the head reads it after layer 9"):
        Eagle(tmp_path).follow(runner(target()))
    smaller = Weights(0)
    smaller.add("embed_tokens.weight", VOCABULARY, 32)
    changed(tmp_path, embed_tokens__weight=smaller.tensors["embed_tokens.weight"])
    with pytest.raises(ValueError, match=r"embed_tokens.weight of shape \(96, 32\)"):
        Eagle(tmp_path)
