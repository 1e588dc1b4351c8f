"""A run: a killed one is resumed as if nothing had happened, and its folder holds one run only."""

import gc
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from letters import Letters

from wager.bench.methods import Target, arms_of, parse_methods
from wager.bench.run_folder import ANSWERS, RUN, STATE, read
from wager.bench.runs import Run, TokenizedPrompt, tokenize
from wager.bench.summary import Answer
from wager.bench.workloads import Prompt

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = 10
# Policies that never look at seconds: what they play is the same in every run.
METHODS = "off,suffix:2,prompt-lookup:3,ucbspec,exp3spec"
PROMPTS = [Prompt(task, f"{task} {n}: say it again, say it again") for task in ("qa", "rag") for n in range(2)]


class Killed(BaseException):
    """As a kill would end it: nothing in between can catch it."""


def play(folder: Path, model: Any, *, kill_at: int | None = None, methods: str = METHODS) -> Run:
    """A run of the prompts; it is killed within an answer where that is wanted."""
    tokenizer = Letters()
    named = parse_methods(methods)
    asked = tokenize(PROMPTS, tokenizer, 64, "cpu")
    arms = arms_of(named, model)
    with Run(named, asked, arms, folder, suite="test", seed=1, max_tokens=TOKENS) as run:
        target = Target(model, tokenizer, tokens=100, seed=1)
        made = [method.make(target, arms) for method in named]
        if kill_at is not None:
            _kill_within(made, kill_at + len(made))  # all warm up first
        for _ in run.play(made, tokenizer=tokenizer):
            pass
        run.save(run.summary(), complete=True)
    return run


def _kill_within(methods: Sequence[Any], call: int) -> None:
    calls = 0

    def dying(run: Any) -> Any:
        def wrapped(ids: Any, count: int) -> Answer:
            nonlocal calls
            calls += 1
            if calls > call:
                run(ids, count - 3)  # the policy has learned, and nobody will know
                raise Killed
            return run(ids, count)

        return wrapped

    for method in methods:
        method.run = dying(method.run)


def outline(run: Run) -> list[tuple[Any, ...]]:
    """Everything about the answers that does not depend on how long things took."""
    return sorted(
        (*key, answer.tokens, [(str(r.arm), r.drafted, r.accepted, r.emitted) for r in answer.rounds])
        for key, answer in run.answers.items()
    )


@pytest.fixture(scope="module")
def undisturbed(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(tmp_path_factory.mktemp("whole"), model)


@pytest.mark.parametrize("kill_at", [0, 11, 23])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    kill_at: int, model: Any, undisturbed: Run, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, model, kill_at=kill_at)
    assert not read(tmp_path / RUN)["complete"]
    kept = (tmp_path / ANSWERS).read_text() if kill_at else ""
    assert kept.count("\n") == kill_at
    again = play(tmp_path, model)
    assert outline(again) == outline(undisturbed)
    assert (tmp_path / ANSWERS).read_text().startswith(kept), "nothing that was there is measured again"
    content = read(tmp_path / RUN)
    assert content["complete"]
    assert set(Counter((a["prompt"], a["method"]) for a in content["answers"]).values()) == {1}
    assert len(content["answers"]) == 6 * 4
    assert not (tmp_path / STATE).exists()


