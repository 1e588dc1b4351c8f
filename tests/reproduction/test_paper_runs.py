"""The runs behind the experiments: recorded texts, simulations, and real rounds of a tiny model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from letters import Letters, writer

from reproduction import recorded
from reproduction.analyses import Batched, BestShare, DraftAll, Rewards, Routed, Stopped, reward_statistics
from reproduction.comparison import Comparison
from reproduction.engine import Generated
from reproduction.measured import Memory
from reproduction.perturb import lengthened, rephrased
from reproduction.recorded import Recorded, Replayed
from reproduction.simulated import Served
from reproduction.workspace import Workspace
from wager.core.recording import Text, Track


def text(label: str, tokens: int = 40) -> Text:
    """One whose drafters a and b agree with it in stretches of 3 and of 0 or 1 tokens."""
    tracks = {}
    for name, stretch in (("draft:ofa", 4), ("draft:code", 2)):
        agreed = [min(stretch - 1 - at % stretch, tokens - 1 - at) for at in range(tokens - 1)]
        sure = [tuple(0.9 if i < agreed[at] else 0.2 for i in range(5)) for at in range(tokens - 1)]
        overlap = [0.8 if name == "draft:ofa" else 0.4] * (tokens - 1)
        tracks[name] = Track([5] * (tokens - 1), agreed, [0] * (tokens - 1), sure, overlap, cheap=False)
    return Text(label, 10, tokens, tracks)


class Kept(Workspace):
    """Workspace that have the recording already."""

    def result(self, run: Any) -> dict[str, Any]:
        if not isinstance(run, Recorded):
            return super().result(run)
        texts = [text("humaneval"), text("qa"), text("humaneval", 30), text("qa", 30)]
        body = {"texts": [asdict(one) for one in texts], "routes": ["code", "chat", "code", "chat"]}
        return dict(json.loads(json.dumps(body)))


RECORDING = Recorded(("humaneval", "qa"), 2, 40, ("draft:ofa", "draft:code"))
BOTH = ("draft:ofa", "draft:code")


def test_a_replay_gives_tokens_a_round_and_times_plain_decoding() -> None:
    result = Kept().result(Replayed(RECORDING, BOTH, (3,), ("meta-ucb", "random"), cost="h200", seeds=1))
    made = Comparison(result)
    assert made.speed("off") == pytest.approx(1.0, abs=0.02)
    assert made.mat("draft:ofa:3") > made.mat("meta-ucb") > made.mat("random") > made.mat("draft:code:3") > 1
    assert set(made.tasks) == {"humaneval", "qa"}
    assert made.arms == ["draft:ofa:3", "draft:code:3"]


def test_what_recordings_tell_beside_replay() -> None:
    workspace = Kept()
    rewards = workspace.result(Rewards(RECORDING, BOTH, 3, ("qa",)))["drafters"]
    assert rewards["draft:ofa"]["bd"]["mean"] == pytest.approx(0.8)
    assert rewards["draft:ofa"]["bd"]["zeros"] == 0
    assert rewards["draft:code"]["be"]["mean"] < rewards["draft:ofa"]["be"]["mean"]
    together = Comparison(workspace.result(DraftAll(RECORDING, BOTH, 3, "h200")))
    alone = Comparison(workspace.result(Replayed(RECORDING, BOTH, (3,), (), cost="h200", seeds=1)))
    assert together.mat("all drafters") >= alone.mat("draft:ofa:3")
    stopped = workspace.result(Stopped(RECORDING, "draft:ofa", 5, ("analytical",), seeds=1))
    assert 0.2 < stopped["threshold"] <= 0.9
    assert Comparison(stopped).speed("trained to stop") > 1
    routed = Comparison(workspace.result(Routed(RECORDING, BOTH, "draft:ofa", 3, ("meta-ucb",), seeds=1)))
    assert routed.mat("router", "qa") > routed.mat("router", "humaneval")  # it takes the worse drafter for code
    share = workspace.result(BestShare(RECORDING, BOTH, 3, ("meta-ucb", "random"), ("qa",), seeds=2))["policies"]
    assert share["meta-ucb"]["all"] > share["random"]["all"]
    batched = workspace.result(Batched(RECORDING, BOTH, "draft:ofa", 3, (1, 2), "meta-ucb", ()))["batches"]
    assert set(batched) == {"1", "2"}
    assert batched["2"]["one for all"] >= batched["2"]["mixed tasks"]


def test_rewards_are_of_the_positions_that_have_a_whole_draft_left() -> None:
    told = reward_statistics([text("a", 20)], "draft:ofa", 3)
    assert told["count"] == 16
    assert told["be"]["mean"] == pytest.approx(0.5)


def test_results_of_runs_are_kept_by_their_settings(tmp_path: Path) -> None:
    run = Served((1,), 600, ("nightjar",), lengths=(1, 2))
    first = Workspace(keep=tmp_path).result(run)
    assert {"off", "draft:1", "draft:2", "nightjar"} == set(first["methods"])
    path = next(tmp_path.glob("served-*.json"))
    path.write_text(json.dumps({**first, "kept": True}))
    assert Workspace(keep=tmp_path).result(run)["kept"]
    assert "kept" not in Workspace(keep=tmp_path, again=True).result(run)
    assert len(list(tmp_path.iterdir())) == 1


def test_rephrasing_changes_the_instruction_and_keeps_the_question() -> None:
    asked = "Translate German to English: Der Hafen war still."
    said = {rephrased("translation", asked, seed) for seed in range(20)}
    assert len(said) > 1
    assert asked not in said
    assert all(one.endswith("Der Hafen war still.") for one in said)
    assert rephrased("qa", "Who was it?", 3) == rephrased("qa", "Who was it?", 3)
    assert all("Who was it?" in rephrased("qa", "Who was it?", seed) for seed in range(9))
    code = "Complete this Python function. Write out the whole function.\n\ndef f(x):\n    "
    assert all("def f(x)" in one != code for one in (rephrased("humaneval", code, seed) for seed in range(5)))


def test_prompts_are_joined_to_long_ones() -> None:
    long = lengthened(["Translate to English: ein Hund", "Translate to English: eine Katze und mehr"], 4)
    assert long == "Translate to English: ein Hund eine Katze und mehr"
    assert lengthened(["no colon here"], 3).endswith("no colon here")


def test_costs_are_refused_by_a_wrong_name() -> None:
    with pytest.raises(ValueError, match="choose from cpu, h200, larger"):
        recorded.costs.table("abacus")
    h200, larger = (recorded.costs.table(name).verify(1) for name in ("h200", "larger"))
    assert larger == pytest.approx(10 * h200)


@pytest.fixture
def workspace(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A tiny model, and no data folder."""
    monkeypatch.delenv("WAGER_DATA", raising=False)
    return Workspace(_loaded=(writer(), Letters()))


