"""Replay: recorded texts under any policy give the rounds the engine plays."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from decoders import alike
from recorders import recorder, tiny
from replays import COSTS, LONGEST, PROMPTS, replay, text

import wager
from wager.core import OFF, Arm, Context, Round, Signal
from wager.core.recording import Text, Track
from wager.drafters import Drafter
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.policies import build, fixed
from wager.policies.plain import Fixed, Off
from wager.simulation import CLAIRVOYANT, Replay, RoundCost, VerifyCost, joined, play
from wager.simulation.outcomes import quickest

pytestmark = pytest.mark.usefixtures("one_thread")


class Watched(Fixed):
    """One arm, with every context it was chosen in."""

    contexts: list[Context]

    def select_readers(self, context: Context) -> tuple[str, ...]:
        return self.drafters if len(self.contexts) % 3 == 0 else ()

    def choose(self, context: Context) -> Arm:
        self.contexts.append(context)
        return super().choose(context)


def watched(arms: Sequence[Arm], arm: Arm, *, asks: bool) -> Watched:
    policy = Watched(arms, drafter=arm.drafter, length=arm.length)
    policy.needs = frozenset({Signal.HINTS, Signal.OTHERS, Signal.READ, Signal.REPEATS}) if asks else frozenset()
    policy.contexts = []
    return policy


class Hinted(Off):
    """Plain decoding that has the cheap drafters propose in every round."""

    needs = frozenset({Signal.HINTS, Signal.OTHERS})


def labels_of(scenario: Replay, seed: int) -> list[str]:
    """The label of the text of every round, played without drafts."""
    environment, labels = scenario.start(seed), []
    while not environment.done:
        labels.append(environment.label)
        environment.play(OFF)
    return labels


def both(model: Any, made: Sequence[Any], arm: Arm, lengths: Sequence[int], *, asks: bool, count: int = 60) -> Any:
    """Contexts and rounds of all prompts: the engine's, then those of a replay of the recording."""

    def fresh() -> list[Drafter]:
        return [make() for make in made]

    drafters = fresh()
    arms = (OFF, *(Arm(d.name, n) for d in drafters for n in sorted(set(lengths))))
    policy = watched(arms, arm, asks=asks)
    decoder = wager.Decoder(model, drafters=drafters, arms=arms, policy=policy)
    played = [r for p in PROMPTS for r in decoder.generate(p, max_new_tokens=count, do_sample=False).rounds]

    walker = recorder(model, *fresh(), longest=LONGEST)
    texts = [walker.record(prompt, "a", count) for prompt in PROMPTS]
    scenario = Replay(tuple(t for t in texts if t is not None), COSTS, tuple(lengths), 0.0, phases=True)
    assert set(scenario.arms) == set(arms)
    again = watched(arms, arm, asks=asks)
    environment = scenario.start(0, again)
    rounds = []
    while not environment.done:
        rounds.append(environment.play(again.choose(environment.context())))
    return policy.contexts, played, again.contexts, rounds


def counts(rounds: Sequence[Round]) -> list[tuple[Any, ...]]:
    # Past the end of a text nobody knows what the target would have accepted.
    return [(str(r.arm), r.drafted, min(r.accepted, r.emitted), r.emitted, r.lag) for r in rounds]


LOOKUP = [(PromptLookup, 1, (1, 6)), (PromptLookup, 4, (4, 6)), (PromptLookup, 2, (2,)), (Suffix, 6, (2, 6))]
MODEL = [("model", 1, (1,)), ("model", 3, (3, 6)), ("model", 6, (6,)), ("off", 0, (4,))]


@pytest.mark.parametrize(("make", "length", "lengths"), [*LOOKUP, *MODEL])
@pytest.mark.parametrize("ends", [False, True])
def test_a_fixed_arm_plays_the_engines_own_rounds(make: Any, length: int, lengths: Sequence[int], ends: bool) -> None:
    plain = wager.Decoder(tiny(), drafters="off", policy="off").generate(PROMPTS[0], max_new_tokens=40).tokens
    model = tiny(eos_token_id=max(set(plain), key=plain.index)) if ends else tiny()
    makes = {"model": lambda: DraftModel(alike(model)), "off": PromptLookup}
    made = makes.get(make, make)
    arm = Arm(made().name, length) if length else OFF
    _, engine, _, replayed = both(model, [made], arm, lengths, asks=False, count=40)
    assert counts(replayed) == counts(engine)
    if length:
        assert 0 < sum(r.accepted for r in replayed) < sum(r.drafted for r in replayed)
    if ends:
        assert sum(r.emitted for r in replayed) < 3 * 39


