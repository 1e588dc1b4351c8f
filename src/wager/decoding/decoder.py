"""The decoder: a model, its drafters and a policy, answering one request after the other."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from wager.core import Arm, Calibration, Signal, TraceWriter, Tree
from wager.core import Request as RequestRecord
from wager.core.state_file import StateFile
from wager.decoding.arms import build_arms, build_drafters, fit_arms, playable, widest
from wager.decoding.checks import check_config, check_listeners, check_policy, check_settings, check_setup
from wager.decoding.features import Prompts
from wager.decoding.generation import INTERRUPTED, Generation, Piece, TextStream
from wager.decoding.hold import Hold
from wager.decoding.loop import EVERYTHING, Loop, works_alone
from wager.decoding.prepare import Prepared, prepared, take_tokenizer, without_cache
from wager.decoding.prompt import prompt_ids
from wager.decoding.sampler import RESIDUAL, RULES, SHARED, Greedy, GumbelSampler, Residual, Sampler
from wager.decoding.state import described, open_state
from wager.drafters import Drafter
from wager.drafters.cards import kinds_of
from wager.models.runner import Runner
from wager.models.select import current, runner
from wager.models.unwrap import unwrapped
from wager.policies import build as build_policy
from wager.policies.base import Policy, require

DRAFTERS = ("suffix", "prompt-lookup", "eagle:ofa?")
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
POLICY = "auto"
BUSY = "this decoder is in the middle of another text; finish or close that, or make a second"
MAX_NEW_TOKENS = 256  # where neither the request nor the model's generation config says
REPAID = 64  # tokens that repay packing weights and timing rounds on a CPU: these take 13 to 25, and save 0.3 of each
OF_THE_DROP_IN = {"assistant_model", "attention_mask", "custom_generate", "past_key_values"}
OF_THE_DROP_IN |= {"input_ids", "inputs", "inputs_embeds"}
Prompt = str | Sequence[int] | Sequence[Mapping[str, str]] | torch.Tensor


class Decoder:
    """Generates with a transformers model, faster, and not a token changed.

    ``drafters`` are names (``suffix``, ``prompt-lookup``, ``retrieval=PATH``, ``draft-model=MODEL``) or drafters of
    your own, ``lengths`` the numbers of tokens they may draft; with plain decoding they are the arms ``policy`` chooses
    from. ``trees`` adds trees of these shapes (``4x16``: 4 tokens after each at most, 16 in all); without it, ``auto``
    has two of a head on a GPU. ``arms`` names the arms one by one instead. The policy keeps what it learned;
    ``reset_per_request`` starts it anew with each request, and ``state`` keeps it from run to run: True in the user's
    cache, per model, drafters and device, a path in that file. ``tokens`` tells policies that plan ahead how much text
    is to come; ``trace`` records every round. ``sampling`` is the rule of sampled texts: with ``shared-noise`` a seed
    has one text, whatever is drafted; ``residual`` is the first papers'. It answers one at a time.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        drafters: str | Sequence[str | Drafter] = DRAFTERS,
        policy: str | Policy = POLICY,
        lengths: Sequence[int] = LENGTHS,
        trees: str | Sequence[Tree | str] | None = None,
        arms: Sequence[Arm | str] | None = None,
        reset_per_request: bool = False,
        state: bool | str | Path = False,
        seed: int = 0,
        tokens: int | None = None,
        trace: TraceWriter | None = None,
        sampling: str = SHARED,
    ) -> None:
        if not hasattr(model, "config"):
            name = type(model).__name__
            raise TypeError(f"a Decoder takes a loaded model, not a {name}; wager.models.load(NAME) loads one by name")
        check_setup(tokenizer, state, tokens, trace)
        model = unwrapped(model)
        self.model, self.tokenizer, self.trace, self.reset_per_request = model, tokenizer, trace, reset_per_request
        name = type(model).__name__
        if model.config.is_encoder_decoder:
            raise ValueError(f"{name} is an encoder-decoder; wager decodes decoder-only models")
        if hasattr(model, "can_generate") and not model.can_generate():
            raise ValueError(f"{name} has no language-model head; load it with transformers.AutoModelForCausalLM")
        require(sampling in RULES, f"sampling is {' or '.join(RULES)}, not {sampling!r}")
        self.sampling = sampling
        if reset_per_request and state is not False:
            raise ValueError("reset_per_request forgets what state keeps from run to run; leave out one of them")
        self.target: Runner = runner(model)
        self.drafters = build_drafters(drafters, model, tokenizer)
        self.arms = build_arms(arms, self.drafters, lengths, trees, flat=self.target.flat and policy == POLICY)
        known = {} if tokens is None else {"tokens": tokens}
        self.policy = build_policy(policy, self.arms, seed=seed, **known) if isinstance(policy, str) else policy
        check_policy(self.policy, self.arms)
        self.prompts = Prompts()
        self.hold: Hold | None = None  # for how long choices stand, from text to text
        self._busy = threading.Lock()  # held while a text is under way
        self._calibration: Calibration | None = None  # what rounds cost here; timed once texts are long enough
        self._generated = 0  # tokens of all texts so far
        self._take(self.target)
        kept = None if state is False else open_state(state, self.policy, model, self.drafters.values(), self.arms)
        self.state: StateFile | None = kept
        if self.state is not None:
            weakref.finalize(self, self.state.save)  # when nobody holds the decoder any more, or the process ends

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Copies and pickles of a model leave its decoder behind: caches and graphs cannot go along."""
        return type(None), ()

    # -- what users call

    def generate(
        self, prompt: Prompt, *, label: str = "", watch: Callable[[Piece], object] | None = None, **settings: Any
    ) -> Generation:
        """The finished text and how it came about.

        ``prompt`` is text, token ids, or chat messages. ``settings`` are those of ``model.generate``: max_new_tokens,
        do_sample, temperature, top_k, top_p, stop_strings, generation_config, streamer and so on; a ``seed`` has one
        text, whatever is drafted. ``watch`` gets every piece as it comes, which is not counted as decoding; the text
        ends where it returns False.
        """
        pieces: list[Piece] = []
        streamer, seed = settings.pop("streamer", None), settings.pop("seed", None)
        check_listeners(streamer, watch)
        text = None if watch is None else self._text_stream()
        seconds = [0.0, 0.0]  # of the prompt, of decoding
        began = perf_counter()
        prepared = self.prepare(prompt, settings)
        with closing(self.run(prepared, self.target, label, seed, streamer)) as steps:
            for step in steps:
                now = perf_counter()  # here: saving the state after the text is no decoding
                seconds[bool(pieces)] += now - began
                began = now
                pieces.append(text.shown(step) if text is not None else step)
                if watch is not None:
                    if watch(pieces[-1]) is False:
                        break
                    began = perf_counter()
        if watch is not None and text is not None and (rest := text.end()):
            watch(Piece(rest, (), (), None))
        tokens = [token for piece in pieces for token in piece.tokens]
        whole = self.tokenizer.decode(tokens, skip_special_tokens=True) if self.tokenizer is not None else ""
        sources = [source for piece in pieces for source in piece.sources]
        rounds = [piece.round for piece in pieces if piece.round is not None]
        prompted, finish, timing = prepared.ids.shape[1], self.finish or INTERRUPTED, self.loop.calibration_seconds
        spent = seconds[0] + timing, seconds[1] - timing
        return Generation(whole, tokens, sources, prompted, finish, *spent, rounds, pieces)

    def stream(self, prompt: Prompt, *, label: str = "", seed: int | None = None, **settings: Any) -> Iterator[Piece]:
        """The text in pieces, each as soon as its round is over."""
        if own := {"streamer", "watch"} & settings.keys():
            raise ValueError(f"stream() yields the pieces itself; pass {sorted(own)[0]} to generate()")
        text = self._text_stream()
        prepared = self.prepare(prompt, settings)
        for step in self.run(prepared, self.target, label, seed):
            yield text.shown(step)
        if rest := text.end():
            yield Piece(rest, (), (), None)

    def _text_stream(self) -> TextStream:
        require(self.tokenizer is not None, "streaming text needs a tokenizer: Decoder(model, tokenizer)")
        return TextStream(self.tokenizer)

    def reset(self) -> None:
        """Forget what policy and drafters learned; a policy with a state file goes back to what was loaded."""
        self._refuse_if_busy()
        self.prompts, self.hold = Prompts(), None
        self.policy.reset()
        if self.state is not None:
            self.state.restore()
        self._recalibrate()
        for drafter in self.drafters.values():
            drafter.forget()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Texts generated inside warm up kernels, graphs and caches; nothing is learned from them, and none is traced.

        The policy goes on from where it was. Drafters that keep earlier texts forget them all.
        """
        self._refuse_if_busy()
        self._generated += REPAID  # more is to come
        kept, trace, known = (self.policy, self.prompts, self.hold), self.trace, self._calibration
        (self.policy, self.prompts, self.hold), self.trace = copy.deepcopy(kept), None
        try:
            yield
        finally:
            (self.policy, self.prompts, self.hold), self.trace = kept, trace
            if self._calibration is not known:
                self._recalibrate()
            for drafter in self.drafters.values():
                drafter.forget()

    # -- how it is done

    def _take(self, target: Runner) -> None:
        """Go on with this target, prepared for every width a round can have."""
        fit_arms(self.arms, target)
        self.target, self._vocabulary = target, target.vocabulary
        self._calibration = None
        for name, drafter in self.drafters.items():
            drafter.fit(target.vocabulary)
            drafter.follow(target)
            drafter.warm([arm for arm in self.arms if arm.drafter == name])
        target.warm(range(1, 1 + widest(self.arms, self.drafters, target)))

    def _recalibrate(self) -> None:
        """Tell the policy, which has forgotten it, what is known of rounds."""
        if self._calibration is not None:
            self.policy.calibrate(self._calibration)

    def _prepare_rounds(self, target: Runner, unknown: bool, text: Sequence[int]) -> None:
        """What the first token does not wait for: packed weights, then, where they are unknown, the costs of rounds."""
        if target.device.type == "cpu" and self._generated + self.loop.stopping.limit - len(text) < REPAID:
            return  # a short text goes without; the next one may be due
        for one in self._runners(target):
            one.pack()
        if unknown:
            self._calibrate(text)

    def _runners(self, target: Runner) -> list[Any]:
        """Of the target and of the models that draft for it."""
        return [target, *(drafter.runner for drafter in self.drafters.values() if drafter.runner is not None)]

    def _calibrate(self, text: Sequence[int]) -> None:
        """Time rounds on the text that the target holds, or take what is remembered, and tell the policy."""
        from wager.decoding.calibrate import VERSION, RoundTimer, calibrated, with_cards

        of = described(self.policy, self.model, self.drafters.values(), self.arms) | {"policy": f"timed as {VERSION}"}
        key = ", ".join([*of.values(), f"torch {torch.__version__}"])
        found = calibrated(RoundTimer(self.target, self.drafters, self.arms, text), key)
        self._calibration = with_cards(found, {name: drafter.card for name, drafter in self.drafters.items()})
        self._recalibrate()

    @property
    def calibration(self) -> Calibration | None:
        """Seconds of rounds as they were timed; None until texts were long enough, and where no policy asks."""
        return self._calibration

    def current_target(self) -> Runner:
        """The runner that fits the model as it is now."""
        self._refuse_if_busy()
        target = current(self.model, self.target)
        if target is not self.target or target.vocabulary != self._vocabulary:
            self._take(target)
        return target

    def _refuse_if_busy(self) -> None:
        require(not self._busy.locked(), BUSY)

    def prepare(self, prompt: Prompt, settings: dict[str, Any]) -> Prepared:
        """Let transformers itself work out settings, processors and stopping criteria, then take over."""
        self.current_target()
        ids = self._ids(prompt)
        check_config(settings.get("generation_config"))
        check_settings(settings, self.target.vocabulary)
        own = self.model.generation_config
        given = settings.get("generation_config") or own  # which goes before the model's own, number by number
        if not {"max_new_tokens", "max_length"} & settings.keys() and not any(map(_limited, (given, own))):
            settings = {**settings, "max_new_tokens": MAX_NEW_TOKENS}
        if more := OF_THE_DROP_IN & settings.keys():
            raise ValueError(f"a Decoder takes a prompt, and no {sorted(more)[0]}; use wager.generate for that")
        if settings.get("stop_strings") or given.stop_strings or own.stop_strings:
            require(self.tokenizer is not None, "stop strings need a tokenizer: Decoder(model, tokenizer)")
            take_tokenizer()
            settings = {**settings, "tokenizer": self.tokenizer}
        mask, settings = torch.ones_like(ids), without_cache(settings, given)
        request: Prepared = self.model.generate(ids, attention_mask=mask, custom_generate=prepared, **settings)
        return request

    def _ids(self, prompt: Prompt) -> torch.Tensor:
        """The prompt's tokens, (1, length), on the model's device."""
        return torch.tensor([prompt_ids(prompt, self.tokenizer, self.target.vocabulary)], device=self.model.device)

    def run(
        self, prepared: Prepared, target: Runner, label: str = "", seed: int | None = None, streamer: Any = None
    ) -> Generator[Piece, None, None]:
        """Play the request's rounds; a streamer gets the prompt first, then every token, as transformers gives them."""
        length, room = prepared.ids.shape[1], f"the model holds {target.limit:,} with at least one new one"
        require(length < target.limit, f"the prompt has {length:,} tokens, and {room}")
        if seed is not None and not isinstance(seed, int):
            raise TypeError(f"a seed is a whole number, not {seed!r}")
        require(self._busy.acquire(blocking=False), BUSY)
        try:
            yield from self._run(prepared, target, label, seed, streamer)
        finally:
            self._busy.release()

    def _run(
        self, prepared: Prepared, target: Runner, label: str, seed: int | None, streamer: Any
    ) -> Generator[Piece, None, None]:
        sampler: Sampler = Greedy()
        if prepared.config.do_sample and self.sampling == RESIDUAL:
            sampler = Residual(self.model.device, seed)
        elif prepared.config.do_sample:
            sampler = GumbelSampler(target.vocabulary, self.model.device, seed)
        for drafter in self.drafters.values():
            drafter.follow(target)
        if target is self.target:
            target.restart()  # `prepare` has looked at the model
        if self.reset_per_request:
            self.policy.forget()
            self._recalibrate()
            self.hold = None
        needs = EVERYTHING if self.trace is not None else self.policy.needs
        unknown = self._calibration is None and Signal.COSTS in self.policy.needs and target is self.target
        # Where nothing is due the first choice is made while the prompt is read.
        due = unknown or not all(works_alone(one.device) for one in self._runners(target))
        ready = partial(self._prepare_rounds, target, unknown) if due else None
        kinds, features = kinds_of(drafter.card for drafter in self.drafters.values()), self.prompts.features
        arms = self.arms if target is self.target else playable(self.arms, target)
        self.loop = Loop(target, self.drafters, self.policy, arms, needs, features, ready, self.hold, kinds)
        self.hold, self.finish = self.loop.hold, ""
        played = False
        try:
            if streamer is not None:
                streamer.put(prepared.ids.cpu())
            for step in self.loop.run(prepared, sampler):
                self._generated += len(step.tokens)
                if self.trace is not None:
                    self.trace.write(step.round or RequestRecord(label, self.loop.prompt))
                if streamer is not None:
                    for token in step.tokens:
                        streamer.put(torch.tensor([token]))
                played = played or step.round is not None
                yield step
            if streamer is not None:
                streamer.end()
            self.finish = self.loop.finish
        finally:
            if played and self.state is not None and self.state.policy is self.policy:
                self.state.tick()


def _limited(config: Any) -> bool:
    """Whether a generation config says how long a text gets."""
    return bool(config.max_new_tokens or config.max_length)
