"""Rounds on the device that verify a chain of another drafter's along with the head's own draft.

Every round is compared with a slow one on the host: a twin of the head, on a twin of the target, drafts after the same
text, and both drafts are followed along the text that plain decoding writes.
"""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from device_setup import Setup, run_in_interpreter, settings
from heads import PROMPT

from wager.core import Arm
from wager.decoding.sampler import NO_IDS, Greedy, GumbelSampler, RoundSampler
from wager.drafters.base import Verified

INTERPRETED, CUDA = os.environ.get("TRITON_INTERPRET") == "1", torch.cuda.is_available()
needs_kernels = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="needs CUDA, or Triton's interpreter")
KINDS = ("right", "partly", "wrong", "same", "none")
AHEAD = 20  # tokens of the text that a round looks at


@pytest.mark.skipif(INTERPRETED or CUDA, reason="starts itself over in the interpreter")
def test_merged_rounds_agree_with_the_host_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(tmp_path, monkeypatch)


def chain_parents(count: int) -> list[int]:
    return list(range(-1, count - 1))


def followed(tokens: Sequence[int], parents: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The path of a draft, as indices of its tokens, along the text."""
    path: list[int] = []
    for token in wanted:
        last = path[-1] if path else -1
        found = [at for at, has in enumerate(zip(parents, tokens, strict=True)) if has == (last, token)]
        if not found:
            break
        path.append(found[0])
    return path


class Text:
    """One text, whose rounds are played on the device; what plain decoding writes is known."""

    def __init__(self, setup: Setup, arm: str, *, sampled: bool = False, prompt: Sequence[int] = PROMPT) -> None:
        self.arm, self.begins = Arm.parse(arm), len(prompt)
        (self.decoder, _), (self.twin, _) = (setup.decoder([arm], host=host) for host in (False, True))
        given = settings(sampled, 80)
        self.whole = [*prompt, *setup.alone().generate(prompt, **given).tokens]
        seed = given.pop("seed", None)
        self.processors = self.decoder.prepare(prompt, given).processors
        vocabulary, device = self.decoder.target.vocabulary, self.decoder.target.device
        self.sampler: Any = GumbelSampler(vocabulary, device, seed) if sampled else Greedy()
        self.text = list(prompt)
        for decoder in (self.decoder, self.twin):
            decoder.target.begin()
            logits = decoder.target.prefill(prompt)
            decoder.drafters["eagle"].begin(prompt)
        self.commit(self.choose(logits, 1, None).tolist())

    @property
    def wanted(self) -> list[int]:
        """How the text goes on."""
        return self.whole[len(self.text) : len(self.text) + AHEAD]

    @property
    def done(self) -> bool:
        return len(self.wanted) < AHEAD

    def choose(self, logits: torch.Tensor, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
        scores = self.processors(NO_IDS, logits)
        return self.sampler.choices(scores, len(self.text) - self.begins, levels, depths)  # type: ignore[no-any-return]

    def commit(self, tokens: list[int]) -> None:
        self.text += tokens
        assert self.text == self.whole[: len(self.text)], "the text is another"
        for decoder in (self.decoder, self.twin):
            decoder.drafters["eagle"].extend(tokens)

    def own(self) -> tuple[list[int], list[int]]:
        """The head's own draft after this text, tokens and parents, as the twin makes it."""
        target, eagle, sample = self.twin.target, self.twin.drafters["eagle"], self.sample()
        if target.length < len(self.text) - 1:
            target.forward(self.text[target.length : -1], 1)
        if self.arm.tree is None:
            draft = eagle.propose(self.arm.length, sample)
        else:
            draft = eagle.propose_tree(self.arm.length, self.arm.tree, sample)
        return draft.tokens, chain_parents(len(draft.tokens)) if draft.parents is None else draft.parents

    def sample(self) -> RoundSampler | None:
        if not self.sampler.samples:
            return None
        return RoundSampler(self.sampler, self.processors, self.begins, len(self.text) - self.begins)

    def play(self, merged: Sequence[int]) -> Verified:
        eagle = self.decoder.drafters["eagle"]
        done = eagle.play(self.arm.length, self.arm.tree, self.choose, self.sample(), merged)
        assert done is not None
        return done

    def round(self, kind: str, rng: random.Random) -> tuple[Verified, int]:
        """Play a round, and compare it with what it should be; it, and how many merged tokens are right."""
        tokens, parents = self.own()
        rounds: Any = self.decoder.drafters["eagle"]._rounds  # type: ignore[attr-defined]
        room = rounds._merged_room(len(tokens), self.arm.tree is not None)
        merged = proposed(kind, rng, self.wanted, tokens, parents)[:room]
        done = self.play(merged)
        alone = followed(tokens, parents, self.wanted)
        beside = followed(merged, chain_parents(len(merged)), self.wanted)
        path = alone if len(alone) >= len(beside) else [len(tokens) + at for at in beside]
        assert done.path == path, "path"
        assert done.own == len(alone), "own"
        assert done.draft.tokens == [*tokens, *merged], "another draft"
        self.commit([*(done.draft.tokens[at] for at in done.path), done.following])
        self.own()
        self.compare()
        return done, len(beside)

    def play_all(self, kind: str, rng: random.Random) -> None:
        while not self.done:
            self.round(kind, rng)

    def compare(self) -> None:
        """What target and head hold of the text is what the twins hold, which have read it token after token."""
        ours: Any = self.decoder.target
        theirs: Any = self.twin.target
        length = len(self.text) - 1
        assert ours.length == theirs.length == length
        assert torch.allclose(ours.cache[:, :, :length], theirs.cache[:, :, :length], atol=1e-4), "target's cache"
        assert torch.allclose(ours.features[:length], theirs.features[:length], atol=1e-4), "features"
        head, twin = (decoder.drafters["eagle"].head for decoder in (self.decoder, self.twin))  # type: ignore[attr-defined]
        assert head.length == twin.length == length
        assert torch.allclose(head.cache[:, :length], twin.cache[:, :length], atol=1e-4), "the head's cache"
        assert torch.allclose(head.last, twin.last, atol=1e-4), "the head's output"


def proposed(
    kind: str, rng: random.Random, wanted: list[int], tokens: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """A chain to be merged, of some length: right, right at first, wrong, what the head drafts itself, or none."""
    length = rng.choice([1, 2, 3, 4, 6, 8, 12, 15])
    off = [(token + 1) % 24 for token in wanted]
    if kind == "none":
        return []
    if kind == "right":
        return wanted[:length]
    if kind == "wrong":
        return off[:length]
    if kind == "partly":
        right = rng.randrange(1, 6)
        return [*wanted[:right], *off[right:]][:length]
    path: list[int] = []
    while (child := [at for at, of in enumerate(parents) if of == (path[-1] if path else -1)]) and len(path) < length:
        path.append(rng.choice(child))
    return [tokens[at] for at in path]


ARMS = ["eagle:4", "eagle:3@3x16"]


@needs_kernels
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("arm", [*ARMS, "eagle:9"])
def test_rounds_with_a_merged_chain_are_those_of_the_host(setup: Setup, arm: str, sampled: bool) -> None:
    rng = random.Random(7)
    seen: set[str] = set()
    prompts = [PROMPT, PROMPT[::-1], PROMPT[:3] * 6, PROMPT[2:]]
    prompts += [rng.sample(range(1, 24), 8) for _ in range(12)]
    for prompt in prompts:  # what is drawn differs from device to device: as many texts as it takes
        text = Text(setup, arm, sampled=sampled, prompt=prompt)
        while not text.done:
            kind = rng.choice(KINDS)
            done, right = text.round(kind, rng)
            seen.add(kind)
            if len(done.draft.tokens) > text.arm.budget:
                seen.add("merged" if right > done.own > 0 else "own" if 0 < right < done.own else "")
                seen |= {"both"} if right == done.own > 0 else set()
                seen |= {"further"} if right > text.arm.length else set()
        # a chain of nine is right further than most of what is merged into it, a drawn one hardly ever
        found = ("merged", "further") if sampled else ("merged", "own", "both", "further")
        wanted = {*KINDS, *(found if text.arm.length < 9 else ())}
        if wanted <= seen:
            return
    assert not wanted - seen


@needs_kernels
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("arm", "lengths"), [("eagle:4", (5, 6, 7)), ("eagle:3@3x16", (1, 2, 7))])
def test_what_is_ahead_stays_in_place_while_the_padded_width_is_the_same(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, arm: str, lengths: tuple[int, ...], sampled: bool
) -> None:
    text, done = Text(setup, arm, sampled=sampled), []
    rounds: Any = text.decoder.drafters["eagle"]._rounds  # type: ignore[attr-defined]
    place, give = rounds._place, rounds.target._give
    monkeypatch.setattr(rounds, "_place", lambda *given: (done.append("place"), place(*given))[1])
    monkeypatch.setattr(rounds.target, "_give", lambda *given: (done.append("copy"), give(*given))[1])
    at = 0
    while not text.done:
        length = lengths[at % 3]
        played = text.play([*text.wanted[: at % 4], *[0] * length][:length])
        text.commit([*(played.draft.tokens[i] for i in played.path), played.following])
        assert played.draft.begun == (at > 0)
        assert done == (["copy", "place", "place"] if at == 0 else ["place"])
        done.clear()
        at += 1
    assert at > 4
    played = text.play(text.wanted[: max(lengths) + 3])
    assert played.draft.begun, "it is only to be placed anew"
    # into a tree no more is merged than its padding holds, into a chain as much as is given
    assert done == (["copy", "place", "place"] if text.arm.tree is None else ["place"])


@needs_kernels
def test_a_chain_is_merged_as_far_as_there_is_room(setup: Setup) -> None:
    # a tree of 8 nodes is padded from 9 tokens to 12 at once: what is merged takes the padding, and no more
    for arm, room in (("eagle:4", 15), ("eagle:3@8x56", 7), ("eagle:3@3x8", 3), ("eagle:3@3x11", 4)):
        text = Text(setup, arm)
        own, _ = text.own()
        done = text.play(text.wanted[:18])
        assert done.draft.tokens == [*own, *text.wanted[:room]]
        assert len(done.path) == room
        text.commit([*(done.draft.tokens[at] for at in done.path), done.following])
        text.own()
        text.compare()


@needs_kernels
def test_warming_merges_into_each_arm_and_other_rounds_launch_nothing_more(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.eagle import round_kernels

    launched, merge = [], round_kernels.merge
    monkeypatch.setattr(round_kernels, "merge", lambda *given: (launched.append(given[2]), merge(*given))[1])
    text = Text(setup, "eagle:4")
    eagle = text.decoder.drafters["eagle"]
    launched.clear()
    text.play([])
    assert not launched
    eagle.warm([Arm.parse("eagle:4"), Arm.parse("eagle:3@3x8"), Arm.parse("eagle:2")])
    # of each arm, with one token merged: widths, padded; that of a tree is captured, on CUDA after a rehearsal
    assert set(launched) == {6, 12, 4}
    assert [width for width in launched if width != 12] == [6, 4]
    assert text.decoder.target.length == 0
    assert eagle.lag == 0


def accept_the_own(sound: Callable[..., None]) -> Any:
    """Accepts tokens of the own draft only: the text stays right, with fewer tokens a round."""
    return lambda choices, *given: sound(choices[: given[-1] or len(choices)], *given)


def count_all_as_own(sound: Callable[..., None]) -> Any:
    return lambda choices, *given: sound(choices, *given[:-1], given[-1] and len(choices))


def see_the_own(sound: Callable[..., None]) -> Any:
    """A merged token sees the first of the own draft, too."""

    def merge(merged: Any, where: Any, padded: int, *given: Any) -> None:
        sound(merged, where, padded, *given)
        count, nodes = merged[:2].tolist()
        where[6 + 2 * padded + 1 + nodes :][:count] |= 2

    return merge


def stand_after_the_own(sound: Callable[..., None]) -> Any:
    """A merged token's place in the text is one too far."""

    def merge(merged: Any, where: Any, padded: int, *given: Any) -> None:
        sound(merged, where, padded, *given)
        count, nodes = merged[:2].tolist()
        where[6 + padded + 1 + nodes :][:count] += 1

    return merge


def leave_where_it_is(sound: Callable[..., None]) -> Any:
    return lambda *given: None


@needs_kernels
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(
    ("kernel", "bug", "noticed"),
    [
        ("accept", accept_the_own, "path"), ("accept", count_all_as_own, "own"),
        ("merge", see_the_own, "path|cache|text"), ("merge", stand_after_the_own, "path|cache|text"),
        ("move", leave_where_it_is, "cache"),
    ],
)  # fmt: skip
def test_a_wrong_merge_is_noticed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, arm: str, kernel: str, bug: Callable[..., Any], noticed: str
) -> None:
    from wager.eagle import round_kernels

    # planted first: the kernel that merges into a tree is a part of the graph that is captured when a text is prepared
    monkeypatch.setattr(round_kernels, kernel, bug(getattr(round_kernels, kernel)))
    rng, text = random.Random(2), Text(setup, arm)
    with pytest.raises(AssertionError, match=noticed):
        text.play_all("right", rng)


@needs_kernels
@pytest.mark.parametrize("arm", ARMS)
def test_features_that_do_not_follow_the_merged_path_are_noticed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    from wager.eagle.device_round import DeviceRounds

    rng, text, keep = random.Random(2), Text(setup, arm), DeviceRounds._keep
    monkeypatch.setattr(DeviceRounds, "_keep", lambda *given: keep(*given[:-1], False))
    with pytest.raises(AssertionError, match="features"):
        text.play_all("right", rng)
