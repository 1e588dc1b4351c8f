"""Captured drafts of an EAGLE head where the target is sampled, on CUDA."""

from __future__ import annotations

from pathlib import Path

import heads
import pytest
import torch
from cuda_setup import tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("size", [32, 12])  # the kernels' own, and one they do not take
def test_a_seed_has_one_text_whatever_captured_drafts_bring(tmp_path: Path, size: int) -> None:
    import wager
    from wager.eagle.drafter import Eagle

    model = tiny()
    head = Eagle(heads.save(tmp_path, model, shape={"head_dim": size}))
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
    assert {"sampled chain", "sampled tree"} <= {key[0] for key in head.head.replays}


@pytest.mark.parametrize("size", [32, 12])
def test_captured_drafts_are_drawn_with_the_noise(tmp_path: Path, size: int) -> None:
    from wager.decoding.sampler import GumbelSampler
    from wager.eagle.cuda_graphs import CUDAGraphHead
    from wager.eagle.head import Head
    from wager.models.select import runner

    model = tiny()
    target, folder = runner(model), heads.save(tmp_path, model, shape={"head_dim": size})
    plain, graphs = Head(folder), CUDAGraphHead(folder)
    text = list(range(20, 41))
    for head in (plain, graphs):
        head.follow(target)
    graphs.warm([5], [(3, 3)])
    target.begin()
    target.prefill(text[:-1])
    outs = [head.read(text[1:], target.features[:20], 0).clone() for head in (plain, graphs)]
    for seed in range(5):
        noise = GumbelSampler(512, torch.device("cuda"), seed).gumbel(0, 8)
        for temperature, length in ((1.0, 5), (0.4, 3), (0.0, 5)):  # 0: greedy, in between
            drafts = []
            for head, out in zip((plain, graphs), outs, strict=True):
                gumbel = head.gumbel(noise, temperature) if temperature else None
                chain = head.chain(out, length, gumbel).tokens.tolist()
                head.crop(20)
                drafts.append((chain, *head.tree(out, 3, 3, 9, gumbel)[:2]))
                head.crop(20)
            assert drafts[0] == drafts[1]
