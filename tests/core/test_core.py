"""Arm, Context, Round, rewards and traces."""

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import rounds

from wager.core import OFF, REWARDS, Arm, Context, Hint, PromptFeatures, Request, Round, TraceError, Tree, files, trace


@pytest.mark.parametrize("text", ["off", "suffix:4", "eagle:ofa:6", "eagle:6@4x20"])
def test_an_arm_is_read_back_from_how_it_is_written(text: str) -> None:
    assert str(Arm.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "suffix", "suffix:", ":4", "suffix:-1", "suffix:0", "off:3", "e:4@3", "e:9@2x4", "a b:2", "off@1x1"]
)
def test_what_is_not_an_arm_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Arm.parse(text)


def test_values_are_frozen_and_slotted() -> None:
    for value in (OFF, Context((OFF,)), Round(OFF, 0, 0, 1), Tree(2, 4), Hint()):
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            value.length = 3  # type: ignore[misc,union-attr]
        assert not hasattr(value, "__dict__")


FOUR = Arm("suffix", 4)


IMPOSSIBLE = {
    "drafted": (5,), "accepted": (5, -1), "emitted": (0, 4), "batch": (0,), "rejected": (2,), "lag": (-1,),
    "draft_seconds": (-1.0,), "verify_seconds": (float("nan"),), "lag_seconds": (float("inf"),), "repeated": (4,),
    "overlap": ((0.5, 1.5), (0.5,) * 5, (float("nan"), 0.5)),
}  # fmt: skip


@pytest.mark.parametrize(("field", "wrong"), [(field, x) for field, values in IMPOSSIBLE.items() for x in values])
def test_a_round_that_cannot_be_is_refused(field: str, wrong: object) -> None:
    fine = {"drafted": 4, "accepted": 2, "emitted": 3}
    Round(FOUR, **fine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r".+"):
        Round(FOUR, **{**fine, field: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Hint(confidence=(0.5, float("nan"))),
        lambda: Hint(match=-1),
        lambda: PromptFeatures(0, 2.0),
        lambda: PromptFeatures(5, 0.5),
        lambda: PromptFeatures(5, 2.0, (float("nan"),)),
        lambda: Context(()),
        lambda: Context((OFF,), batch=0),
        lambda: Context((OFF,), lag={"a": -1}),
        lambda: Arm("off", 0, Tree(1, 1)),
    ],
)
def test_what_cannot_be_known_before_a_round_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        wrong()


@pytest.mark.parametrize(
    "body", ['"drafted":2.5,"accepted":1', '"drafted":2,"accepted":1,"draft_seconds":1' + "0" * 400]
)
def test_a_record_with_impossible_numbers_is_refused(body: str) -> None:
    with pytest.raises(TraceError, match="not a trace record"):
        trace.decode('{"round":{"arm":"a:4","emitted":2,' + body + "}}")


def test_rejections_follow_from_the_counts_of_one_request() -> None:
    assert Round(FOUR, 4, 2, 3).rejected == 1
    assert Round(FOUR, 4, 4, 5).rejected == 0
    assert Round(FOUR, 0, 0, 1).rejected == 0  # nothing was drafted, nothing rejected
    tree = Arm("eagle", 3, Tree(2, 8))
    assert Round(tree, 8, 3, 4).rejected == 0  # a whole path was accepted
    assert Round(tree, 8, 2, 3).rejected == 1


def test_rewards_are_what_the_papers_define() -> None:
    outcome = Round(FOUR, 4, 2, 3, draft_seconds=0.1, verify_seconds=0.3, lag_seconds=0.1, overlap=(0.9, 0.8, 0.1, 0.2))
    value = {name: reward.of(outcome, 4) for name, reward in REWARDS.items()}
    assert value["tokens"] == 3  # BanditSpec's Y: accepted plus bonus
    assert value["be"] == 2 / 4  # MetaSD: N_acc / N_max
    assert value["bd"] == pytest.approx((0.9 + 0.8 + 0.1 + 0.2) / 4)  # MetaSD eq. 4, also after the rejection
    assert value["acceptance"] == 2 / 4
    assert value["goodput"] == pytest.approx(3 / 0.5)
    assert REWARDS["be"].of(outcome, 8) == 2 / 8
    assert REWARDS["bd"].of(Round(FOUR, 4, 2, 3), 4) == 0.5  # no divergence known: BE stands in