@pytest.mark.parametrize(
    "arm", [OFF, Arm("suffix", 2), Arm("suffix", 6), Arm("prompt-lookup", 3), Arm("draft-model", 3)]
)
def test_a_policy_that_asks_sees_what_it_sees_in_the_engine(arm: Arm) -> None:
    model = tiny()
    made = [Suffix, PromptLookup, lambda: DraftModel(alike(model))]
    seen, engine, again, replayed = both(model, made, arm, (2, 3, 6), asks=True)
    assert counts(replayed) == counts(engine)
    assert [r.others for r in replayed] == [r.others for r in engine]
    assert [r.repeated for r in replayed] == [r.repeated for r in engine]
    assert {r.repeated for r in replayed} >= {0, 1}
    assert [(c.tokens, c.previous, c.lag) for c in again] == [(c.tokens, c.previous, c.lag) for c in seen]
    assert [c.hints for c in again] == [c.hints for c in seen]
    assert [c.agreement for c in again] == [c.agreement for c in seen]
    assert [set(c.proposal_seconds) for c in again] == [set(c.proposal_seconds) for c in seen]
    assert any(c.agreement and c.agreement["suffix"]["prompt-lookup"] for c in again)
    assert any(c.hints and c.hints["suffix"].confidence for c in again)
    assert any(isinstance(n, int) and n for r in replayed for n in r.others.values())
    read = [r.others["draft-model"] for r in replayed if "draft-model" in r.read_seconds]
    assert arm.drafter == "draft-model" or (len(read) > 5 and any(sum(own) for own in read))
    assert [set(r.read_seconds) for r in replayed] == [set(r.read_seconds) for r in engine]


def test_a_rounds_seconds_are_those_of_its_parts() -> None:
    tracks = {
        "suffix": Track([2] * 9, [1] * 9, [3] * 9, [()] * 9),
        "lookup": Track([0] * 9, [0] * 9, [0] * 9, [()] * 9),
        "model": Track([6] * 9, [1] * 8 + [0], [0] * 9, [()] * 9, [0.5] * 9, cheap=False),
    }
    tracks["suffix"].agreed[-1] = 0
    scenario = Replay((Text("a", 20, 10, tracks),), COSTS, (1, 2, 4, 6), 0.0)
    environment = scenario.start(0)
    r = environment.play(Arm("suffix", 6))  # proposes 2 of them
    assert (r.drafted, r.accepted, r.emitted, r.draft_seconds, r.verify_seconds) == (2, 1, 2, 2e-3, COSTS.verify(3))
    assert environment.context().lag == {"model": 22}  # prompt and two tokens; the last is every round's to read
    r = environment.play(Arm("model", 4))
    assert (r.lag, r.lag_seconds) == (22, pytest.approx(22 * 5e-4))
    assert (r.draft_seconds, r.verify_seconds, r.overlap) == (0.016, COSTS.verify(5), (0.5,) * 4)
    assert environment.context().lag == {"model": 0}
    r = environment.play(Arm("model", 1))  # kept whole: its last token is not read yet
    assert (r.accepted, r.lag, r.lag_seconds) == (1, 0, 0)
    assert environment.context().lag == {"model": 1}
    r = environment.play(Arm("model", 4))  # a single token is read along
    assert (r.drafted, r.lag, r.lag_seconds) == (2, 1, 0)
    assert environment.seconds == pytest.approx(
        2e-3 + COSTS.verify(3) + 22 * 5e-4 + 0.016 + COSTS.verify(5) + 0.004 + COSTS.verify(2) + 0.008 + COSTS.verify(3)
    )
    r = environment.play(Arm("model", 4))  # one token is left, and it is the target's
    assert (r.drafted, r.emitted, r.lag, r.draft_seconds) == (0, 1, 0, 0)
    assert environment.done


