"""`wager tune`: it stops on time, plays whole prompts, says what to do, and leaves a memory that generate finds."""

import itertools
import json
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from commands import Wager
from letters import Letters, writer
from rich.console import Console
from summaries import summary_of

from wager.bench import verdict, workloads
from wager.bench.methods import TextGenerator
from wager.bench.runs import Run, TokenizedPrompt
from wager.bench.summary import Answer
from wager.bench.workloads import Prompt
from wager.cli import tune
from wager.cli.options import Options
from wager.cli.session import open_session
from wager.decoding import calibrate
from wager.models import calibration, packed

pytestmark = pytest.mark.usefixtures("one_thread")


def slow(name: str, seconds: list[float], spent: list[float]) -> TextGenerator:
    """A method whose answers take these seconds, the last of them for good."""
    left = iter(seconds)

    def run(ids: torch.Tensor, count: int) -> Answer:
        spent.append(next(left, seconds[-1]))
        return Answer([1] * count, 1.0, count)

    return TextGenerator(name, run)


def asked(count: int) -> list[TokenizedPrompt]:
    return [TokenizedPrompt(f"t-{n}", Prompt("t", ""), torch.ones(1, 3)) for n in range(count)]


def play(ends: float, *seconds: list[float], prompts: int = 20) -> tuple[set[tuple[str, str]], int, float]:
    spent = [0.0]  # time passes only when a method plays
    methods = [slow(f"m{n}", each, spent) for n, each in enumerate(seconds)]
    run = Run([], asked(prompts), (), max_tokens=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "monotonic", lambda: sum(spent))
        played = tune.play(run, methods, ends, lambda n, left: None)
    return set(run.answers), played, sum(spent)


def test_it_plays_whole_prompts_and_stops_before_the_time_is_up() -> None:
    answers, played, now = play(35.0, [2.0], [3.0])
    assert played == 7
    assert now == 35.0
    assert answers == {(f"t-{n}", method) for n in range(7) for method in ("m0", "m1")}
    assert play(34.9, [2.0], [3.0])[1:] == (6, 30.0), "no prompt is begun that would not be over in time"
    assert play(1000.0, [2.0], [3.0])[1:] == (20, 100.0), "every prompt once"
    played, now = play(20.0, [1.0, 1.0, 30.0], [1.0])[1:]
    assert (played, now <= 35.0) == (2, True), "one that takes longer than those before it does not count"
    assert play(0.5, [1.0], [1.0])[1:] == (1, 2.0), "the first prompt is played to its end"
    assert play(0.0, [1.0], [1.0])[1:] == (1, 2.0)
    assert play(1.5, [1.0], [1.0])[1] == 1, "the last answer was begun in time, and is not thrown away"


def test_answers_are_as_long_as_the_time_allows() -> None:
    assert tune.answer_tokens(0.04, 6, 110.0) == 45
    assert tune.answer_tokens(0.0001, 6, 110.0) == tune.MOST
    assert tune.answer_tokens(5.0, 6, 110.0) == tune.FEWEST


def test_every_drafter_has_an_arm_of_its_own() -> None:
    specs = ("suffix", "prompt-lookup", "retrieval=x", "eagle:mine=y", "draft-model=z")
    arms = [arm for spec in specs for arm in tune.fixed_arms(spec)]
    assert arms == ["suffix:4", "suffix:8", "prompt-lookup:4", "retrieval:4", "eagle:mine:3", "draft-model:3"]


def test_prompts_come_one_a_line_or_as_json(tmp_path: Path) -> None:
    plain, records = tmp_path / "mine.txt", tmp_path / "mine.jsonl"
    plain.write_text("Say it.\n\n  Say more.  \n")
    assert workloads.read_file(plain) == [Prompt("mine", "Say it."), Prompt("mine", "Say more.")]
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say it."}]
    lines = [json.dumps({"prompt": "It\u2028.", "task": "chat"}, ensure_ascii=False), json.dumps({"messages": talk})]
    records.write_text("\n".join([*lines, json.dumps({"turns": ["first", "second"]})]) + "\n\n", encoding="utf-8")
    first, second, third = workloads.read_file(records)
    assert first == Prompt("chat", "It\u2028.")
    assert second.messages == talk
    assert third == Prompt("mine", "first")
    (tmp_path / "named.txt").write_text(lines[0], encoding="utf-8")
    assert workloads.read_file(tmp_path / "named.txt") == [first], "what begins like JSON lines is read as such"