def test_real_rounds_are_kept_with_their_arms(workspace: Workspace) -> None:
    arms = ("suffix:2", "prompt-lookup:3")
    run = Generated(
        ("qa", "humaneval"), 1, 24, arms, ("ucbspec",), prompt=60, rephrase=True, route=True, alone=arms[:1]
    )
    result = json.loads(json.dumps(run(workspace)))
    made = Comparison(result)
    assert list(made.cells) == ["off", "suffix:2", "ucbspec", "router"]
    assert made.tasks in (["qa", "humaneval"], ["humaneval", "qa"])
    answers = result["rounds"]["ucbspec"]
    assert {answer["task"] for answer in answers} == {"qa", "humaneval"}
    for answer in answers:
        assert sum(r[3] for r in answer["rounds"]) == 23  # the first token comes with the prompt's own forward
        assert {r[0] for r in answer["rounds"]} <= {"off", *arms}
    assert made.mat("off") == 1.0
    assert made.speed("off", "qa") == 1.0


def test_texts_are_recorded_with_the_domain_a_router_takes_them_for(workspace: Workspace) -> None:
    run = Recorded(("qa", "humaneval"), 1, 16, ("suffix", recorded.STORE), longest=3, prompt=60, route=True)
    result = json.loads(json.dumps(run(workspace)))
    assert [one["label"] for one in result["texts"]] == ["qa", "humaneval"]
    assert set(result["routes"]) <= set(recorded.DOMAIN.values())
    assert [list(one.tracks) for one in recorded.texts_of(result)] == [["suffix"], ["suffix"]]  # no corpora: no REST


def test_memory_is_compared_with_the_first_arm_alone(workspace: Workspace) -> None:
    result = Memory(("qa",), 1, 12, "suffix:2", ("prompt-lookup:2",), ("ucbspec",))(workspace)
    assert list(result["methods"]) == ["suffix:2", "ucbspec"]
    assert all(cell["bytes"] > 0 and cell["read"] > 0 for cell in result["methods"].values())


def test_without_data_prompts_come_with_wager(workspace: Workspace) -> None:
    chosen = workspace.prompts(("humaneval", "qa", "math_then_code"), 2)
    assert [p.task for p in chosen] == ["humaneval", "humaneval", "qa", "qa", "math_then_code", "math_then_code"]
    assert all(p.text for p in chosen)
    assert workspace.folder("corpora") is None
