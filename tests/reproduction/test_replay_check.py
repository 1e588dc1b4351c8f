"""Replays are compared with real runs: the same rounds, the same speeds, and a difference is seen."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from decoders import alike
from recorders import PROMPT, tiny

from reproduction import replay_check
from reproduction.replay_check import Played, compared, run, verdict
from wager.core import Arm, Round
from wager.core.recording import Text, Track
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup

pytestmark = pytest.mark.usefixtures("one_thread")
ASKED = [("a", PROMPT), ("a", PROMPT[::-1]), ("b", [5, 1, 7, 7, 2])]
FIXED = ("off", "prompt-lookup:2", "draft-model:2", "draft-model:4")


def checked(**how: Any) -> dict[str, Any]:
    model = tiny()
    drafters = [PromptLookup, partial(DraftModel, alike(model))]
    return run(model, None, ASKED, drafters, 40, FIXED, ("ucbspec",), (2, 4), lambda _: None, **how)


def test_real_rounds_are_those_of_the_replay() -> None:
    told = checked()
    assert told["same_texts"]
    assert told["texts"] == len(ASKED)
    assert {name: row["same_rounds"] for name, row in told["methods"].items()} == dict.fromkeys(
        (*FIXED, "ucbspec"), True
    )
    assert len({tuple(row["rounds"]) for row in told["methods"].values()}) > 2  # methods do differ


def test_the_answer_of_median_seconds_counts() -> None:
    one, two, three = (Played([], [], seconds) for seconds in (1.0, 2.0, 30.0))
    assert replay_check.middle([three, one, two]) is two
    assert checked(repeats=3)["same_texts"]


def test_a_recording_that_is_wrong_shows_in_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    true = replay_check.compared

    def tampered(real: Any, texts: list[Text], *rest: Any) -> Any:
        def worse(track: Track) -> Track:
            return replace(track, agreed=[max(0, n - 1) for n in track.agreed])

        return true(real, [replace(t, tracks={n: worse(k) for n, k in t.tracks.items()}) for t in texts], *rest)

    monkeypatch.setattr(replay_check, "compared", tampered)
    rows = checked()["methods"]
    assert rows["off"]["same_rounds"]
    assert not rows["draft-model:4"]["same_rounds"]


def planted(slower: float = 1.0) -> dict[str, Any]:
    """Runs whose seconds are 1 a token verified and 0.1 a token drafted; one method may take longer than that."""
    positions, count = 30, 3
    agreed = [min(at % 3, positions - at) for at in range(positions)]
    track = Track([4] * positions, agreed, [0] * positions, [()] * positions, cheap=False)
    texts = [Text(str(i), 5, positions + 1, {"m": track}) for i in range(count)]
    real: dict[str, list[Played]] = {}
    for name in ("off", "m:2", "m:4"):
        arm, at, rounds = Arm.parse(name), 0, []
        while at < positions:
            room = max(0, min(4, positions - at - 1))
            drafted = min(arm.length, room)
            accepted = min(drafted, agreed[at])
            emitted = min(accepted + 1, positions - at)
            rounds.append(Round(arm, drafted, accepted, emitted, draft_seconds=0.1 * drafted, verify_seconds=1.0))
            at += emitted
        taken = sum(r.seconds for r in rounds) * (slower if name == "m:4" else 1.0)
        real[name] = [Played([], rounds, taken)] * count
    return compared(real, texts, {"m": False}, (2, 4))


def test_speeds_agree_where_costs_are_as_they_were_timed() -> None:
    told = planted()
    assert all(row["same_rounds"] for row in told["methods"].values())
    assert told["largest_difference"] < 1e-3
    assert told["within"]
    assert told["ranked_otherwise"] == []
    assert told["methods"]["m:4"]["speed"] > 1


def test_a_method_that_takes_longer_than_its_rounds_say_is_found() -> None:
    told = planted(slower=1.5)
    assert told["furthest"] == "m:4"
    assert not told["within"]


def test_ranks_count_where_speeds_are_apart() -> None:
    rows = {
        "a": {"speed": 1.0, "replayed": 1.0, "difference": 0.0},
        "b": {"speed": 1.2, "replayed": 1.21, "difference": 0.008},
        "c": {"speed": 1.21, "replayed": 1.2, "difference": -0.008},  # as fast as b: no rank
        "d": {"speed": 1.1, "replayed": 0.9, "difference": -0.18},
    }
    found = verdict(rows)
    assert found["ranked_otherwise"] == ["a, d"]
    assert (found["furthest"], found["within"], found["pairs"]) == ("d", False, 5)
