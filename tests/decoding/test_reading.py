"""What models would have had accepted at tokens they missed, as `Round.others` tells it."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from decoders import alike
from eagle_setup import following, graphed, reading
from heads import PROMPT, save, tiny

import wager
from wager.core import OFF, Arm, Context, Round, Signal
from wager.decoding import loop
from wager.decoding.generation import Generation
from wager.decoding.scoring import TextScorer
from wager.drafters import Drafter
from wager.drafters.draft_model import DraftModel
from wager.eagle.drafter import Eagle
from wager.policies import Policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Wandering(Policy):
    """Any arm, and any of the models reads along."""

    needs = frozenset({Signal.OTHERS, Signal.READ})

    def __init__(self, arms: Sequence[Arm], seed: int = 0) -> None:
        super().__init__(arms)
        self.random = random.Random(seed)

    def choose(self, context: Context) -> Arm:
        return self.random.choice(context.arms)

    def select_readers(self, context: Context) -> tuple[str, ...]:
        return tuple(name for name in self.drafters if self.random.random() < 0.3)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, model: Any) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("heads")
    frequent = [token for token in range(heads.VOCABULARY) if token % 7]
    return {
        "one": save(made / "one", model, 1),
        "two": save(made / "two", model, 2, frequent),
        "captured": save(made / "captured", model, 3),
    }


def written(model: Any, folders: dict[str, Path], **how: Any) -> Generation:
    """A text that all models draft for and read in turns; nobody captures the graphs' bodies here."""
    drafters: list[Drafter] = [Eagle(folder, name) for name, folder in folders.items()]
    captured = drafters[-1]
    assert isinstance(captured, Eagle)
    captured.head = graphed(folders["captured"], reading(model))[1]
    drafters.append(DraftModel(alike(model), "draft"))
    arms = (OFF, *(Arm(d.name, length) for d in drafters for length in (1, 3)))
    policy = Wandering(arms)
    decoder = wager.Decoder(
        model, drafters=drafters, arms=arms, policy=policy, sampling=how.pop("sampling", "shared-noise")
    )
    return decoder.generate(PROMPT, max_new_tokens=60, **how)


def missed(name: str, made: Generation) -> Iterator[int]:
    """Places, among the new tokens, of those in whose rounds the drafter did not draft; the last ones are not read."""
    at = 1  # the first is the prompt's forward's
    for played in made.rounds:
        if played.arm.drafter != name or not played.drafted:
            yield from range(at, at + played.emitted)
        at += played.emitted


def told(name: str, rounds: Sequence[Round]) -> list[float]:
    found: list[float] = []
    for played in rounds:
        known = played.others.get(name, ())
        assert isinstance(known, tuple)
        found += known
    return found


@pytest.mark.parametrize("name", ["one", "two", "captured", "draft"])
def test_others_are_what_each_model_drafts_first_on_the_true_text(
    model: Any, folders: dict[str, Path], name: str
) -> None:
    made = written(model, folders)
    assert made.tokens == heads.plain(model)
    text = [*PROMPT, *made.tokens]
    places = list(missed(name, made))
    found = told(name, made.rounds)
    assert 20 < len(found) <= len(places)
    expected = []
    for place in places[: len(found)]:
        before = text[: len(PROMPT) + place]
        if name == "draft":
            plainly = DraftModel(alike(model))
            plainly.begin(before)
        else:
            plainly = following(folders[name], reading(model, before), before)
        expected.append(float(plainly.propose(1).tokens[0] == text[len(before)]))
    assert found == expected
    assert 0 < sum(found) < len(found)


def test_with_shared_noise_others_are_what_the_engine_accepts(model: Any, folders: dict[str, Path]) -> None:
    how = {"do_sample": True, "temperature": 0.8, "seed": 5}
    made = written(model, folders, **how)
    for name in ("one", "two", "draft"):
        known = dict(zip(missed(name, made), told(name, made.rounds), strict=False))
        drafter = DraftModel(alike(model), name) if name == "draft" else Eagle(folders[name], name)
        alone = wager.Decoder(model, drafters=[drafter], lengths=(1,), policy=f"fixed:drafter={name},length=1")
        again = alone.generate(PROMPT, max_new_tokens=60, **how)
        assert again.tokens == made.tokens
        at, compared = 1, 0
        for played in again.rounds:
            if played.drafted and at in known:
                assert known[at] == played.accepted
                compared += 1
            at += played.emitted
        assert compared > 10


def test_by_the_residual_rule_others_are_the_overlap_of_the_distributions(model: Any, folders: dict[str, Path]) -> None:
    made = written(model, folders, do_sample=True, temperature=1.0, top_k=0, seed=3, sampling="residual")
    text = torch.tensor([[*PROMPT, *made.tokens]])
    with torch.no_grad():
        p, q = (torch.softmax(m(input_ids=text).logits[0], -1) for m in (model, alike(model)))
    shared = torch.minimum(p, q).sum(-1).tolist()
    places = list(missed("draft", made))
    found = told("draft", made.rounds)
    assert len(found) > 10
    assert found == pytest.approx([shared[len(PROMPT) + at - 1] for at in places[: len(found)]], abs=1e-4)


