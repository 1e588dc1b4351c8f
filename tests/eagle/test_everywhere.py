"""Drafts at every position at once are those that decoding makes one by one; recordings of them replay its rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import PROMPT, plain, save, tiny

import wager
from wager.core import Arm, Round, Tree
from wager.core.recording import RecordingWriter, read
from wager.decoding.acceptance import accept_tree_greedy
from wager.decoding.recorder import Recorder
from wager.drafters.draft_model import DraftModel
from wager.eagle import everywhere
from wager.eagle.drafter import Eagle
from wager.eagle.everywhere import Everywhere, accepted_chain, accepted_tree
from wager.eagle.head import Head
from wager.eagle.tree import grow
from wager.models.select import runner
from wager.policies.plain import fixed
from wager.simulation import Replay, RoundCost, VerifyCost

pytestmark = pytest.mark.usefixtures("one_thread")
COUNT, DEPTH, HEAT = 20, 4, 0.85
FIRST = len(PROMPT) - 1


def head_of(folder: Path, model: Any, text: list[int], frequent: list[int]) -> Head:
    head, target = Head(save(folder, model, frequent=frequent)), runner(model)
    head.follow(target)
    target.begin()
    target.prefill(text[:-1])
    return head


def upcoming(text: list[int]) -> torch.Tensor:
    rows = [text[FIRST + 2 + at : FIRST + 2 + at + DEPTH] for at in range(COUNT)]
    return torch.tensor([row + [-1] * (DEPTH - len(row)) for row in rows])


def differences(head: Head, text: list[int], noise: torch.Tensor | None) -> int:
    """Positions and shapes at which what is accepted differs from what the head drafts there alone."""
    every, coming = Everywhere(head, text, FIRST, COUNT, DEPTH), upcoming(text)
    chains = list(every.grow(DEPTH, 1, noise, HEAT))
    trees = {breadth: list(every.grow(DEPTH, breadth, noise, HEAT)) for breadth in (2, 3)}
    found = 0
    for at in range(COUNT):
        head.begin()
        end = FIRST + at + 1
        assert head.target is not None
        out = head.read(text[1 : end + 1], head.target.features[:end], 0)
        gumbel = None if noise is None else head.gumbel(noise[at : at + DEPTH], HEAT)
        chain = head.chain(out, DEPTH, gumbel).tokens.tolist()
        head.crop(end)
        found += chain != [int(level.tokens[at]) for level in chains]
        for breadth, levels in trees.items():
            grown = grow(head, out, DEPTH, breadth, gumbel).tokens
            head.crop(end)
            found += grown.tolist() != torch.cat([level.tokens[at] for level in levels]).tolist()
        for breadth, nodes, depth in ((2, 4, 4), (3, 9, 4), (3, 5, 3), (2, 2, 1)):
            tree = head.tree(out, depth, breadth, nodes, gumbel)
            head.crop(end)
            # The target's choice after a path of its own choices is the text's next token; elsewhere nothing.
            ahead, choices = [*coming[at].tolist(), -1], {-1: 0}
            wanted = [ahead[0]] + [-1] * len(tree.tokens)
            for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
                if parent in choices and token == ahead[choices[parent]]:
                    choices[node] = choices[parent] + 1
                    wanted[node + 1] = ahead[choices[node]]
            path = accept_tree_greedy(wanted, tree.tokens, tree.parents)
            found += len(path) != int(accepted_tree(trees[breadth][:depth], coming, nodes)[at])
    return found


@pytest.mark.parametrize("frequent", [[], [1, 5, 6, 2, 7, 9, 11, 20, 3]])
@pytest.mark.parametrize("sampled", [False, True])
def test_drafts_everywhere_are_those_made_one_by_one(tmp_path: Path, frequent: list[int], sampled: bool) -> None:
    model = tiny()
    text = PROMPT + plain(model, PROMPT, COUNT + 2)
    noise = -torch.empty(COUNT + DEPTH, 24).exponential_(generator=torch.Generator().manual_seed(1)).log()
    assert not differences(head_of(tmp_path / "head", model, text, frequent), text, noise if sampled else None)


@pytest.mark.parametrize(
    "bug", ["sees entries after its own", "nodes of another path", "positions of the level before"]
)
def test_bugs_in_drafting_everywhere_show(tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    text = PROMPT + plain(model, PROMPT, COUNT + 2)
    branch, layer = Everywhere._branch, Everywhere._layer
    if bug == "sees entries after its own":

        def seeing(self: Any, x: torch.Tensor, positions: torch.Tensor, nodes: Any) -> torch.Tensor:
            self.unseen = torch.zeros_like(self.unseen)
            return layer(self, x, positions, nodes)

        monkeypatch.setattr(everywhere.Everywhere, "_layer", seeing)
    elif bug == "nodes of another path":
        monkeypatch.setattr(Everywhere, "_branch", lambda *a: branch(*a[:-1], a[-1] * 0))
    else:
        monkeypatch.setattr(Everywhere, "_branch", lambda s, t, f, level, b, p: branch(s, t, f, level - 1, b, p))
    assert differences(head_of(tmp_path / "head", model, text, []), text, None)


def test_an_accepted_chain_ends_at_the_first_token_that_is_another() -> None:
    level = everywhere.Level
    levels = [
        level(torch.tensor([[a], [b]]), torch.zeros(2, 1), torch.zeros(2, 1)) for a, b in ((1, 1), (2, 3), (3, 3))
    ]
    assert accepted_chain(levels, torch.tensor([[1, 2, 4], [1, 2, 3]])).tolist() == [2, 1]


ARMS = ("eagle:1", "eagle:4", "eagle:3@2x4", "eagle:4@3x9", "draft-model:3")
SHAPES = [(3, Tree(2, 4)), (4, Tree(3, 9))]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_replay_of_heads_is_the_engines_rounds(tmp_path: Path, temperature: float) -> None:
    model = tiny(vocab_size=8, num_hidden_layers=1)
    folder = save(tmp_path / "head", model, frequent=[1, 5, 6, 2, 7])
    other = tiny(seed=1, vocab_size=8, num_hidden_layers=1)
    prompt = [token % 8 for token in PROMPT]
    own = {"eagle": Eagle(folder), "draft-model": DraftModel(other)}
    recorder = Recorder(wager.Decoder(model, drafters="off", policy="off"), own, 5, SHAPES)
    text = recorder.record(prompt, "a", 40, temperature=temperature, seed=7)
    assert text is not None
    with RecordingWriter(tmp_path / "r.jsonl.gz", {}) as writer:
        writer.write(text)
    (text,) = read(tmp_path / "r.jsonl.gz")[1]
    replay = Replay((text,), RoundCost(VerifyCost(((1, 1.0), (20, 2.0)))), (1, 3, 4), noise=0.0)
    assert {Arm.parse(arm) for arm in ARMS} <= set(replay.arms)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0, "seed": 7}
    accepted = 0
    for name in ARMS:
        arm = Arm.parse(name)
        environment, replayed = replay.start(0), []
        while not environment.done:
            replayed.append(environment.play(arm))
        decoder = wager.Decoder(
            model, drafters=[Eagle(folder), DraftModel(other)], policy=fixed(arm), arms=["off", name]
        )
        made = decoder.generate(prompt, max_new_tokens=40, **(how if temperature else {"do_sample": False}))
        assert counts(made.rounds) == counts(replayed), name
        accepted += sum(r.accepted for r in made.rounds)
    assert accepted > 3


def counts(rounds: Sequence[Round]) -> list[tuple[Any, ...]]:
    # Past the end of a text nobody knows what the target would have accepted.
    drafting = [r for r in rounds if r.drafted]
    return [(str(r.arm), r.drafted, min(r.accepted, r.emitted), r.emitted, r.lag) for r in drafting]
