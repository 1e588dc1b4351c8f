"""The quick way through recorded texts gives what the replay gives, round by round."""

from pathlib import Path

import numpy as np
import pytest
from paper_recordings import recording

from reproduction import costs, recordings
from reproduction.recorded import Replayed as Rows
from reproduction.recordings import Wanted
from reproduction.walk import Rounds, Way, counts_only, noise_of, walk, walks
from reproduction.workspace import Workspace
from wager.core import OFF, Arm
from wager.policies import build
from wager.simulation import Replay
from wager.simulation.replay import NOISE

DRAFTERS = ("eagle:ofa", "draft:ofa", "suffix")
LENGTHS = (1, 3)
POLICIES = (
    "ucbspec", "exp3spec", "meta-ucb:beta=0.1", "meta-ucb:reward=be", "meta-exp3", "halving:budget=1", "random",
    "analytical", "analytical:history=2", "fsm", "cached-fsm", "qlearning", "prompt-router",
    "fixed:drafter=draft:ofa,length=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings")
    recording(path / "texts.jsonl.gz", 2, tokens=60)
    return path


def both(folder: Path, spec: str, seed: int, cost: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Every round as the replay plays it and as the walk does: text, arm, position, lag and seconds."""
    own = recordings.find(Wanted(DRAFTERS), folder)
    texts, priced = tuple(own.only(DRAFTERS, range(8))), costs.table(cost)
    scenario = Replay(texts, priced, LENGTHS, reset="never")
    arms = tuple(arm for arm in scenario.arms if arm.tree is None)

    class Chains(Replay):
        @property
        def arms(self) -> tuple[Arm, ...]:
            return arms

    environment = Chains(texts, priced, LENGTHS, reset="never").start(seed, policy := build(spec, arms, seed=seed))
    slow: list[tuple[object, ...]] = []
    while not environment.done:
        label, context = environment.label, environment.context()
        played = environment.play(policy.choose(context))
        policy.observe(played)
        slow.append((label, played.arm, context.tokens - 1, played.lag, pytest.approx(played.seconds, rel=1e-12)))
    order = np.random.default_rng([seed, 0]).permutation(len(texts)).tolist()
    rounds, noise = [Rounds(texts[i], arms, priced) for i in order], noise_of(NOISE, seed, 8 * 60)
    ways, quick, first = walk(rounds, build(spec, arms, seed=seed), noise), [], 0
    for i, way in zip(order, ways, strict=True):
        last = first + len(way.at)
        seconds = (way.seconds(priced) * noise[first:last]).tolist()
        quick += list(zip([str(i)] * len(way.at), [arms[p] for p in way.places], way.at, way.lag, seconds, strict=True))
        first = last
    return slow, quick


@pytest.mark.parametrize("spec", POLICIES)
@pytest.mark.parametrize("cost", ["cpu", "h200"])
def test_the_quick_way_is_the_replay(folder: Path, spec: str, cost: str) -> None:
    for seed in (0, 7):
        slow, quick = both(folder, spec, seed, cost)
        assert len({row[1] for row in quick}) > 1 or spec.startswith("fixed")
        assert quick == slow


def test_tokens_that_occurred_before_change_what_the_state_machine_with_cache_does(folder: Path) -> None:
    (_, plain), (_, cached) = both(folder, "fsm", 0, "cpu"), both(folder, "cached-fsm", 0, "cpu")
    assert [row[1] for row in plain] != [row[1] for row in cached]


def test_a_policy_that_looks_at_seconds_or_lag_is_not_taken_for_one_that_counts_tokens(folder: Path) -> None:
    arms = (OFF, Arm("eagle:ofa", 3))
    for spec in ("ucbspec:reward=goodput", "meta-ucb:lag_cost=0.01", "exp3spec:reward=goodput", "nightjar", "auto"):
        assert not walks(build(spec, arms)), spec
    assert walks(build("analytical", arms))
    assert not counts_only(build("analytical", arms))
    with pytest.raises(ValueError, match="auto looks at more"):
        Rows(Wanted(("suffix",)), (4,), ("auto",))(Workspace(recordings=folder))


def test_a_walk_without_the_lag_of_a_draft_is_told_from_the_replay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the comparison is for: a fault in the quick way must show."""
    seconds = Way.seconds

    def forgets(self: Way, cost: object) -> np.ndarray:
        self.lag = [0] * len(self.lag)
        return seconds(self, cost)  # type: ignore[arg-type]

    monkeypatch.setattr(Way, "seconds", forgets)
    slow, quick = both(folder, "ucbspec", 0, "cpu")
    assert quick != slow


@pytest.mark.parametrize("spec", ["meta-ucb", "meta-exp3"])
def test_shuffles_of_a_policy_without_chance_differ_in_the_noise_alone(folder: Path, spec: str) -> None:
    run = Rows(Wanted(("draft:ofa", "eagle:ofa")), (3,), (spec,), labels=("humaneval",))
    few, many = (Workspace(recordings=folder).result(type(run)(**{**_fields(run), "seeds": n})) for n in (1, 4))
    same = [few["units"][spec][column] == many["units"][spec][column] for column in ("rounds", "seconds")]
    assert same == ([True, False] if spec == "meta-ucb" else [False, False])


def _fields(run: Rows) -> dict[str, object]:
    return {name: getattr(run, name) for name in run.__slots__}