def test_the_comparison_notices_predictions_of_the_token_after(
    model: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Eagle._score

    def late(self: Eagle, before: torch.Tensor | None) -> None:
        score(self, None)  # leaves the first row out, so that some tokens have no score

    monkeypatch.setattr(Eagle, "_score", late)
    with pytest.raises(AssertionError):
        test_others_are_what_each_model_drafts_first_on_the_true_text(model, folders, "one")


@pytest.mark.parametrize("name", ["one", "captured", "draft"])
def test_who_has_missed_nothing_is_not_scored(
    name: str, model: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the prompt that it reads first, nor for the token that this gives."""
    asked: list[int] = []
    hits = TextScorer.hits
    monkeypatch.setattr(TextScorer, "hits", lambda self, tokens, at: asked.append(at) or hits(self, tokens, at))
    drafter: Drafter = DraftModel(alike(model), "draft") if name == "draft" else Eagle(folders[name], name)
    arms = (OFF, Arm(name, 3))

    class Twice(Wandering):
        chosen = 0

        def choose(self, context: Context) -> Arm:
            self.chosen += 1
            return arms[self.chosen not in (3, 4)]

        def select_readers(self, context: Context) -> tuple[str, ...]:
            return ()

    decoder = wager.Decoder(model, drafters=[drafter], arms=arms, policy=Twice(arms))
    made = decoder.generate(PROMPT, max_new_tokens=40)
    late = len(PROMPT) + 1 + sum(played.emitted for played in made.rounds[:2])
    assert asked == [late], "once, for the tokens of two rounds"


def test_who_does_not_ask_for_others_pays_for_none(model: Any, folders: dict[str, Path]) -> None:
    eagle = Eagle(folders["one"])
    decoder = wager.Decoder(model, drafters=[eagle], lengths=(2,), policy="round-robin")
    made = decoder.generate(PROMPT, max_new_tokens=20)
    assert eagle.scorer is None
    assert not any(played.others or played.read_seconds for played in made.rounds)


def test_auto_compares_several_models_and_pays_nothing_for_one(model: Any, folders: dict[str, Path]) -> None:
    plain = wager.Decoder(model, drafters="off", policy="off").generate(PROMPT, max_new_tokens=48)
    for names in (("one",), ("one", "two", "captured")):
        drafters = [Eagle(folders[name], name) for name in names]
        decoder = wager.Decoder(model, drafters=drafters, lengths=(1, 2), policy="auto")
        made = decoder.generate(PROMPT, max_new_tokens=48)
        assert made.tokens == plain.tokens
        assert all((eagle.scorer is not None) == (len(names) > 1) for eagle in drafters)
        assert len(names) > 1 or not any(played.others or played.read_seconds for played in made.rounds)


def test_reading_takes_the_lag_away_and_is_timed(model: Any, folders: dict[str, Path]) -> None:
    class Reads(Wandering):
        lags: list[int] = []  # noqa: RUF012 - of one test

        def choose(self, context: Context) -> Arm:
            self.lags.append(context.lag["one"])
            return OFF

        def select_readers(self, context: Context) -> tuple[str, ...]:
            return ("one",) if len(self.lags) % 4 == 0 else ()

    policy = Reads((OFF, Arm("one", 2)))
    decoder = wager.Decoder(model, drafters=[Eagle(folders["one"], "one")], lengths=(2,), policy=policy)
    made = decoder.generate(PROMPT, max_new_tokens=30)
    assert policy.lags[3:9] == [len(PROMPT) + 2, 0, 0, 1, 2, 0]
    assert [bool(played.read_seconds) for played in made.rounds[:8]] == [False] * 3 + [True] + [False] * 3 + [True]
    timed = made.rounds[3]
    assert timed.seconds == pytest.approx(timed.verify_seconds + timed.draft_seconds + timed.read_seconds["one"])


@pytest.mark.parametrize("late", [False, True])
def test_a_policy_is_told_which_models_can_read_without_drafting(
    model: Any, folders: dict[str, Path], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it chooses while the device works."""
    if late:
        monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})

    class DraftsOnly(DraftModel):
        reads = False

    class Told(Wandering):
        late = True

        def __init__(self, arms: Sequence[Arm]) -> None:
            super().__init__(arms)
            self.contexts: list[Context] = []

        def choose(self, context: Context) -> Arm:
            self.contexts.append(context)
            return super().choose(context)

    drafters = [Eagle(folders["one"], "one"), DraftsOnly(alike(model), "draft")]
    arms = (OFF, *(Arm(drafter.name, 2) for drafter in drafters))
    policy = Told(arms)
    decoder = wager.Decoder(model, drafters=drafters, arms=arms, policy=policy)
    made = decoder.generate(PROMPT, max_new_tokens=30)
    assert {context.readers for context in policy.contexts} == {frozenset({"one"})}
    assert any(context.unobserved for context in policy.contexts) is late
    assert {name for played in made.rounds for name in played.read_seconds} == {"one"}
