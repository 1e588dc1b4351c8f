"""Every table and figure with results is a row, and rows follow from what recordings and simulations show."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_recordings import recording

from reproduction import protocol
from reproduction.experiment import TEXTS
from reproduction.registry import EXPERIMENTS, PAPERS, PLACES
from reproduction.result_files import refused
from reproduction.rows import counted, row
from reproduction.turned import Turned
from reproduction.workspace import Workspace


def test_every_table_and_figure_with_results_is_a_row() -> None:
    wanted = {f"{paper}-{place}" for paper, own in PLACES.items() for place, told in own.items() if told["results"]}
    assert set(EXPERIMENTS) == wanted == set(TEXTS)
    assert set(PLACES) == set(PAPERS)
    numbers = {paper: (_count(own, "table"), _count(own, "figure")) for paper, own in PLACES.items()}
    # as the papers number them, from 1 on; none is left out
    assert numbers == {"banditspec": (4, 3), "onthefly": (13, 6), "nightjar": (3, 11), "metasd": (19, 7)}


def _count(places: dict[str, Any], kind: str) -> int:
    numbers = sorted(int(place.removeprefix(kind)) for place in places if place.startswith(kind))
    assert numbers == list(range(1, len(numbers) + 1))
    return len(numbers)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_row_states_its_claim_its_protocol_and_what_would_decide_it(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.claim.endswith(".")
    assert experiment.what
    assert experiment.decides or experiment.claim.startswith("None")
    assert {"target", "drafters", "hardware", "prompts", "seeds"} <= set(protocol.of_paper(name))
    assert experiment.runs()
    assert all(run.command.startswith(("wager lab ", "wager bench ", "python -m ")) for run in experiment.runs())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_would_decide_a_row_names_commands_that_are_accepted_and_files_that_are_there(name: str) -> None:
    root, script = Path(__file__).parents[2], Path("reproduction/record.sh")
    for named in re.findall(r"`([^`]+)`", EXPERIMENTS[name].decides):
        words = shlex.split(named)
        settings = [word.partition("=")[0] for word in words if re.match(r"[A-Z]+=", word)]
        command = words[len(settings) :]
        if command[0] in ("python", "wager"):
            assert not settings
            assert refused(named) == ""
        elif command[0] == "sh":
            assert command == ["sh", str(script)]
            assert all(f"${{{setting}:=" in (root / script).read_text(encoding="utf-8") for setting in settings)
        elif command[0] == "make":
            assert command == ["make", "reproduce"]
        elif "/" in command[-1]:
            assert named == "build/recordings" or (root / named).exists()
        else:
            assert named in ("SAMPLES", "changing", "windows"), f"{named} is neither a command nor a file"


def test_protocols_are_of_rows_that_exist_and_differences_are_told() -> None:
    for paper, own in protocol.PAPERS.items():
        places = {place for place, value in own.items() if isinstance(value, dict)}
        assert {f"{paper}-{place}" for place in places} <= set(EXPERIMENTS)
        fields = {field for value in own.values() if isinstance(value, dict) for field in value}
        assert fields | {field for field, value in own.items() if isinstance(value, str)} <= set(protocol.FIELDS)
    assert protocol.of_paper("metasd-table19")["beta"] == "0.1"
    assert protocol.of_paper("metasd-table3")["reset"] == "every prompt"
    told = {says: alike for says, _, _, alike in protocol.compared("metasd-table3", {"reset": "never", "beta": "0.01"})}
    assert told["the policy begins anew"] is False
    assert told["beta of UCB"] is True
    assert protocol.of_runs([{"protocol": {"seeds": "5"}}, {"protocol": {"seeds": "6"}}]) == {"seeds": "5; 6"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("recordings")
    recording(folder / "large.jsonl.gz", 20, tokens=18, tasks=("humaneval", "math_reasoning", "mt_bench"))
    return Workspace(recordings=folder)


REPLAYED = [
    "onthefly-table8",
    "onthefly-table11",
    "metasd-table2",
    "metasd-table3",
    "metasd-table5",
    "metasd-figure2",
    "metasd-figure5",
]


@pytest.mark.parametrize("name", REPLAYED)
def test_rows_are_decided_by_a_recording_that_is_large_enough(name: str, workspace: Workspace) -> None:
    told = row(EXPERIMENTS[name], workspace)
    assert told["missing"] == []
    assert told["sample"]["prompts"] >= 20
    counts = counted(told)
    assert counts["holds"] + counts["does not hold"] > counts["undecided"] - 4
    assert told["protocol"]["target"] == "smollm2-135m"
    assert told["figures"]["rows"]


def test_planted_specialists_are_found_at_home(workspace: Workspace) -> None:
    told = row(EXPERIMENTS["metasd-table5"], workspace)
    parts = {part["says"]: part["verdict"] for part in told["parts"]}
    assert parts["humaneval: meta-ucb is faster than draft:math:5"] == "holds"
    assert parts["meta-ucb is faster than all drafters"] == "holds"


def test_a_row_whose_recording_is_missing_is_undecided_and_says_what_it_needs(tmp_path: Path) -> None:
    told = row(EXPERIMENTS["metasd-table4"], Workspace(recordings=tmp_path))
    assert told["verdict"] == "undecided"
    assert "eagle:math" in told["missing"][0]
    told = row(EXPERIMENTS["banditspec-table2"], Workspace(recordings=tmp_path))
    assert told["missing"] == ["needs a run of the model (--with-model, best on a GPU)"]


def simulated(**speeds: float) -> dict[str, Any]:
    """A result of simulated serving in which methods have these speeds."""
    rng = np.random.default_rng(0)
    learned = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", "ada-bingreedy", "linucb", "lints")
    names = {**dict.fromkeys((*learned, "off", *(f"draft:{n}" for n in range(1, 6))), 1.0), **speeds}
    units = {name: {"seconds": (np.exp(rng.normal(0, 0.002, 5)) / speed).tolist()} for name, speed in names.items()}
    shares = {name: {"off": 0.9, "draft:1": 0.1} for name in names}
    return {"labels": [""] * 5, "units": units, "seeds": 5, "unit": "seeds", "shares": shares}


def test_nightjar_has_to_be_ahead_of_each_rival_beyond_chance() -> None:
    from reproduction import nightjar_claims as claims

    best, worst, same = simulated(nightjar=1.2), simulated(nightjar=0.8), simulated()
    for check in (claims.check_low, claims.check_high, claims.check_static, claims.check_contexts):
        told = check([best] * 4)
        assert {part.verdict for part in told.parts if "TETRIS" not in part.says} == {"holds"}
        assert {part.verdict for part in told.parts if "TETRIS" in part.says} <= {"undecided"}, "it was not run"
        assert "holds" not in {part.verdict for part in check([worst] * 4).parts}
        assert check([same] * 4).verdict != "holds"
    assert claims.check_lengths([simulated(**{"draft:2": 1.3})] * 3 + [simulated(off=1.2)]).verdict == "holds"


def test_a_figure_that_shows_an_input_is_not_tested() -> None:
    from reproduction import nightjar_claims as claims

    told = claims.check_arrivals([{"rates": [1.0, 2.0, 9.0], "requests": 120}])
    assert told.verdict == "not tested"
    assert "claims nothing" in told.untested


def test_turns_on_an_engine_are_units_of_a_row(tmp_path: Path) -> None:
    def turn(policy: str, number: int, tokens: int, **more: Any) -> dict[str, Any]:
        given = {"plan": "peers", "batch": 8, "profile": "fair", "policy": policy, "turn": number, "took": 1.0}
        kinds = {"4>4 0 full": (3, 7.0), "0>0 0 full": (1, 5.0)}
        return {**given, "tokens": tokens, "accepted": 10, "expected_accepted": 20.0, "kinds": kinds, **more}

    both = [turn("4", n, 90) for n in range(-1, 5)] + [turn("nightjar", n, 40) for n in range(5)]
    broken = [turn("dsd", 0, 90), turn("dsd", 1, 90, error="it ended")]
    elsewhere = [turn("off", 0, 10, batch=1), turn("off", 0, 10, profile="bad"), turn("none", 0, 10)]
    (tmp_path / "turns.json").write_text(json.dumps({"gpu": "a GPU", "turns": both + broken + elsewhere}))
    run, workspace = Turned(8, "turns.json"), Workspace(recordings=tmp_path / "recordings")
    told = workspace.result(run)
    assert {name: own["seconds"] for name, own in told["units"].items()} == {
        "draft:4": [0.01] * 5,
        "nightjar": [0.02] * 5,
    }
    assert told["shares"]["nightjar"] == {"draft:4": 0.75, "off": 0.25}
    assert "no turns" in workspace.result(Turned(32, "turns.json"))["missing"], "there is none with 32"
    assert "needs other.json" in workspace.result(Turned(8, "other.json"))["missing"]
    before = workspace.name(run)
    (tmp_path / "turns.json").write_text("{}")
    assert workspace.name(run) != before, "another file is another result"


def test_the_state_machine_with_cache_is_judged_where_it_is_recorded_what_repeats(tmp_path: Path) -> None:
    tasks = ("alpaca", "humaneval", "math_reasoning")
    recording(tmp_path / "large.jsonl.gz", 21, tasks=tasks, repeats=False)
    told = row(EXPERIMENTS["onthefly-figure3"], Workspace(recordings=tmp_path))
    about = [part for part in told["parts"] if "cache" in part["says"]]
    assert len(about) == 3
    assert {part["verdict"] for part in about} == {"undecided"}
    assert "state machine with cache" in told["premise"]
    recording(tmp_path / "small.jsonl.gz", 20, tasks=tasks, part="test")
    told = row(EXPERIMENTS["onthefly-figure3"], Workspace(recordings=tmp_path))
    assert told["sample"]["prompts"] == 60  # of the smaller one, that knows
    assert next(part["verdict"] for part in told["parts"] if part["says"].endswith("than cached-fsm")) != "undecided"
    assert told["premise"] == ""
