"""The CUDA path: kernels against torch, graphs against the model's own forward, trees, a cache that grows and moves."""

import random

import pytest
import torch
from cuda_setup import attended, tiny
from small import path_to, tree_of
from torch.nn.functional import silu

pytest.importorskip("triton", reason="needs a CUDA device")

import wager
from wager.decoding.acceptance import accept_tree_sampled
from wager.drafters.draft_model import DraftModel
from wager.models import kernels
from wager.models.cuda_graph_runner import WIDE, WIDTHS, CUDAGraphRunner
from wager.models.hf_runner import HFRunner
from wager.models.select import runner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ERROR = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # one step of the last digit, relative


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_and_gate_round_as_the_model_does(dtype: torch.dtype) -> None:
    x, delta = (torch.randn(5, 576, device="cuda", dtype=dtype) for _ in range(2))
    weight = torch.randn(576, device="cuda", dtype=dtype)
    summed = x + delta
    exact = summed.float()
    wanted = weight * (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-5)).to(dtype)
    assert torch.allclose(kernels.norm(x, weight, 1e-5, delta), wanted, atol=1e-5 if dtype == torch.float32 else 0)
    assert torch.equal(x, summed)
    gated, up = (torch.randn(5, 1536, device="cuda", dtype=dtype) for _ in range(2))
    assert torch.allclose(kernels.gate(gated, up), silu(gated) * up, atol=1e-5 if dtype == torch.float32 else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("width", "start", "tree"),
    [(w, s, t) for w, s in ((1, 0), (1, 700), (5, 100), (9, 63), (24, 300), (64, 0), (64, 250)) for t in (False, True)]
    + [(96, 0, False), (192, 33, False), (512, 0, False), (512, 500, False)],
)
def test_attention_agrees_with_torch(dtype: torch.dtype, width: int, start: int, tree: bool) -> None:
    (cache, wanted), (got, mixed) = attended(width, start, tree, (8, 2, 64, 1024), torch.device("cuda"), dtype)
    assert torch.allclose(cache.float(), wanted.float(), atol=ERROR[dtype], rtol=ROUNDING[dtype])
    assert torch.allclose(got.float(), mixed, atol=ERROR[dtype])


@pytest.mark.parametrize("head", [32, 128])
@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_graphs_give_the_models_own_logits(kind: str, head: int) -> None:
    model = tiny(kind, head_dim=head, **({"sliding_window": None} if kind == "Mistral" else {}))
    graphs, eager = runner(model), HFRunner(model)
    assert isinstance(graphs, CUDAGraphRunner)
    eager.begin()
    for width in (100, *WIDTHS, *WIDE, 3, 10, 40, 500, 600):
        tokens = torch.randint(0, 512, (width,)).tolist()
        ours, theirs = graphs.forward(tokens, width), eager.forward(tokens, width)
        assert torch.allclose(ours, theirs, atol=1e-4)
        for each in (graphs, eager):
            each.crop(each.length - width // 2)


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_graphs_give_a_tree_the_logits_of_the_model_and_of_each_path_alone(kind: str) -> None:
    model = tiny(kind)
    graphs, eager, alone = CUDAGraphRunner(model), HFRunner(model), CUDAGraphRunner(model)
    assert graphs.trees
    assert eager.trees
    rng = random.Random(1)
    prefix = [rng.randrange(512) for _ in range(100)]
    for each in (graphs, eager, alone):
        each.begin()
        each.prefill(prefix)
    for width in (*WIDTHS, 10, 17, 33, 40, 61):
        parents, tokens = tree_of(rng, width), [rng.randrange(512) for _ in range(width)]
        ours = graphs.forward(tokens, width, parents).clone()
        assert torch.allclose(ours, eager.forward(tokens, width, parents), atol=1e-4)
        at = rng.randrange(width)
        path = path_to(parents, at)
        assert torch.allclose(ours[at], alone.forward([tokens[i] for i in path], 1)[0], atol=1e-4)
        graphs.keep([])
        eager.keep([])
        alone.crop(100)
        # chains after trees: what a tree left in the graphs' input must not be taken for tokens
        for chain in (3, 10, 40):
            more = [rng.randrange(512) for _ in range(chain)]
            assert torch.allclose(graphs.forward(more, chain), eager.forward(more, chain), atol=1e-4)
            graphs.crop(100)
            eager.crop(100)


def test_a_path_kept_on_the_device_goes_on_like_a_text_read_afresh_and_so_do_its_features() -> None:
    model = tiny()
    for seed in range(4):
        rng = random.Random(seed)
        graphs, fresh = CUDAGraphRunner(model), CUDAGraphRunner(model)
        graphs.begin()
        fresh.begin()
        graphs.watch()
        text = [rng.randrange(512) for _ in range(rng.choice([1, 70, 200]))]  # past 256 tokens the cache moves
        graphs.prefill(text)
        for _ in range(10):
            width = rng.randrange(2, 65)
            parents, tokens = tree_of(rng, width), [rng.randrange(512) for _ in range(width)]
            logits = graphs.forward(tokens, width, parents)
            new = graphs.features[graphs.before : graphs.length]
            assert torch.allclose(graphs.project(new), logits, atol=1e-4)
            path = path_to(parents, rng.randrange(width))
            graphs.keep(path)
            text += [tokens[at] for at in path]
            assert graphs.length == len(text)
        assert torch.allclose(graphs.forward([7, 8], 2), fresh.forward([*text, 7, 8], 2), atol=1e-4)
        with torch.no_grad():
            ids = torch.tensor([[*text, 7, 8]], device="cuda")
            theirs = model(ids, output_hidden_states=True).hidden_states[-1][0]
        assert torch.allclose(graphs.features[: graphs.length], theirs, atol=1e-4)


@pytest.mark.parametrize("policy", ["random", "off", "ucbspec"])
def test_greedy_text_with_trees_is_the_same(policy: str) -> None:
    model = tiny()
    decoder = wager.Decoder(
        model, drafters="suffix,prompt-lookup", policy=policy, lengths=(1, 3, 8), trees=("2x8", "4x30")
    )
    kept = 0
    for seed in range(4):
        prompt = torch.randint(0, 512, (1, 20), generator=torch.Generator().manual_seed(seed)).cuda().repeat(1, 2)
        theirs = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=120, do_sample=False)
        answer = decoder.generate(prompt, max_new_tokens=120, do_sample=False)
        assert answer.tokens == theirs[0, 40:].tolist()
        kept += sum(r.accepted for r in answer.rounds if r.arm.tree is not None)
    assert kept > 20 or policy != "random"