@given(st.lists(rounds() | st.builds(Request, label=st.text(max_size=5)), max_size=8))
def test_a_trace_gives_back_what_was_written(records: list[Request | Round]) -> None:
    assert [trace.decode(json.dumps(trace.encode(record))) for record in records] == records


def _write(path: Path, records: list[Request | Round]) -> Path:
    with trace.TraceWriter(path, {"model": "none"}) as writer:
        for record in records:
            writer.write(record)
    return path


RECORDS = [
    Request("code", PromptFeatures(12, 3.5, (0.1, 0.2))),
    Round(FOUR, 4, 2, 3, others={"lookup": 3}, overlap=(0.5, 0.25), repeated=1),
    Round(OFF, 0, 0, 1, verify_seconds=0.25),
]


def test_a_trace_file_is_read_back(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", list(RECORDS))
    assert list(trace.read(path)) == RECORDS
    assert trace.read_meta(path) == {"model": "none"}


def test_a_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", list(RECORDS))
    whole = path.read_text()
    for cut in range(1, len(whole.splitlines()[-1])):
        path.write_text(whole[: -cut - 1])
        assert list(trace.read(path)) == RECORDS[:2]
    path.write_text(whole[:-1])  # only the newline is missing
    assert list(trace.read(path)) == RECORDS


def test_what_is_no_trace_of_this_version_and_a_broken_line_are_refused_with_where(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    later = json.dumps({"format": "wager-trace", "version": 99}) + "\n"
    for content, says in (("hello\n", "not a wager trace"), ("\0\1\n", "not a wager trace"), (later, "version 99")):
        path.write_text(content)
        with pytest.raises(TraceError, match=says):
            list(trace.read(path))
    _write(tmp_path / "u.jsonl", list(RECORDS))
    lines = (tmp_path / "u.jsonl").read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"round": {"arm": "suffix:4"}}', *lines[1:]]) + "\n")
    with pytest.raises(TraceError, match="line 2"):
        list(trace.read(path))


def test_an_arm_with_something_merged_is_written_and_read_back() -> None:
    arm = Arm.parse("eagle:ofa:4@4x16+suffix:8")
    assert arm == Arm("eagle:ofa", 4, Tree(4, 16), Arm("suffix", 8))
    assert str(arm) == "eagle:ofa:4@4x16+suffix:8"
    assert (arm.budget, arm.deepest, arm.label) == (24, 8, "eagle:ofa:4@4x16+suffix")
    assert arm.alone == Arm.parse("eagle:ofa:4@4x16") == arm.alone.alone
    assert (arm.alone.deepest, arm.alone.label) == (4, "eagle:ofa:4@4x16")
    assert Arm.parse("suffix:2+prompt-lookup:3").budget == 5


@pytest.mark.parametrize(
    "text",
    ["suffix:4+", "+suffix:4", "suffix:4+suffix:2", "off+suffix:2", "suffix:4+off", "a:1+b:2+c:3", "a:1+b:4@2x4"],
)
def test_what_cannot_be_merged_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"merged|not an arm"):
        Arm.parse(text)


def test_a_round_tells_what_the_draft_alone_would_have_brought() -> None:
    arm = Arm("head", 3, None, Arm("suffix", 6))
    won = Round(arm, 9, 5, 6, unmerged=2)
    assert (won.own, won.accepted, won.rejected) == (2, 5, 1)
    assert Round(arm, 9, 3, 4, unmerged=3).rejected == 0
    assert Round(arm.alone, 3, 2, 3).own == 2
    for wrong in ({"unmerged": 4}, {"unmerged": 6}, {"unmerged": -2}):
        with pytest.raises(ValueError, match="own ones"):
            Round(arm, 9, 5, 6, **wrong)
    with pytest.raises(ValueError, match="own ones"):
        Round(arm.alone, 3, 2, 3, unmerged=2)
    with pytest.raises(ValueError, match="cannot come from"):
        Round(arm, 9, 7, 8, unmerged=2)


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        files.write_text(tmp_path / "none" / "page.html", "text")
    assert refused.value.filename == str(tmp_path / "none" / "page.html")
