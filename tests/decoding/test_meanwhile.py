"""While the device works the last round is observed, drafters are told, and the next round is chosen for."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from decoders import PROMPT, alike, tiny

import wager
from wager.cli.shown import Explaining
from wager.core import OFF, Arm, Context, Round, Signal
from wager.decoding import decoder as decoder_module
from wager.decoding import loop
from wager.decoding.hold import Hold
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.policies import Policy

DRAFT, MATCH = Arm("draft", 2), Arm("prompt-lookup", 2)


class Late(Policy):
    """Three rounds of each arm in turn; notes what it knows when it chooses."""

    late = True

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.events: list[str] = []
        self.rounds: list[Round] = []
        self.contexts: list[Context] = []

    def choose(self, context: Context) -> Arm:
        self.contexts.append(context)
        arm = self.arms[(len(self.contexts) - 1) // 3 % len(self.arms)]
        self.events.append(f"choose {arm}{' late' if context.unobserved else ''}")
        return arm

    def observe(self, round: Round) -> None:
        self.rounds.append(round)
        self.events.append(f"observe {round.arm}")


def written(policy: Policy, drafters: Sequence[Any] = ()) -> Any:
    model = tiny()
    decoder = wager.Decoder(
        model, drafters=[DraftModel(alike(model), "draft"), *drafters], arms=policy.arms, policy=policy
    )
    return decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)


def test_rounds_are_observed_late_and_in_order_and_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Late((OFF, DRAFT))
    plain = written(at_once)
    assert not any(context.unobserved for context in at_once.contexts), "on a CPU nothing is put off"
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    late = Late((OFF, DRAFT))
    made = written(late)
    assert made.tokens == plain.tokens
    assert late.rounds == list(made.rounds), "each once, in order"
    assert sum(context.unobserved for context in late.contexts) > len(late.contexts) / 2
    assert late.events[-1].startswith("observe"), "the last one at once: no other follows"
    first, second = (next(i for i, e in enumerate(late.events) if e.startswith(f"{what} off")) for what in
                     ("choose", "observe"))  # fmt: skip
    assert first < second


def texts_written(policy: Policy, lengths: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of one decoder; the policy's events tell when each first token was there."""
    accept = loop.Loop._accept

    def noting(self: Any, logits: Any, draft: Any) -> Any:
        if len(self.text) == self.begins:
            policy.events.append("first token")  # type: ignore[attr-defined]
        return accept(self, logits, draft)

    monkeypatch.setattr(loop.Loop, "_accept", noting)
    model = tiny()
    decoder = wager.Decoder(model, drafters=[DraftModel(alike(model), "draft")], arms=policy.arms, policy=policy)
    return [decoder.generate(PROMPT, max_new_tokens=n, do_sample=False).tokens for n in lengths]


def test_the_first_round_is_chosen_for_while_the_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Late((DRAFT, OFF))
    plain = texts_written(at_once, [30, 1, 30], monkeypatch)
    assert at_once.events[:2] == ["first token", f"choose {DRAFT}"]
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    late = Late((DRAFT, OFF))
    assert texts_written(late, [30, 1, 30], monkeypatch) == plain
    assert late.events[:3] == [f"choose {DRAFT}", "first token", f"choose {DRAFT} late"], (
        "the second in the first round"
    )
    begins = [context for context in late.contexts if context.previous is None]
    assert [(c.tokens, c.remaining, c.unobserved) for c in begins] == [(1, 29, False)] * 2, (
        "a single token has no round"
    )
    drawn = at_once.contexts[0]
    assert (drawn.tokens, drawn.remaining, drawn.kinds) == (1, 29, begins[0].kinds)
    assert sum(e.startswith("choose") for e in late.events) == len(late.contexts) >= len(late.rounds)


def test_a_first_round_whose_seconds_are_unknown_is_chosen_for_once_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    monkeypatch.setattr(Late, "needs", frozenset({Signal.COSTS}))
    monkeypatch.setattr(Late, "calibrate", lambda self, known: self.events.append("calibrate"))
    policy = Late((DRAFT, OFF))
    texts_written(policy, [80, 30], monkeypatch)
    first, second = (i for i, event in enumerate(policy.events) if event == "first token")
    assert policy.events[: first + 3] == ["first token", "calibrate", f"choose {DRAFT}"]
    assert policy.events[second - 1].startswith("choose"), "known by then"


