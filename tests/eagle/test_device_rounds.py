"""Rounds that stay on the device: their kernels against the host's own rules, and whole texts against plain decoding.

Without CUDA they run in Triton's interpreter, on bodies that nothing captures.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from device_setup import Setup, run_in_interpreter, settings
from heads import PROMPT, save, tiny
from small import path_to, tree_of

import wager
from wager.core import Arm, Tree
from wager.decoding.acceptance import accept_greedy, accept_tree_greedy
from wager.eagle import graph_inputs
from wager.eagle.drafter import Eagle
from wager.eagle.tree import choose, grown_nodes
from wager.models.runner import ancestry

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
needs_kernels = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="needs CUDA, or Triton's interpreter")


@pytest.mark.skipif(INTERPRETED or CUDA, reason="starts itself over in the interpreter")
def test_rounds_on_the_device_agree_with_the_host_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


def grown(depth: int, breadth: int, seed: int) -> tuple[list[torch.Tensor], Any]:
    """A random tree as a head grows it, with ties, as the kernel and as the host take it."""
    from wager.eagle.head import Head

    made = torch.Generator().manual_seed(seed)
    tokens, sure, paths, expanded, words = [], [], [], [torch.zeros(0, dtype=torch.long)], []
    scores, seen = torch.zeros(1), torch.zeros(1, dtype=torch.long)
    for level in range(depth):
        logp = -torch.randint(0, 6, (len(scores), breadth), generator=made) / 2
        tokens.append(torch.randint(0, 500, (logp.numel(),), generator=made))
        sure.append(logp.flatten())
        paths.append((scores[:, None] + logp).flatten())
        if level + 1 == depth:
            break
        if level == 0:
            index, parent, scores = torch.arange(breadth), torch.zeros(breadth, dtype=torch.long), paths[0]
        else:
            index, parent, _, scores = Head.best(None, paths[-1], tokens[-1], breadth)  # type: ignore[arg-type]
            expanded.append(index)
        seen = seen[parent] | (1 << (level * breadth + torch.arange(breadth)))
        words.append(seen)
    words = torch.cat(words) if words else torch.zeros(0, dtype=torch.long)
    parts = [torch.cat(tokens), torch.cat(paths), words, torch.cat(expanded)]
    host = torch.cat([torch.cat(part).double() for part in (tokens, sure, expanded)]).numpy()
    return [part.to(DEVICE) for part in parts], host


@needs_kernels
@pytest.mark.parametrize(
    ("depth", "breadth", "nodes"), [(1, 4, 3), (2, 3, 9), (4, 4, 16), (6, 8, 32), (6, 8, 63), (3, 2, 50), (5, 16, 20)]
)
def test_the_nodes_that_stay_are_those_the_host_would_choose(depth: int, breadth: int, nodes: int) -> None:
    from wager.eagle import round_kernels

    for seed in range(3):
        parts, host = grown(depth, breadth, seed)
        wanted = choose(host, depth, depth, breadth, nodes)
        nodes = min(nodes, grown_nodes(depth, breadth))
        padded = 64
        where = torch.full((6 + 3 * padded,), -7, dtype=torch.long, device=DEVICE)
        parents = torch.zeros(64, dtype=torch.long, device=DEVICE)
        round_kernels.select(parts, breadth, nodes, where, padded, parents)
        slots = slice(1, nodes + 1)
        assert where[6:][slots].tolist() == wanted.tokens
        assert [at - 1 for at in parents[slots].tolist()] == wanted.parents
        depths, words = ancestry([-1, *(at + 1 for at in wanted.parents)])
        assert where[6 + padded :][slots].tolist() == depths[1:]
        assert where[6 + 2 * padded :][slots].tolist() == words[1:]
        assert where[6 + nodes + 1 : 6 + padded].eq(-7).all(), "nothing else is written"
        assert where[:7].eq(-7).all()


def accepting(tokens: list[int], parents: list[int] | None, choices: list[int]) -> Any:
    """What the kernel finds, and both inputs after it; slot 0 is the text's last token."""
    from wager.eagle import device_round, round_kernels

    width = len(choices)
    padded = next(w for w in device_round.TARGET_WIDTHS if w >= width)
    given = [1, 2, 3, 4, 100, int(parents is not None), 5, *tokens, *[0] * (padded - width)]
    slots = torch.zeros(64, dtype=torch.long)
    if parents is not None:
        depths, words = ancestry([-1, *(at + 1 for at in parents), *[-1] * (padded - width)])
        given += depths + words
        slots[1:width] = torch.tensor(parents) + 1
    where, head = torch.tensor(given, device=DEVICE), torch.arange(graph_inputs.TOKENS + 16, device=DEVICE)
    head[graph_inputs.CHAIN + 4], head[graph_inputs.POSITION[graph_inputs.CHAIN]] = 70, 80
    result = torch.full((round_kernels.RESULT,), -3, dtype=torch.long, device=DEVICE)
    chosen, of_tree = torch.tensor(choices, device=DEVICE), None if parents is None else slots.to(DEVICE)
    round_kernels.accept(chosen, where, of_tree, head, device_round.LAYOUT, result, padded)
    return result.tolist(), where.tolist(), head.tolist()