def test_a_file_without_prompts_is_refused_and_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    path, answer = tmp_path / "p.jsonl", '{"messages": [{"role": "assistant", "content": "I said it."}]}'
    for line in ("[]", "{}", '{"prompt": 3}', '{"prompt": " "}', '{"turns": []}', answer, '{"messages": ["no"]}', "{"):
        path.write_text('{"prompt": "Say it."}\n' + line)
        with pytest.raises(ValueError, match=r"p\.jsonl, line 2: not a JSON object with a \"prompt\""):
            workloads.read_file(path)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="holds no prompt"):
        workloads.read_file(tmp_path / "empty.txt")
    (tmp_path / "picture.txt").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ValueError, match="is not text"):
        workloads.read_file(tmp_path / "picture.txt")


@pytest.fixture
def run(calm: None, cli: Wager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wager:
    """`wager tune` with a tiny model and a cache of the test's own."""
    model = writer()
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, Letters()))
    monkeypatch.setattr("wager.cli.session.check_name", str)
    monkeypatch.setattr("wager.decoding.state.cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(tune, "MOST", 24)
    (tmp_path / "mine.txt").write_text("".join(f"Say it {n}, say it {n}, say it again.\n" for n in range(3)))
    return lambda *words: cli("tune", *words)


def test_it_says_what_to_do_and_generate_starts_from_what_it_learned(run: Any, tmp_path: Path) -> None:
    assert not open_session(Options(model="tiny"), Console(stderr=True)).remembered
    code, out, err = run("tiny", "--prompts", "mine.txt")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("On this machine `auto` ran ")  # three prompts are too few for an answer
    assert "Measured on 3 of 3 prompts" in out
    assert out.index("Measured on") < out.index("tokens/s"), "the verdict comes first"
    assert 'wager generate "…" --model tiny' in out
    assert "Timed on this machine, and kept in " in out
    assert "  rounds.json: verifying 1 " in out
    assert [path.suffix for path in (tmp_path / "cache" / "state").iterdir()] == [".json"]
    assert open_session(Options(model="tiny"), Console(stderr=True)).remembered


def test_what_was_timed_is_said_with_the_file_it_is_kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path))
    (tmp_path / "packed.json").write_text("{}")
    assert (tune.ROUNDS, tune.PRODUCTS, tune.PLAIN) == (calibrate.FILE, calibration.FILE, packed.PLAIN)
    kept = {"verify_seconds": {"1": 0.0301, "9": 0.045}, "draft_seconds": {"eagle:ofa:8": 0.012}}
    said = tune.timed_words({**kept, "products": {"qkv": ["plain", "packed"], "out": ["plain", "plain"]}})
    rounds = "  rounds.json: verifying 1 30.1 ms, verifying 9 45.0 ms, drafting eagle:ofa:8 12.0 ms"
    missing = " (in use, but not saved: the timing is incomplete, or the folder cannot be written)"
    assert said[1:] == [rounds + missing, "  packed.json: packed kernels for qkv"]
    (tmp_path / "rounds.json").write_text("{}")
    assert tune.timed_words(kept | {"products": {}})[1:] == [rounds]
    assert tune.timed_words({"verify_seconds": {}, "draft_seconds": {}, "products": {}}) == []