def test_a_last_line_cut_in_the_middle_is_measured_again(model: Any, undisturbed: Run, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        play(tmp_path, model, kill_at=15)
    path = tmp_path / ANSWERS
    path.write_bytes(path.read_bytes()[:-40])
    again = play(tmp_path, model)
    assert outline(again) == outline(undisturbed)
    assert len(path.read_text().splitlines()) == 24


@pytest.mark.parametrize("forgets", ["policy", "drafters"])
def test_a_policy_that_began_anew_or_a_drafter_that_forgot_its_texts_would_be_noticed(
    forgets: str, model: Any, undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, model, kill_at=15)

    def half(run: Any, generator: Any) -> None:
        if generator.name in run._policies:
            generator.decoder.policy.load_state_dict(run.folder.state(generator.name, run.given(generator.name)))

    if forgets == "policy":
        monkeypatch.setattr("wager.policies.base.Policy.load_state_dict", lambda self, state: None)
    else:
        monkeypatch.setattr(Run, "_restore", half)
    assert outline(play(tmp_path, model)) != outline(undisturbed)


def test_an_answer_that_is_there_twice_counts_once_and_a_line_that_is_none_is_refused(
    model: Any, tmp_path: Path
) -> None:
    first = play(tmp_path, model, methods="off")
    path = tmp_path / ANSWERS
    path.write_text(path.read_text() * 2)
    assert outline(play(tmp_path, model, methods="off")) == outline(first)
    known = {"prompt": "qa-0", "method": "off"}
    for wrong in ("{}", "not JSON", json.dumps(known), json.dumps({**known, "method": "unheard"})):
        path.write_text(f"{wrong}\n")
        with pytest.raises(ValueError, match=r"line 1: not an answer of this run; --afresh"):
            play(tmp_path, model, methods="off")


def test_only_one_process_writes_to_a_folder(tmp_path: Path) -> None:
    named, asked = parse_methods("off"), tokenize(PROMPTS, Letters(), 64, "cpu")
    same = {"suite": "test", "seed": 1, "max_tokens": TOKENS}
    with Run(named, asked, ["off"], tmp_path, **same), pytest.raises(ValueError, match="another run is writing"):
        Run(named, asked, ["off"], tmp_path, **same)
    with Run(named, asked, ["off"], tmp_path, **same):
        pass


def test_a_folder_that_is_a_file_or_holds_something_else_is_refused(model: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        play(tmp_path / "file", model, methods="off")
    (tmp_path / RUN).write_text('{"format": "another"}')
    with pytest.raises(ValueError, match="not a run of wager bench"):
        play(tmp_path, model, methods="off")


def test_at_most_twelve_answers_are_kept_token_by_token() -> None:
    asked = [TokenizedPrompt(f"t{n % 9}-{n}", Prompt(f"t{n % 9}", ""), None) for n in range(18)]  # type: ignore[arg-type]
    run = Run(parse_methods("auto,ucbspec"), [], ())
    run.prompts = asked
    shown = run._shown()
    assert len(shown) == 12
    assert Counter(name for _, name in shown) == {"auto": 9, "ucbspec": 3}


def test_transformers_assisted_gets_a_draft_model_made_of_the_target(model: Any, tmp_path: Path) -> None:
    run = play(tmp_path, model, methods="transformers-assisted")
    assert outline(run)[0][2] == outline(run)[1][2]


def test_a_run_without_a_folder_gives_the_same_answers_and_writes_nothing(
    model: Any, undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = tokenize(PROMPTS, Letters(), 64, "cpu")
    named = parse_methods(METHODS)
    target = Target(model, Letters(), tokens=100, seed=1)
    run = Run(named, asked, arms_of(named, model), seed=1, max_tokens=TOKENS)
    frozen = [gc.get_freeze_count() for _ in run.play([method.make(target, run.head["arms"]) for method in named])]
    assert outline(run) == outline(undisturbed)
    assert not list(tmp_path.iterdir())
    assert all(now > before for before, now in pairwise(frozen)), "answers are left out of collections, too"


def test_files_in_its_folder_that_are_not_a_runs_are_left_alone(tmp_path: Path, tiny: Any) -> None:
    (tmp_path / STATE).mkdir()
    mine = tmp_path / STATE / "mine.json"
    mine.write_text("{}")
    (tmp_path / STATE / "0-1.jsonx1.part").write_text("{")  # of a kill
    play(tmp_path, tiny, methods="off,ucbspec")
    assert list((tmp_path / STATE).iterdir()) == [mine]


@pytest.mark.parametrize("content", ['{"name": "another program"}', "no JSON"])
def test_a_file_that_is_no_run_is_not_overwritten_even_afresh(tmp_path: Path, content: str) -> None:
    (tmp_path / RUN).write_text(content)
    with pytest.raises(ValueError, match="not a run of wager bench, so it is not overwritten"):
        Run(parse_methods("off"), [], ["off"], tmp_path, afresh=True)
    assert (tmp_path / RUN).read_text() == content
    for own in ('{"format": "wager-run", "vers', ""):  # a damaged run, and an empty file
        (tmp_path / RUN).write_text(own)
        Run(parse_methods("off"), [], ["off"], tmp_path, afresh=True).__exit__()


def test_a_run_that_resets_policies_otherwise_is_another_one(tmp_path: Path, tiny: Any) -> None:
    named, asked = parse_methods("off"), tokenize(PROMPTS[:1], Letters(), 64, "cpu")
    with Run(named, asked, ["off"], tmp_path, max_tokens=TOKENS, reset="paper") as run:
        for _ in run.play([method.make(Target(tiny, Letters()), ["off"]) for method in named]):
            pass
    with pytest.raises(ValueError, match=r"other settings \(--reset: paper there, never here\)"):
        Run(named, asked, ["off"], tmp_path, max_tokens=TOKENS, reset="never")