@needs_kernels
@pytest.mark.parametrize("tree", [False, True])
def test_what_is_accepted_is_what_the_host_accepts(tree: bool) -> None:
    from wager.eagle import round_kernels as k

    rng = random.Random(3)
    longest = 0
    for width in [1, 2, 3, 5, 9, 17, 33, 64] * 3:
        parents = [at - 1 for at in tree_of(rng, width)[1:]] if tree else None
        parents = None if parents is None else [max(-1, at) for at in parents]
        tokens = [rng.randrange(3) for _ in range(width - 1)]
        if parents is not None:  # siblings differ
            tokens = [sum(parents[i] == parents[at] for i in range(at)) for at in range(width - 1)]
        choices = [rng.randrange(2) for _ in range(width)]
        path = list(range(accept_greedy(choices, tokens)))
        if parents is not None:
            path = accept_tree_greedy(choices, tokens, parents)
        if len(path) > 15:
            continue
        longest = max(longest, len(path))
        new = [*(tokens[at] for at in path), choices[path[-1] + 1 if path else 0]]
        result, where, head = accepting(tokens, parents, choices)
        count = len(path)
        assert result[0] == count
        assert result[k.PATH : k.PATH + 64] == [0, *(at + 1 for at in path), *[0] * (63 - count)]
        assert result[k.NEW : k.NEW + 64] == [*new, *[0] * (63 - count)]
        assert result[k.DRAFTED + 1 : k.DRAFTED + width] == tokens
        assert where[:7] == [1, 2, 3, 4, 100 + count + 1, int(tree), new[-1]]
        first, position = 70, 80
        assert head[graph_inputs.READ + 4] == first
        assert head[graph_inputs.CHAIN + 4] == head[graph_inputs.TREE + 4] == first + count + 1
        assert head[graph_inputs.POSITION[graph_inputs.READ]] == position
        assert head[graph_inputs.POSITION[graph_inputs.CHAIN]] == position + count + 1
        assert head[graph_inputs.LAST] == count
        assert head[graph_inputs.TOKENS :] == [*new, *[0] * (15 - count)]
    assert longest > 1


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_path_is_moved_to_where_the_host_moves_it(dtype: torch.dtype) -> None:
    from wager.eagle import round_kernels

    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("numpy has no bfloat16")
    rng = random.Random(5)
    for _ in range(6):
        width = rng.randrange(2, 40)
        parents = tree_of(rng, width)
        path = [0, *(at for at in path_to(parents, rng.randrange(width)) if at)]
        cache = torch.randn(3, 4, 64, 48, device=DEVICE).to(dtype)
        wanted = cache.clone()
        wanted[:, :, 20 : 20 + len(path)] = cache[:, :, [20 + at for at in path]]
        where = torch.tensor([cache.data_ptr(), 0, 0, 64, 20 + len(path)], device=DEVICE)
        result = torch.tensor([len(path) - 1, *path, *[0] * 64], device=DEVICE)
        round_kernels.move(where, result, cache)
        kept = 20 + len(path)
        assert torch.equal(cache[:, :, :kept], wanted[:, :, :kept])


ARMS = {
    "chain": ["eagle:4"],
    "tree": ["eagle:3@3x8"],
    "mixed": ["off", "eagle:4", "eagle:2", "eagle:3@3x8", "suffix:3"],
}


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(tmp_path, monkeypatch)


@needs_kernels
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", ARMS)
def test_a_text_and_its_rounds_are_those_of_drafts_that_are_read_back(setup: Setup, kind: str, sampled: bool) -> None:
    device, played = setup.decoder(ARMS[kind])
    host, none = setup.decoder(ARMS[kind], host=True)
    accepted = []
    for prompt in (PROMPT, PROMPT[:3] * 6):
        ours, theirs = (each.generate(prompt, **settings(sampled)) for each in (device, host))
        assert ours.tokens == theirs.tokens == setup.alone().generate(prompt, **settings(sampled)).tokens
        rounds = [[(r.arm, r.drafted, r.accepted, r.emitted) for r in made.rounds] for made in (ours, theirs)]
        assert rounds[0] == rounds[1], "the same drafts"
        rejected = [[sorted(piece.rejected) for piece in made.steps] for made in (ours, theirs)]
        assert rejected[0] == rejected[1]
        accepted += [r.accepted for r in ours.rounds if r.drafted]
    assert len(set(accepted)) > (1 if sampled else 2), "some drafts are accepted in part"
    assert played[0] >= 8
    assert none == [0]