def test_a_policy_that_is_not_late_knows_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    monkeypatch.setattr(Late, "late", False)
    policy = Late((OFF, DRAFT))
    written(policy)
    assert not any(context.unobserved for context in policy.contexts)
    kinds = [event.split()[0] for event in policy.events]
    assert kinds == ["choose", "observe"] * (len(kinds) // 2)


def test_whoever_explains_a_choice_asks_before_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    policy = Late((OFF, DRAFT))
    explaining = Explaining(policy, lambda piece: None)
    written(policy)
    assert explaining.policy is policy
    assert not any(context.unobserved for context in policy.contexts)
    assert Late.late, "of that policy alone"


@pytest.mark.parametrize("alone", [False, True])
def test_cheap_drafters_know_the_whole_text_when_they_propose(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if alone:
        monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    texts: list[list[int]] = []
    propose = PromptLookup.propose

    def noting(self: PromptLookup, *given: Any) -> Any:
        texts.append(list(self._text))
        return propose(self, *given)

    monkeypatch.setattr(PromptLookup, "propose", noting)
    policy = Late((OFF, MATCH, DRAFT))
    lookup = PromptLookup()
    made = written(policy, [lookup])
    whole = [*PROMPT, *made.tokens]
    known, wanted = len(PROMPT) + 1, []  # the prompt's forward gives the first token
    for played in made.rounds:
        wanted += [known] if played.arm == MATCH else []
        known += played.emitted
    assert [len(text) for text in texts] == wanted
    assert all(text == whole[: len(text)] for text in texts)
    assert lookup._text == whole, "and at the end"


class Foreseeing(Late):
    """Wants proposals before every choice, and notes when it was asked for what."""

    needs = frozenset({Signal.HINTS})

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.foreseen: Context | None = None
        self.hits = 0

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        self.events.append("select")
        return ("prompt-lookup",)

    def foresee(self, context: Context) -> None:
        self.foreseen = context

    def choose(self, context: Context) -> Arm:
        if context.unobserved and self.foreseen is not None:
            assert self.foreseen.previous == context.previous
            assert self.foreseen.arms is context.arms
            assert "prompt-lookup" in context.hints
            self.hits += 1
        self.foreseen = None
        return super().choose(context)

    def observe(self, round: Round) -> None:
        self.foreseen = None
        super().observe(round)


def test_the_next_choice_is_foreseen_and_who_proposes_for_it_selected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = written(Foreseeing((MATCH, DRAFT)), [PromptLookup()])
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    policy = Foreseeing((MATCH, DRAFT))
    made = written(policy, [PromptLookup()])
    assert made.tokens == plain.tokens
    chosen = sum(event.startswith("choose") for event in policy.events)
    assert policy.hits >= chosen - 4, "all but the first, and at the end of the text"
    assert policy.events.count("select") <= chosen + 2


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_nobody_proposes_for_a_first_round_without_room(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    asked: list[int] = []
    propose = PromptLookup.propose
    monkeypatch.setattr(PromptLookup, "propose", lambda self, room: asked.append(room) or propose(self, room))
    policy = Foreseeing((MATCH, DRAFT))
    decoder = wager.Decoder(
        tiny(), drafters=[DraftModel(alike(tiny()), "draft"), PromptLookup()], arms=policy.arms, policy=policy
    )
    decoder.generate(PROMPT, max_new_tokens=tokens, do_sample=False)
    assert all(asked)
    assert len(asked) == (tokens > 2)


def test_a_draft_model_on_a_cpu_is_packed_though_its_target_is_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "REPAID", 0)
    monkeypatch.setattr(decoder_module, "works_alone", lambda device: device.index is None)
    drafter = DraftModel(alike(tiny()), "draft")
    decoder = wager.Decoder(tiny(), drafters=[drafter], arms=(OFF, DRAFT), policy=Late((DRAFT, OFF)))
    decoder.generate(PROMPT, max_new_tokens=8, do_sample=False)
    assert not drafter.runner.weights.packed, "it is on a device as well"
    drafter.runner.device = torch.device("cpu", 0)
    decoder.generate(PROMPT, max_new_tokens=8, do_sample=False)
    assert drafter.runner.weights.packed


def test_who_proposes_is_selected_anew_after_rounds_for_which_a_choice_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    monkeypatch.setattr(Hold, "chosen", lambda self, arm, *given, **named: vars(self).update(arm=arm, left=2))
    policy = Foreseeing((MATCH, DRAFT))
    made = written(policy, [PromptLookup()])
    before = [earlier for earlier, now in pairwise(policy.events) if now.startswith("choose")]
    assert len(before) < len(made.rounds) / 2, "choices stand"
    assert set(before) == {"select"}, "with all that was observed until then"
