"""The kernels that merge a chain into a draft, and keep the deeper of both, against the host's own rules."""

import os
import random

import pytest
import torch
from device_setup import run_in_interpreter
from small import tree_of

from wager.decoding.acceptance import accept_greedy, accept_tree_greedy
from wager.eagle import graph_inputs
from wager.models.runner import ancestry

INTERPRETED, CUDA = os.environ.get("TRITON_INTERPRET") == "1", torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
needs_kernels = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="needs CUDA, or Triton's interpreter")
PADDED, EMPTY = 64, 9  # the width of the forward; what stands where nothing was put


@pytest.mark.skipif(INTERPRETED or CUDA, reason="starts itself over in the interpreter")
def test_merging_kernels_agree_with_the_host_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


def own_draft(rng: random.Random, chain: bool) -> tuple[list[int], list[int]]:
    """Tokens, of which siblings differ, and parents."""
    nodes = rng.choice([1, 2, 4, 8, 15 if chain else 48])
    parents = list(range(-1, nodes - 1)) if chain else [max(-1, at - 1) for at in tree_of(rng, nodes + 1)[1:]]
    return [sum(parents[i] == parents[at] for i in range(at)) for at in range(nodes)], parents


def before(tokens: list[int], parents: list[int], chain: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's input and the parents of its slots with the own draft in place: of a chain only its tokens."""
    rest = [EMPTY] * (PADDED - 1 - len(tokens))
    depths, words = ancestry([-1, *(at + 1 for at in parents)])
    shape = [[part[0], *[EMPTY] * (PADDED - 1)] if chain else [*part, *rest] for part in (depths, words)]
    slots = [0, *[EMPTY] * (PADDED - 1)] if chain else [0, *(at + 1 for at in parents), *rest]
    where = [1, 2, 3, 4, 100, 1, 5, *tokens, *rest, *shape[0], *shape[1]]
    return torch.tensor(where, device=DEVICE), torch.tensor(slots, device=DEVICE)


@needs_kernels
@pytest.mark.parametrize("chain", [False, True])
def test_a_chain_stands_beside_the_draft_and_the_deeper_is_kept(chain: bool) -> None:
    from wager.eagle import device_round
    from wager.eagle import round_kernels as k

    rng, kept = random.Random(11), set()
    for _ in range(60):
        tokens, parents = own_draft(rng, chain)
        nodes, count = len(tokens), rng.choice([1, 2, 5, 8, 15])
        merged = [int(rng.random() < 0.2) for _ in range(count)]
        where, slots = before(tokens, parents, chain)
        k.merge(torch.tensor([count, nodes, chain, *merged], device=DEVICE), where, PADDED, slots)
        above = [*(at + 1 for at in parents), 0, *range(nodes + 1, nodes + count)]
        depths, words = ancestry([-1, *above])
        rest = [EMPTY] * (PADDED - 1 - nodes - count)
        assert where.tolist() == [1, 2, 3, 4, 100, 1, 5, *tokens, *merged, *rest, *depths, *rest, *words, *rest]
        assert slots.tolist() == [0, *above, *rest]
        choices = [int(rng.random() < 0.2) for _ in range(1 + nodes + count)]
        own = [at + 1 for at in accept_tree_greedy(choices, tokens, parents)]
        beside = accept_greedy([choices[0], *choices[1 + nodes :]], merged)
        path = own if len(own) >= beside else [1 + nodes + at for at in range(beside)]
        new = [*(int(where[6 + at]) for at in path), choices[path[-1] if path else 0]]
        if len(own) > 15:  # more than a head reads at once
            continue
        head = torch.zeros(graph_inputs.TOKENS + 16, dtype=torch.long, device=DEVICE)
        result = torch.full((k.RESULT,), -3, dtype=torch.long, device=DEVICE)
        chosen = torch.tensor(choices, device=DEVICE)
        k.accept(chosen, where, slots, head, device_round.LAYOUT, result, PADDED, 1 + nodes)
        assert (result[0], result[k.OWN]) == (len(path), len(own))
        assert result[k.PATH : k.NEW].tolist() == [0, *path, *[0] * (63 - len(path))]
        assert result[k.NEW : k.DRAFTED].tolist() == [*new, *[0] * (64 - len(new))]
        assert result[k.DRAFTED + 1 : k.DRAFTED + 1 + nodes + count].tolist() == [*tokens, *merged]
        assert head[graph_inputs.TOKENS :].tolist() == [*new, *[0] * (16 - len(new))]
        assert where[4:7].tolist() == [100 + len(new), 1, new[-1]]
        kept.add((len(own) > beside) - (len(own) < beside))
    assert kept == {-1, 0, 1}, "the merged one is the deeper, both are as deep, the own one is"


@needs_kernels
def test_the_last_slot_of_the_widest_forward_can_be_merged() -> None:
    from wager.eagle import round_kernels as k

    tokens, parents = [1] * 50, [-1] * 50
    where, slots = before(tokens, parents, False)
    k.merge(torch.tensor([13, 50, 0, *[2] * 13], device=DEVICE), where, PADDED, slots)
    depths, words = ancestry([-1, *[0] * 50, 0, *range(51, 63)])
    assert where.tolist()[6 + PADDED :] == depths + words, "bit 63 is the sign"