@needs_kernels
def test_a_round_that_does_not_move_the_path_is_noticed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.eagle import round_kernels

    # Some texts soon repeat themselves.
    prompts = [PROMPT, PROMPT[::-1], PROMPT[2:], [*PROMPT[4:], 7, 3], PROMPT[1:6] * 2]
    alone = setup.alone()
    wanted = [alone.generate(prompt, **settings(False, 40)).tokens for prompt in prompts]
    monkeypatch.setattr(round_kernels, "move", lambda *_: None)
    decoder, _ = setup.decoder(["eagle:4@4x24"])
    assert any(decoder.generate(p, **settings(False, 40)).tokens != w for p, w in zip(prompts, wanted, strict=True))


@needs_kernels
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("arm", ["eagle:4", "eagle:3@2x6"])
def test_a_draft_ahead_is_the_one_that_would_have_been_made(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, arm: str, sampled: bool
) -> None:
    from wager.eagle.device_round import Ahead, DeviceRounds

    decoder, _ = setup.decoder([arm])
    taken: list[bool] = []
    own = DeviceRounds._taken

    def noting(self: DeviceRounds, key: Any) -> Any:
        made = own(self, key)
        taken.append(made is not None)
        return made

    monkeypatch.setattr(DeviceRounds, "_taken", noting)
    ahead = decoder.generate(PROMPT, **settings(sampled))
    assert sum(taken) > len(taken) / 2
    assert [r.begun for r in ahead.rounds if r.drafted] == taken, "and the policy is told"
    monkeypatch.setattr(DeviceRounds, "_taken", lambda self, key: None)
    afresh = decoder.generate(PROMPT, **settings(sampled))
    assert [p.rejected for p in ahead.steps] == [p.rejected for p in afresh.steps], "the same drafts"
    assert [r.accepted for r in ahead.rounds] == [r.accepted for r in afresh.rounds]
    assert len({r.accepted for r in ahead.rounds}) > 1, "the next draft begins at more than one place"
    stale = DeviceRounds(decoder.drafters["eagle"].head, decoder.target)  # type: ignore[attr-defined, arg-type]
    stale.ahead = Ahead("key", (-1, -1), ())
    assert own(stale, "key") is None, "the head has read something else since"


def test_rounds_fall_back_where_the_device_cannot_tell(tmp_path: Path) -> None:
    """On a CPU without kernels every draft is read back."""
    model = tiny()
    eagle = Eagle(save(tmp_path, model))
    decoder = wager.Decoder(model, drafters=[eagle], policy="random", arms=["eagle:3", "eagle:2@2x4"])
    decoder.generate(PROMPT, max_new_tokens=10, do_sample=False)
    if not CUDA:
        assert eagle.play(3, None, lambda *_: pytest.fail("not asked")) is None
    assert Arm("eagle", 2, Tree(2, 4)) in decoder.arms


@needs_kernels
def test_rounds_are_timed_as_they_are_played_and_leave_the_text_alone(setup: Setup) -> None:
    from wager.decoding.calibrate import BUDGET, RoundTimer

    arms = [Arm.parse(name) for name in ("eagle:4", "eagle:4@4x16")]
    decoder, played = setup.decoder([str(arm) for arm in arms])
    wanted = setup.alone().generate(PROMPT, **settings(False)).tokens
    assert decoder.generate(PROMPT, **settings(False)).tokens == wanted
    steps = decoder.run(decoder.prepare(PROMPT, settings(False)), decoder.target, seed=0)
    text = [*PROMPT, *next(steps).tokens]
    target, before = decoder.target, played[0]
    assert target.length == len(PROMPT)
    timer = RoundTimer(target, decoder.drafters, arms, text)
    timer.deadline += 100 * BUDGET["cpu"]  # the interpreter is slow
    draft, catch_up, complete = timer.draft()
    assert complete
    assert set(draft) == set(arms)
    assert len(PROMPT) in catch_up["eagle"], "the whole text was read"
    assert played[0] > before
    assert target.length == len(PROMPT)
    rest = [token for step in steps for token in step.tokens]
    assert [text[-1], *rest] == wanted
