"""What a head's card says of its trees: from a recording to the policy that starts from it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wager.cli import app as cli
from wager.core.recording import RecordingWriter, Text, Track
from wager.drafters.cards import Card, apart, read_card
from wager.models import load_tokenizer
from wager.training.card import note_acceptance, note_trees, tree_acceptance, trees_told

ACCEPTED = [2, 0, 1, 0, 0, 1, 0]  # tokens of the tree at every entry of the text; rounds begin at 0, 3, 4 and 5


def recorded(label: str, trees: dict[str, list[int]]) -> Text:
    none = [0] * len(ACCEPTED)
    track = Track(none, none, none, [()] * len(none), cheap=False, trees=trees, head=True)
    return Text(label, 5, len(none) + 1, {"eagle:x": track})


def test_trees_are_judged_in_rounds_and_by_their_deepest() -> None:
    texts = [recorded("qa", {"2@4x16": ACCEPTED, "3@4x16": ACCEPTED}), recorded("rag", {"3@4x16": [0] * 7})]
    # two tokens, none, none, one; of the last two rounds the text's end leaves no third depth
    assert tree_acceptance(texts, "eagle:x") == {"4x16": {"qa": [0.5, 0.5, 0.0], "rag": [0.0, 0.0, 0.0]}}
    assert tree_acceptance(texts, "eagle:other") == {}


@pytest.mark.parametrize("depths", [(2, 3), (3, 2)])
def test_recordings_may_have_trees_of_several_depths(tmp_path: Path, head: Path, depths: tuple[int, int]) -> None:
    texts = [recorded("qa", {f"{depth}@4x16": [min(n, depth) for n in ACCEPTED]}) for depth in depths]
    assert tree_acceptance(texts, "eagle:x") == {"4x16": {"qa": [0.5, 0.5, 0.0]}}
    paths = [tmp_path / f"{number}.jsonl" for number in range(2)]
    for path, label, depth in zip(paths, ("qa", "rag"), depths, strict=True):
        with RecordingWriter(path, {"longest": 3}) as writer:
            writer.write(recorded(label, {f"{depth}@4x16": [min(n, depth) for n in ACCEPTED]}))
    done = run("train", "trees", head, *paths)
    assert done.exit_code == 0, done.exception
    assert "4x16: accepted at each depth 0.50, 0.50, mean over tasks" in done.stdout  # as policies read it


@pytest.fixture
def head(tmp_path: Path) -> Path:
    folder = tmp_path / "eagle-x"
    folder.mkdir()
    notes = {"kind": "eagle", "acceptance": {"qa": [0.6, 0.4], "rag": [0.8, 0.6]}}
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, "wager": notes}))
    (folder / "README.md").write_text("# eagle-x\n\nA head.\n")
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=True)


def test_a_recording_goes_onto_the_card_and_into_what_policies_start_from(tmp_path: Path, head: Path) -> None:
    recording = tmp_path / "trees.jsonl.gz"
    with RecordingWriter(recording, {"longest": 3, "command": "wager lab record"}) as writer:
        writer.write(recorded("qa", {"3@4x16": ACCEPTED}))
    for _ in range(2):  # a second run replaces the first's section
        done = run("train", "trees", head, recording)
        assert done.exit_code == 0, done.output
    assert "4x16: accepted at each depth 0.50, 0.50, 0.00" in done.stdout
    content = json.loads((head / "config.json").read_text())
    assert content["hidden_size"] == 8
    card = read_card(content["wager"])
    told = card.acceptance
    assert card.by_task == {"qa": 0.6, "rag": 0.8}
    assert told["@4x16"] == (0.5, 0.5, 0.0)
    assert told[""] == pytest.approx((0.7, 0.5))
    text = (head / "README.md").read_text()
    assert text.startswith("# eagle-x\n\nA head.\n")
    assert text.count("## Trees") == text.count("| 4x16 | qa | 0.50, 0.50, 0.00 |") == 1
    assert text.endswith(trees_told(head))
    assert "1 text, recorded by `wager lab record`" in text


def test_kinds_are_noted_from_one_half_of_the_prompts(tmp_path: Path, head: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lines = {
        "humaneval": [{"prompt": f"def add_{n}(a, b):\n    return a + b\n"} for n in range(8)],
        "xsum": [{"article": f"The ferry number {n} was late on Sunday, said the harbour."} for n in range(8)],
    }
    for task, records in lines.items():
        (data / f"{task}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    content = json.loads((head / "config.json").read_text())
    content["wager"] |= {"acceptance": {"humaneval": [0.7], "xsum": [0.4]}, "target": "smollm2-135m"}
    (head / "config.json").write_text(json.dumps(content))
    done = run("train", "kinds", head, "--data", data)
    assert done.exit_code == 0, done.output
    assert "2 kinds, of 8 prompts to smollm2-135m: humaneval, xsum" in done.stdout
    card = read_card(json.loads((head / "config.json").read_text())["wager"])
    assert card.told_by is not None
    tokenizer = load_tokenizer("smollm2-135m")
    for task, prompt in (
        ("humaneval", "def multiply(a, b):\n    return"),
        ("xsum", "The ferry was late, said the mayor."),
    ):
        chances = card.told_by.chances(tokenizer(prompt).input_ids)
        assert chances[task] > 0.6
    # a task that was judged since is taken up
    bugs = [{"description": f"Adds {n}.", "buggy_code": f"def add(a): return a - {n}"} for n in range(8)]
    (data / "debug_bench.jsonl").write_text("".join(json.dumps(record) + "\n" for record in bugs))
    note_acceptance(head, {task: {"acceptance": [0.5]} for task in ("humaneval", "xsum", "debug_bench")})
    done = run("train", "kinds", head, "--data", data)
    assert "3 kinds, of 12 prompts" in done.stdout, done.output


@pytest.mark.parametrize(("content", "said"), [
    ('{"wager": {"acceptance": {"qa": [0.6]}}}', "no card that tells tasks apart"),
    ('{"wager": {"acceptance": {"qa": [0.6], "rag": [0.5]}}}', "names no target"),
    ("[]", "config.json cannot be read: it holds no JSON object"),
    ("{bad", "config.json cannot be read: "),
    (None, "holds no drafter"),
])  # fmt: skip
def test_kinds_of_what_has_no_card_are_refused(content: str | None, said: str, head: Path) -> None:
    path = head / "config.json"
    path.write_text(content) if content is not None else path.unlink()
    refused = run("train", "kinds", head)
    assert isinstance(refused.exception, ValueError)  # one sentence and exit code 2, as every ValueError of a command
    assert said in str(refused.exception)
    assert content is None or path.read_text() == content


def test_a_recording_without_this_heads_trees_is_refused_and_nothing_written(tmp_path: Path, head: Path) -> None:
    recording, before = tmp_path / "chains.jsonl.gz", (head / "config.json").read_text()
    with RecordingWriter(recording, {"longest": 3}) as writer:
        writer.write(recorded("qa", {}))
    refused = run("train", "trees", head, recording)
    assert isinstance(refused.exception, ValueError)  # one sentence and exit code 2, as every ValueError of a command
    assert "no trees of eagle:x were recorded" in str(refused.exception)
    assert (head / "config.json").read_text() == before
    assert isinstance(run("train", "trees", tmp_path, recording).exception, ValueError)


@pytest.mark.parametrize(
    "notes", [None, {"trees": [1]}, {"trees": {"4x16": {"qa": ["many"]}}}, {"trees": {"4x16": {}}}]
)
def test_notes_that_are_no_shares_tell_nothing(notes: object) -> None:
    assert read_card(notes) == Card()


@pytest.mark.parametrize(("shares", "expected"), [
    ([{"qa": 0.5, "rag": 0.7}, {"qa": 0.4, "rag": 0.6064}], 0.0),  # one better everywhere, by the same log odds
    ([{"qa": 0.5, "rag": 0.5}, {"qa": 0.7311, "rag": 0.2689}], 0.5 * 2.0**2 / 2),  # each the right one somewhere
    ([{"qa": 0.5, "rag": 0.5}, {"xsum": 0.5, "rag": 0.5}], None),  # one task in common
    ([{"qa": 0.5, "rag": 0.5}, {}], None),
    ([{"qa": 1.0, "rag": 0.0}, {"qa": 1.0, "rag": 0.0}], 0.0),
])  # fmt: skip
def test_cards_tell_how_far_apart_drafters_are_in_one_kind_of_text(
    shares: list[dict[str, float]], expected: float | None
) -> None:
    found = apart([Card(by_task=by_task) for by_task in shares])
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_the_shipped_heads_are_nearly_equal_and_specialised_ones_are_not() -> None:
    """The figures of docs/auto.md."""
    checkout = Path(__file__).parents[2]

    def card(folder: str, name: str) -> Card:
        about = checkout / folder / "smollm2-135m" / f"eagle-{name}" / "config.json"
        return read_card(json.loads(about.read_text())["wager"])

    special = ("code", "math", "translation", "summarization", "chat")
    general = card("drafters", "ofa")
    assert apart([general, *(card("drafters", name) for name in special)]) == pytest.approx(0.002, abs=5e-4)
    assert apart([general, *(card("reproduction/drafters", name) for name in special)]) == pytest.approx(0.39, abs=5e-3)


def test_a_head_without_a_card_gets_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    note_trees(tmp_path, {"4x16": {"qa": [0.5]}}, "texts")
    assert (tmp_path / "README.md").read_text().startswith(f"# {tmp_path.name}\n\n## Trees")