def test_sampling_with_trees_runs_on_the_device() -> None:
    p = torch.softmax(torch.randn(8, 512, device="cuda"), -1)
    q = torch.softmax(torch.randn(7, 512, device="cuda"), -1)
    parents = [-1, -1, 0, 0, 1, 3, -1]
    for given in (q, None):
        twice = [
            [accept_tree_sampled(p, [1, 2, 3, 4, 5, 6, 7], parents, given, generator) for _ in range(20)]
            for generator in (torch.Generator("cuda").manual_seed(3), torch.Generator("cuda").manual_seed(3))
        ]
        assert twice[0] == twice[1]


def test_a_growing_cache_needs_no_new_capture() -> None:
    model = tiny()
    graphs, eager = CUDAGraphRunner(model), HFRunner(model)
    graphs.begin()
    eager.begin()
    tokens = torch.randint(0, 512, (2000,)).tolist()
    for each in (graphs, eager):
        each.prefill(tokens[:200])
        each.forward(tokens[:8], 8)
    before, address = dict(graphs.captured), graphs.cache.data_ptr()
    for at in range(200, 1900, 50):
        ours, theirs = graphs.forward(tokens[at : at + 8], 8), eager.forward(tokens[at : at + 8], 8)
        assert torch.allclose(ours, theirs, atol=1e-4)
        for each in (graphs, eager):
            each.prefill(tokens[at : at + 42])
    assert graphs.cache.data_ptr() != address
    assert graphs.captured[8, None] is before[8, None]


def test_changed_weights_are_captured_anew() -> None:
    model = tiny()
    graphs, eager = CUDAGraphRunner(model), HFRunner(model)
    for _ in range(2):
        graphs.begin()
        eager.begin()
        assert torch.allclose(graphs.forward([1, 2, 3], 3), eager.forward([1, 2, 3], 3), atol=1e-4)
        with torch.no_grad():
            model.lm_head.weight.mul_(-1)


def test_a_head_that_watches_states_can_be_added_when_graphs_are_captured() -> None:
    """All graphs are dropped and captured anew while an output of the old ones is still held."""
    model = tiny()
    graphs, eager = CUDAGraphRunner(model), HFRunner(model)
    graphs.begin()
    held = graphs.forward([1, 2, 3], 3)
    for each in (graphs, eager):
        each.watch((1, 2))
        each.begin()
    assert torch.allclose(graphs.forward([1, 2, 3], 3), eager.forward([1, 2, 3], 3), atol=1e-4)
    assert torch.allclose(graphs.states[2][:3], eager.states[2][:3], atol=1e-4)
    assert held.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_as_close_as_two_widths_of_the_model_are(dtype: torch.dtype) -> None:
    assert isinstance(runner(tiny(dtype=dtype)), CUDAGraphRunner)  # which compares them
    assert isinstance(runner(tiny(dtype=dtype, head_dim=24)), HFRunner)  # a head that the kernels cannot take


def test_a_draft_model_drafts_on_the_device() -> None:
    model = tiny()
    policy = "fixed:drafter=draft-model,length=4"
    decoder = wager.Decoder(model, drafters=[DraftModel(model)], policy=policy, lengths=(4,))
    made = decoder.generate([1, 2, 3, 4], max_new_tokens=40, do_sample=False)
    assert made.mat > 4  # it is the target itself


def test_sampling_runs_on_the_device_and_repeats_with_a_seed() -> None:
    decoder = wager.Decoder(tiny(), drafters="off", policy="off")
    settings = {"max_new_tokens": 40, "do_sample": True, "temperature": 1.5, "top_p": 0.9, "repetition_penalty": 1.2}
    first, second, other = (decoder.generate([1, 2, 3, 4], seed=seed, **settings).tokens for seed in (7, 7, 8))
    assert first == second != other
