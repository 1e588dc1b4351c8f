"""An EAGLE head drafts: chains, and trees that grow where it is sure (EAGLE-2)."""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

import torch

from wager.core import Arm, Hint, Tree
from wager.core.round import MOST_SCORED
from wager.core.switch import switched_off
from wager.drafters.base import DeviceChoices, Draft, Drafter, DraftSampler, Verified, likeliest
from wager.drafters.cards import read_card
from wager.eagle.checkpoint import read
from wager.eagle.eagle3_head import Eagle3Head
from wager.eagle.head import Head
from wager.eagle.tree import GumbelNoise
from wager.models.runner import Runner

if TYPE_CHECKING:
    from wager.eagle.device_round import DeviceRounds

# A head errs, and its likeliest tokens are then still the better guess: where it knows the target's noise, it picks as
# if the temperature were so much lower.
SHARPER = 0.85


class Eagle(Drafter):
    """Drafts with an EAGLE head, which goes on from the target's own features.

    It reads the text's entries only when it is asked to draft. What it drafts never stays in its cache: the target's
    true features come with the text. With a ``window`` it looks at the first few and the last so many entries only.
    """

    cheap: ClassVar[bool] = False
    trees: ClassVar[bool] = True
    reads: ClassVar[bool] = True

    def __init__(self, folder: str | Path, name: str = "eagle", *, window: int = 0) -> None:
        self.name = name
        file = read(folder)
        self.head = (Head if file.eagle3 is None else Eagle3Head)(file, window=window)
        self.window = window
        self.card = read_card(self.head.file.notes)
        self.weights = _mark(self.head.file.tensors["fc.weight"])  # tells heads apart in a policy's memory
        self._target: Runner | None = None
        self._plain: Head | None = None
        self._rounds: DeviceRounds | None = None
        # Whether rounds stay on the device where they can; off: every draft is read back and verified by itself.
        self.on_device = not switched_off("WAGER_DEVICE_ROUNDS")
        self.begin(())

    def follow(self, target: Runner) -> None:
        if target.device.type == "cuda" and type(self.head) in (Head, Eagle3Head):
            from wager.eagle.cuda_graphs import CUDAGraphEagle3Head, CUDAGraphHead

            captured = CUDAGraphHead if self.head.file.eagle3 is None else CUDAGraphEagle3Head
            self.head = captured(self.head.file, window=self.window)
        self.head.follow(target)
        self._target = target
        if self.head.captures and self.head.fused and (self._rounds is None or self._rounds.target is not target):
            from wager.eagle.device_round import device_rounds

            self._rounds = device_rounds(self.head, target)
        self.begin(())

    def plain(self, target: Runner) -> Head:
        """The head without captured graphs, which follows the target; made once."""
        if type(self.head) is Head:
            self.head.follow(target)
            return self.head
        if self._plain is None:
            self._plain = Head(self.head.file.folder)
        self._plain.follow(target)
        return self._plain

    def warm(self, arms: Iterable[Arm]) -> None:
        arms = [arm for arm in arms if arm.length]
        self.head.warm({(arm.length, 0 if arm.tree is None else arm.tree.breadth) for arm in arms})
        if self._rounds is not None and self.on_device:
            self._rehearse(self._rounds.target, arms)
        self.begin(())

    def _rehearse(self, target: Runner, arms: Iterable[Arm]) -> None:
        """Play a round of each arm on the device, alone and with a merged token: no text waits for kernels then."""
        text = [0] * 4
        target.begin()
        target.prefill(text)
        for arm, merged in product(arms, ((), (0,))):
            target.crop(len(text))
            self.begin([*text, 0])
            self.play(arm.length, arm.tree, likeliest, None, merged)
        target.crop(0)

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self._newest = 0  # tokens the last round added
        self._out: torch.Tensor | None = None  # the head's output at the last entry it read
        self._drafting = False  # whether the next tokens are those of a round it drafts in
        self._missed = len(prompt)  # the first token that it has not read, and did not draft for
        self._played = False  # whether its last round was on the device, where it reads at once what that brought
        self.scores = ()
        self.head.begin()
        if self._rounds is not None:
            self._rounds.forget()

    def extend(self, tokens: Sequence[int]) -> None:
        self._text += tokens
        self._newest = len(tokens)
        if self._drafting:
            self._missed, self._drafting = len(self._text), False

    def end(self) -> None:
        self._out = None

    @property
    def lag(self) -> int:
        """Entries it has not read, beyond those that the last round added; where its own rounds stay on the device, all
        of them, and two at least: reading any is then a pass of its own."""
        unread = max(0, len(self._text) - 1 - self.head.length)
        if self._played:
            return max(2, unread) if unread else 0
        return max(0, unread - self._newest)

    @property
    def size(self) -> Hashable:
        shapes = {name: tuple(tensor.shape) for name, tensor in self.head.file.tensors.items()}
        frequent = None if self.head.file.frequent is None else len(self.head.file.frequent)
        return type(self.head), self.window, self.on_device, frequent, tuple(sorted(shapes.items()))

    @property
    def memory(self) -> int:
        return self.head.memory

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        """A chain: its likeliest tokens; where the target is sampled drawn ones, as far as that is no waiting.

        Whatever it is, the text stays exact. Where chains are captured, they are drawn only with noise that is known
        beforehand, and without processors; otherwise token by token with them.
        """
        return self._drafted(length, partial(self._chain, length, sample))

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        """Its likeliest tokens; where the target is sampled, likeliest with the noise, if that is known."""

        def tree(out: torch.Tensor) -> Draft:
            gumbel = self._gumbel(sample, length)
            grown = self.head.tree(out, length, shape.breadth, shape.nodes, gumbel)
            sure = Hint(confidence=tuple(min(1.0, p) for p in grown.confidence))
            made = Draft(grown.tokens, sure, parents=grown.parents)
            if sample is None or gumbel is not None:  # otherwise they count as certain
                made.raw = lambda at: self.head.spread(self.head.logits(grown.outputs(at)))
            return made

        return self._drafted(length, tree)

    def play(
        self, length: int, shape: Tree | None, choose: DeviceChoices, sample: DraftSampler | None = None,
        merged: Sequence[int] = (),
    ) -> Verified | None:  # fmt: skip
        rounds = self._ready(length, shape)
        if rounds is None:
            return None
        began, lag = perf_counter(), self.lag
        self._drafting = True
        out = self._catch_up(rounds.target)
        paid = 0.0
        if lag > 1:
            if rounds.cuda:
                torch.cuda.synchronize(rounds.target.device)
            paid = perf_counter() - began
        noise = partial(self._gumbel, sample, rounds.positions(max(length, len(merged))))
        rounds.meanwhile = self._following
        with rounds.target.on_device():
            found = rounds.play(out, self._text[-1], length, shape, choose, None if sample is None else noise, merged)
        if found is None:
            return None
        self._out, self._played = self.head.last, True
        draft = Draft(found.drafted, lag=lag, lag_seconds=paid, begun=found.begun)
        return Verified(draft, found.path, found.following, found.verify_seconds, found.own)

    def prepare(self, length: int, shape: Tree | None, sample: DraftSampler | None = None) -> None:
        rounds = self._ready(length, shape)
        if rounds is None or self.scorer is not None:  # to score what it reads would be waiting
            return
        out, gumbel = self._catch_up(rounds.target), self._gumbel(sample, rounds.positions(length))
        with rounds.target.on_device():
            rounds.begin(out, length, shape, gumbel)

    def _ready(self, length: int, shape: Tree | None) -> "DeviceRounds | None":
        """What plays such a round on the device, where that can be done."""
        entries, rounds = len(self._text) - 1, self._rounds
        if rounds is None or not self.on_device or length < 1 or entries < 1 or rounds.target.length != entries:
            return None
        return rounds if rounds.fits(length, shape) else None

    def _following(self) -> tuple[bool, tuple[int, Tree | None] | None]:
        """While the device works: whether the next round's arm is known, and its draft if that is this head's."""
        arm = self.meanwhile()
        if arm is None:
            return False, None
        return True, (arm.length, arm.tree) if arm.drafter == self.name and arm.length else None

    def _drafted(self, length: int, draft: Callable[[torch.Tensor], Draft]) -> Draft:
        """What ``draft`` makes of the last entry's output, with its lag; nothing where the target lacks features."""
        entries = len(self._text) - 1
        if length < 1 or entries < 1 or self._target is None or self._target.length < entries:
            return Draft()
        began, lag = perf_counter(), self.lag
        self._drafting, self._played = True, False
        out = self._catch_up(self._target)
        if lag > 1 and self.head.embed.is_cuda:  # lag that is to be paid: the device has to be done with it
            torch.cuda.synchronize(self.head.embed.device)
        caught = perf_counter()
        made = draft(out)
        self.head.crop(entries)
        step = (perf_counter() - caught) / length  # one entry always has to be read, and a few cost no more
        made.lag, made.lag_seconds = lag, max(0.0, caught - began - step) if lag > 1 else 0.0
        return made

    def read(self) -> None:
        entries = len(self._text) - 1
        if entries >= 1 and self._target is not None and self._target.length >= entries:
            self._catch_up(self._target)

    def _catch_up(self, target: Runner) -> torch.Tensor:
        """Read the text's new entries, each a feature of the target's and the token after it; the last one's output."""
        scoring = self.scorer is not None and max(self._missed, self.scorer.begins) < len(self._text)
        for start, end in self.head.spans(len(self._text) - 1):
            before = None
            if scoring and self._out is not None and start == self.head.length:
                before = self._out.clone()  # the next reading may overwrite it
            features = self.head.features_of(target, start, end)
            self._out = self.head.read(self._text[start + 1 : end + 1], features, start)
            if scoring and end == len(self._text) - 1:
                self._score(before)
        self._missed = len(self._text)
        assert self._out is not None
        return self._out

    @torch.inference_mode()
    def _score(self, before: torch.Tensor | None) -> None:
        """Score what it predicts at the last tokens: all but the last entry's outputs, ``before`` the one before."""
        rows = self.head.outs[:-1] if before is None else torch.cat((before, self.head.outs[:-1]))
        if self.scorer is None:
            return
        count = min(len(rows), len(self._text) - max(self._missed, self.scorer.begins), MOST_SCORED)
        if not count:
            return
        logits, first = self.head.logits(rows[-count:]), len(self._text) - count
        if not self.scorer.samples:
            found = self.scorer.hits(self.head.named(logits.argmax(-1)).tolist(), first)
        else:
            sharper = SHARPER if self.scorer.noise else 1.0
            found = self.scorer.overlap(self.head.spread(logits / sharper), first)
        self.scores += tuple(found)

    def _chain(self, length: int, sample: DraftSampler | None, out: torch.Tensor) -> Draft:
        if sample is not None and not self.head.captures:
            tokens, probs = self._draw(out, length, sample)
            sure = tuple(min(1.0, p) for p in probs[list(range(length)), tokens].tolist())
            return Draft(tokens, Hint(confidence=sure), probs)
        gumbel = self._gumbel(sample, length)
        chain = self.head.chain(out, length, gumbel)
        made = Draft(chain.tokens.tolist())
        if sample is None or gumbel is not None:  # otherwise they count as certain
            made.raw = lambda at: self.head.spread(torch.cat([chain.logits[i] for i in at]))
        return made

    def _gumbel(self, sample: DraftSampler | None, levels: int) -> GumbelNoise | None:
        noise = None if sample is None else sample.gumbel(levels)
        return None if sample is None or noise is None else self.head.gumbel(noise, SHARPER * sample.temperature)

    def _draw(self, out: torch.Tensor, length: int, sample: DraftSampler) -> tuple[list[int], torch.Tensor]:
        """A chain of drawn tokens, and the distributions they were drawn from."""
        head = self.head
        tokens: list[int] = []
        rows: list[torch.Tensor] = []
        temperature = 1.0 if sample.gumbel(1) is None else SHARPER
        for at in range(length):
            token, q = sample(self._text + tokens, head.spread(head.logits(out)[0] / temperature))
            tokens.append(token)
            rows.append(q)
            if at + 1 < length:
                out = head.forward(torch.tensor([token], device=out.device), out)
        return tokens, torch.stack(rows)


def _mark(weight: torch.Tensor) -> str:
    numbers = weight.flatten()[:: max(1, weight.numel() // 512)].float().tolist()
    return hashlib.sha256(repr(numbers).encode()).hexdigest()[:12]