def test_asking_cheap_drafters_takes_a_rounds_time_whatever_is_played() -> None:
    scenario = replay()
    quiet, asking = scenario.start(0), scenario.start(0, Hinted(scenario.arms))
    rooms = 0
    while not quiet.done:
        context = asking.context()
        assert context.proposal_seconds == ({"suffix": 2e-3, "lookup": 1e-3} if context.hints else {})
        assert quiet.context().hints == quiet.context().proposal_seconds == {}
        plain, other = quiet.play(OFF), asking.play(OFF)
        assert other.draft_seconds == sum(context.proposal_seconds.values())
        assert other.verify_seconds == plain.verify_seconds
        rooms += bool(context.hints)
    assert asking.seconds - quiet.seconds == pytest.approx(rooms * 3e-3)
    played = scenario.start(0, Hinted(scenario.arms))
    played.context()
    assert played.play(Arm("suffix", 2)).draft_seconds == pytest.approx(3e-3)  # asked already


def test_hints_and_what_they_share_reach_no_further_than_the_longest_arm() -> None:
    scenario = replace(replay(), lengths=(1, 2))
    environment = scenario.start(0, Hinted(scenario.arms))
    sizes, common = set(), set()
    while not environment.done:
        context = environment.context()
        sizes |= {hint.size for hint in context.hints.values()}
        common |= {n for others in context.agreement.values() for n in others.values()}
        environment.play(OFF)
    assert sizes == common == {0, 1, 2}


def test_only_the_drafters_a_policy_wants_are_asked() -> None:
    class Lookup(Hinted):
        def select_drafters(self, context: Context) -> tuple[str, ...]:
            assert not context.hints
            return ("lookup",)

    environment = replay().start(0, Lookup(replay().arms))
    context = environment.context()
    assert set(context.hints) == set(context.proposal_seconds) == {"lookup"}
    assert context.agreement == {"lookup": {}}
    outcome = environment.play(Arm("suffix", 2))  # was not asked before: its proposal comes now
    assert outcome.draft_seconds == pytest.approx(3e-3)
    assert set(outcome.others) == {"lookup"}
    environment.context()
    assert environment.play(OFF).draft_seconds == pytest.approx(1e-3)


def test_noise_has_the_size_asked_for_and_is_the_same_for_every_policy() -> None:
    scenario = replay(40, noise=0.1)
    environment, other = scenario.start(3), scenario.start(3)
    shares = []
    while not environment.done and not other.done:
        first, second = environment.play(OFF), other.play(Arm("suffix", 2))
        shares.append(first.verify_seconds / COSTS.verify(1))
        assert second.verify_seconds / COSTS.verify(second.drafted + 1) == pytest.approx(shares[-1])
    spread = torch.tensor(shares).log().std()
    assert 0.08 < spread < 0.12
    assert play(replay(noise=0.0), "off", 1).seconds == pytest.approx(replay().goal * 0.05)


def test_a_seed_gives_the_same_run_again_and_facts_of_labels_add_up_to_it() -> None:
    scenario = replay(noise=0.1)
    run, again, other = (play(scenario, "kl-ucb:reward=goodput", seed) for seed in (0, 0, 1))
    assert run == again
    assert run.seconds != other.seconds
    assert run.tokens == other.tokens == scenario.goal
    for kind, whole in (("tokens", run.tokens), ("rounds", run.rounds), ("seconds", run.seconds)):
        assert sum(run.facts[f"{kind} {label}"] for label in "abc") == pytest.approx(whole)


def seconds_of(scenario: Replay, arms: Sequence[Arm]) -> float | None:
    """How long a text takes with these arms in turn; None where it needs more rounds."""
    environment = scenario.start(0)
    for arm in arms:
        environment.play(arm)
        if environment.done:
            return environment.seconds
    return None


@pytest.mark.parametrize("seed", range(6))
def test_the_clairvoyant_is_as_quick_as_the_quickest_of_all_ways(seed: int) -> None:
    short = text(Random(seed), tokens=5, longest=3)
    scenario = Replay((short,), replace(COSTS, lag={}), (1, 3), 0.0)
    every = [seconds_of(scenario, arms) for arms in product(scenario.arms, repeat=4)]
    best = min(seconds for seconds in every if seconds is not None)
    assert quickest(short, scenario.arms, scenario.costs, 3)[1] == pytest.approx(best)
    assert play(scenario, CLAIRVOYANT, 0).seconds == pytest.approx(best)


def test_no_fixed_arm_and_no_policy_is_quicker_than_the_clairvoyant() -> None:
    for seed in range(4):
        scenario = replay(seed=seed)
        seconds = play(scenario, CLAIRVOYANT, 0).seconds
        assert seconds == pytest.approx(sum(quickest(t, scenario.arms, COSTS, LONGEST)[1] for t in scenario.texts))
        for spec in (*map(fixed, scenario.arms), "kl-ucb:reward=goodput", "auto", "random"):
            assert play(scenario, spec, 0).seconds >= seconds - 1e-9