def test_every_head_that_lies_ready_is_played_alone_and_json_holds_every_figure(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        heads.save(tmp_path / "drafters" / "elsewhere" / f"eagle-{name}", writer())
    monkeypatch.setenv("WAGER_DRAFTERS", str(tmp_path / "drafters"))
    code, out, err = run("tiny", "--prompts", "mine.txt", "--drafters", "suffix,eagle:*", "--json")
    assert code == 0, err
    content = json.loads(out)
    assert content["prompts"] == {"given": 3, "played": 3}
    assert content["verdict"][0].startswith("On this machine `auto` ran ")
    assert "1" in content["timed"]["verify_seconds"]
    assert [row["method"] for row in content["summary"]["tasks"][0]["methods"]] == [
        "transformers", "off", "suffix:4", "suffix:8", "eagle:one:3", "eagle:two:3", "auto",
    ]  # fmt: skip
    assert content["summary"]["differences"]["unexplained"] == 0


def test_nothing_is_concluded_on_a_machine_that_is_busy(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wager.bench.verdict.NOISY", 0.0)
    monkeypatch.setattr("wager.bench.verdict.TOO_NOISY", 0.0)
    code, out, err = run("tiny", "--prompts", "mine.txt", "--drafters", "suffix", "--json")
    assert code == 0, err
    said = json.loads(out)["verdict"]
    assert "something else was using this machine, so no conclusion is possible" in said[0]
    assert not {*said} & {*tune.ANSWERS.values()}


@pytest.mark.parametrize(
    ("speeds", "noise", "said"),
    [
        ({"suffix:4": 1.3, "auto": 1.4}, 0.02, tune.ANSWERS[verdict.FASTER]),
        ({"suffix:4": 0.7, "auto": 0.8}, 0.02, tune.ANSWERS[verdict.SLOWER]),
        ({"suffix:4": 2.0, "auto": 0.9}, 0.02, tune.FIXED_ONLY),
        ({"suffix:4": 1.3, "auto": 0.7}, 0.8, tune.UNCLEAR),
    ],
)
def test_the_answer_is_about_speculation_and_not_about_wagers_forward(
    speeds: dict[str, float], noise: float, said: str
) -> None:
    summary = summary_of({"transformers": 0.5, "off": 1.0, **speeds}, noise=noise)  # off alone is twice transformers
    assert tune.answer({**summary, "unsteady": 1.0}) == [said]


def test_a_model_that_holds_too_little_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = writer()
    small.config.max_position_embeddings = 30
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (small, Letters()))
    code, _, err = run("tiny", "--prompts", "mine.txt")
    assert (code, "tiny holds 30 tokens: too few" in err) == (2, True)


def test_preparing_is_not_charged(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    passed = [0.0]  # time passes only while the model is prepared: far more than there is to measure in
    monkeypatch.setattr(tune, "monotonic", lambda: passed[0] + 1e-6 * next(calls))
    prepare = tune.open_session

    def slowly(*given: Any) -> Any:
        passed[0] += 3600.0
        return prepare(*given)

    monkeypatch.setattr(tune, "open_session", slowly)
    code, out, err = run("tiny", "--prompts", "mine.txt", "--drafters", "suffix")
    assert (code, "Measured on 3 of 3 prompts" in out) == (0, True), err


def test_so_little_time_that_one_prompt_does_not_fit_still_gives_an_answer(run: Any) -> None:
    code, out, err = run("tiny", "--prompts", "mine.txt", "--drafters", "suffix", "--minutes", "0.0001")
    assert code == 0, err
    assert "Measured on 1 of 3 prompts" in out
    assert out.count("too few prompts") == 1
    lines = [line for line in err.splitlines() if "…" in line]
    assert lines[:3] == ["loading tiny …", "preparing tiny …", "preparing the methods …"]
    assert lines[3].startswith("warming up transformers, 1 of ")
    assert lines[-1] == "prompt 1, 0 s left …"


def test_bad_input_is_one_sentence(run: Any) -> None:
    for words, said in {
        ("tiny", "--minutes", "0"): "--minutes is above 0",
        ("tiny", "--prompts", "nowhere.txt"): "nowhere.txt",
        ("tiny", "--drafters", "nobody"): "unknown drafter 'nobody'",
    }.items():
        code, _, err = run(*words)
        assert code == 2
        assert said in err
        assert "Traceback" not in err