def test_phases_keep_their_order_and_take_each_text_in_turn() -> None:
    texts = [text(Random(i), label) for i, label in enumerate("aabbb")]
    order = joined(texts, ["a", "b", "a"], 2)
    assert [t.label for t in order] == list("aabbaa")
    assert order[:2] == order[4:] == tuple(texts[:2])
    assert joined(texts, ["b", "b"], 2) == (texts[2], texts[3], texts[4], texts[2])
    labels = labels_of(Replay(order, COSTS, (2,), 0.0, phases=True), 5)
    assert list(dict.fromkeys(labels)) == ["a", "b"]
    assert labels == sorted(labels[: -2 * 29]) + ["a"] * 2 * 29
    with pytest.raises(ValueError, match="no recorded text is labelled 'c'; there are a, b"):
        joined(texts, ["a", "c"], 1)
    with pytest.raises(ValueError, match="at least 1 text"):
        joined(texts, ["a"], 0)


def test_without_phases_the_seed_shuffles_the_texts() -> None:
    scenario = Replay(tuple(text(Random(i), str(i)) for i in range(9)), COSTS, (2,), 0.0)
    orders = [list(dict.fromkeys(labels_of(scenario, seed))) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list("012345678")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"texts": ()}, "at least one text"),
        ({"lengths": ()}, "at least 1"),
        ({"lengths": (0, 2)}, "at least 1"),
        ({"noise": 1.0}, "between 0 and 1"),
        ({"texts": (text(Random(0)), text(Random(0), model=False))}, "different drafters: lookup and model and suffix"),
    ],
)
def test_what_cannot_be_replayed_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(replay(), **change)
    with pytest.raises(ValueError, match="at least 0 seconds, not -1"):
        RoundCost(VerifyCost(), step={"model": -1})


def test_policies_start_anew_with_every_text_where_their_paper_does_so() -> None:
    def tried(spec: str, reset: str) -> list[int]:
        """Arms played in the first five rounds of every text."""
        scenario = Replay(replay(8).texts, COSTS, (2,), 0.0, reset=reset)
        first: dict[int, list[str]] = {}

        def watch(context: Context, outcome: Round) -> None:
            if context.previous is None:
                first[len(first)] = []
            first[len(first) - 1].append(str(outcome.arm))

        play(scenario, spec, 0, watch=watch)
        return [len(set(arms[:4])) for arms in first.values()]

    everything = [4] * 8  # off and one arm of each drafter
    for spec in ("meta-ucb", "meta-ucb:reward=be", "ucbspec", "halving", "discounted-ucb"):
        assert tried(spec, "paper") == tried(spec, "text") == everything, spec
    assert max(tried("meta-ucb", "never")[1:]) < 4  # what a bandit with beta 0.01 keeps freezes it
    assert tried("dsd", "paper") == tried("dsd", "never")
    with pytest.raises(ValueError, match="paper, text, never, not 'prompt'"):
        tried("dsd", "prompt")


def test_a_policy_started_anew_goes_on_with_its_random_numbers() -> None:
    arms = (OFF, Arm("suffix", 2))
    policy = build("random", arms)
    drawn = []
    for _ in range(2):
        drawn.append([policy.choose(Context(arms)) for _ in range(20)])
        policy.forget()
    assert drawn[0] != drawn[1]
    again = build("random", arms)
    assert [again.choose(Context(arms)) for _ in range(20)] == drawn[0]


def test_q_learning_is_measured_after_25_texts_as_in_its_paper() -> None:
    scenario = Replay(replay(8).texts, COSTS, (2,), 0.0)
    fresh, kept = build("qlearning", scenario.arms), build("qlearning", scenario.arms)
    assert scenario.start(0).tokens == scenario.start(0, build("ucbspec", scenario.arms)).tokens == 0
    environment = scenario.start(0, kept)
    assert environment.tokens == 0
    assert environment.seconds == 0.0
    assert kept.state_dict() != fresh.state_dict()
    replace(scenario, reset="never").start(0, fresh)
    assert fresh.state_dict() == build("qlearning", scenario.arms).state_dict()
    best = min(play(scenario, fixed(arm), 0).seconds for arm in scenario.arms)
    assert best <= play(scenario, "qlearning", 0).seconds
