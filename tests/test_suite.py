"""`wager bench`: what it plays, keeps and says, and that a run that was killed goes on as if nothing had happened."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import TemplateError
from letters import Letters, called, writer
from transformers import GPT2Config, GPT2LMHeadModel

from wager.bench import answers as maths
from wager.bench import suite as suites
from wager.bench import verdict, workloads
from wager.bench.answers import Answer
from wager.bench.runs import ANSWERS, RUN, STATE, Run, read
from wager.bench.summary import summarize
from wager.bench.workloads import Prompt
from wager.cli.suite import without_paths

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = 10
# Policies that never look at seconds: what they play is the same in every run.
METHODS = "off,suffix:2,prompt-lookup:3,ucbspec,exp3spec"


@pytest.fixture(scope="module")
def model() -> Any:
    return writer()


@pytest.fixture
def bench(
    calm: None, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`wager bench` with the tiny model, in a folder of the test's own."""
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, Letters()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WAGER_DATA", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wager", "bench", *words])
        return called(capsys)

    return run


SHORT = ("--model", "tiny", "--max-tokens", str(TOKENS), "--longest-prompt", "60", "--limit", "1")
SMALL = (*SHORT, "--suite", "humaneval", "--methods", "off,suffix:2,auto")


# -- playing, and going on


PROMPTS = [Prompt(task, f"{task} {n}: say it again, say it again") for task in ("qa", "rag") for n in range(3)]


class Killed(BaseException):
    """As a kill would end it: nothing in between can catch it."""


def play(folder: Path, model: Any, *, kill_at: int | None = None, methods: str = METHODS) -> Run:
    """A run of the prompts; it is killed within an answer where that is wanted."""
    tokenizer = Letters()
    named = suites.parse_methods(methods)
    asked = suites.questions(PROMPTS, tokenizer, 64, "cpu")
    head = suites.head(named, asked, model, {"machine": "m", "versions": {}}, suite="test", seed=1, max_tokens=TOKENS)
    with Run(folder, head) as run:
        made = suites.build(named, model, tokenizer, tokens=100, seed=1)
        if kill_at is not None:
            _kill_within(made, kill_at + len(made))  # all warm up first
        for _ in suites.play(run, made, asked, tokenizer, tokens=TOKENS, seed=1):
            pass
        run.save(summarize(head["methods"], head["prompts"], run.answers), complete=True)
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


@pytest.mark.parametrize("kill_at", [0, 1, 17, 35])
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
    assert len(content["answers"]) == 6 * 6
    assert not (tmp_path / STATE).exists()


@pytest.mark.parametrize("lost", [1, 40])
def test_a_last_line_cut_in_the_middle_is_measured_again(
    lost: int, model: Any, undisturbed: Run, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, model, kill_at=23)
    path = tmp_path / ANSWERS
    path.write_bytes(path.read_bytes()[:-lost])
    again = play(tmp_path, model)
    assert outline(again) == outline(undisturbed)
    assert len(path.read_text().splitlines()) == 36


@pytest.mark.parametrize("forgets", ["policy", "drafters"])
def test_a_policy_that_began_anew_or_a_drafter_that_forgot_its_texts_would_be_noticed(
    forgets: str, model: Any, undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, model, kill_at=23)

    def half(run: Run, method: Any, asked: Any, policies: Sequence[str]) -> None:
        if method.name in policies:
            method.decoder.policy.load(run.state(method.name))

    if forgets == "policy":
        monkeypatch.setattr("wager.policies.base.Policy.load_state_dict", lambda self, state: None)
    else:
        monkeypatch.setattr(suites, "_go_on", half)
    assert outline(play(tmp_path, model)) != outline(undisturbed)


def test_a_line_that_is_no_answer_of_the_run_is_refused(model: Any, tmp_path: Path) -> None:
    play(tmp_path, model, methods="off")
    path = tmp_path / ANSWERS
    for wrong in ("{}", "not JSON", json.dumps({"prompt": "qa-0", "method": "unheard"})):
        path.write_text(f"{wrong}\n")
        with pytest.raises(ValueError, match=r"line 1: not an answer of this run; --afresh"):
            play(tmp_path, model, methods="off")


def test_an_answer_that_is_there_twice_counts_once(model: Any, tmp_path: Path) -> None:
    first = play(tmp_path, model, methods="off")
    path = tmp_path / ANSWERS
    path.write_text(path.read_text() * 2)
    assert outline(play(tmp_path, model, methods="off")) == outline(first)


def test_only_one_process_writes_to_a_folder(model: Any, tmp_path: Path) -> None:
    run = play(tmp_path, model, methods="off")
    with Run(tmp_path, run.head), pytest.raises(ValueError, match="another run is writing"):
        Run(tmp_path, run.head)
    Run(tmp_path, run.head).close()


def test_a_folder_that_is_a_file_or_holds_something_else_is_refused(model: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        play(tmp_path / "file", model, methods="off")
    (tmp_path / RUN).write_text('{"format": "another"}')
    with pytest.raises(ValueError, match="not a run of wager bench"):
        play(tmp_path, model, methods="off")


# -- the command


def test_the_command_writes_a_run_and_says_what_is_fastest(bench: Any, tmp_path: Path) -> None:
    code, out, err = bench(*SHORT, "--out", "made", "--methods", "transformers-lookup,off,suffix:2,suffix:3@2x6,auto")
    assert code == 0, err
    run = read(tmp_path / "made" / RUN)
    kinds = ["plain", "peer", "off", "arm", "arm", "policy"]
    assert [method["kind"] for method in run["methods"]] == kinds
    assert run["arms"] == ["off", "suffix:2", "suffix:3@2x6"]
    assert run["complete"]
    assert (run["suite"], run["model"], run["max_tokens"], run["seed"]) == ("quick", "tiny", TOKENS, 0)
    assert len(run["prompts"]) == 7
    assert len(run["answers"]) == 7 * 6
    assert all(answer["same"] for answer in run["answers"])
    assert str(tmp_path) not in json.dumps(run)
    for answer in run["answers"]:
        ours = answer["method"] not in ("transformers", "transformers prompt lookup")
        assert answer["tokens"] == TOKENS
        assert (1 + sum(emitted for _, _, _, emitted, _, _ in answer["rounds"]) == TOKENS) is ours
        assert 0 < answer["prefill_seconds"] <= answer["seconds"]
        assert ("pieces" in answer) is (answer["method"] == "auto")
    tasks = [task["task"] for task in run["summary"]["tasks"]]
    assert tasks[0] == "all"
    assert set(tasks[1:]) == {prompt["task"] for prompt in run["prompts"]}
    assert run["summary"]["differences"]["unexplained"] == 0
    assert "All 35 texts are plain decoding's own" in out
    assert out.index("regret") < out.index("On this machine `auto`")
    assert all(sentence in out for sentence in run["verdict"])
    assert "wager report made/run.json -o report.html" in out


def test_at_most_twelve_answers_are_kept_token_by_token() -> None:
    asked = [suites.Question(f"t{n % 9}-{n}", Prompt(f"t{n % 9}", ""), None) for n in range(18)]  # type: ignore[arg-type]
    shown = suites._shown(["auto", "ucbspec"], asked)
    assert len(shown) == 12
    assert Counter(name for _, name in shown) == {"auto": 9, "ucbspec": 3}


def test_a_run_with_other_settings_is_refused_by_name_unless_it_may_be_overwritten(bench: Any, tmp_path: Path) -> None:
    assert bench(*SMALL)[0] == 0
    content = (tmp_path / "wager-bench" / ANSWERS).read_text()
    others = {
        "--max-tokens: 10 there, 11 here": ("--max-tokens", "11"),
        "--methods: transformers, off, suffix:2, auto there, transformers, off here": ("--methods", "off"),
        "--suite: humaneval there, debug-bench here": ("--suite", "debug-bench"),
        "--seed: 0 there, 4 here": ("--seed", "4"),
        "the prompts: they are not the same": ("--limit", "2"),
    }
    for said, change in others.items():
        code, _, err = bench(*SMALL, *change)
        assert code == 2
        assert f"holds a run with other settings ({said}); give another --out, or --afresh to overwrite" in err
    assert (tmp_path / "wager-bench" / ANSWERS).read_text() == content
    code, _, err = bench(*SMALL)
    assert (code, "complete" in err) == (0, True)
    assert (tmp_path / "wager-bench" / ANSWERS).read_text() == content
    assert bench(*SMALL, "--max-tokens", "11", "--afresh")[0] == 0
    assert read(tmp_path / "wager-bench" / RUN)["max_tokens"] == 11


def test_another_model_of_the_same_name_does_not_go_on_with_the_run(
    bench: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(*SMALL)[0] == 0
    other = copy.deepcopy(model)
    other.get_input_embeddings().weight.data.mul_(1.5)
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (other, Letters()))
    code, _, err = bench(*SMALL)
    assert code == 2
    assert "other settings (the model's weights: they are not the same)" in err


def test_an_interrupted_command_says_that_it_can_go_on(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, many = Run.add, 0

    def interrupted(self: Run, *given: Any, **more: Any) -> None:
        nonlocal many
        many += 1
        if many == 3:
            raise KeyboardInterrupt
        add(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add", interrupted)
        code, _, err = bench(*SMALL)
    assert code == 130
    assert "2 of 4 answers are kept, and the same command goes on" in err
    assert len(read(tmp_path / "wager-bench" / RUN)["answers"]) == 2
    code, out, err = bench(*SMALL)
    assert code == 0
    assert "going on: 2 of 4 answers are there" in err
    assert "On this machine" in out


def test_bad_input_is_one_sentence(bench: Any, tmp_path: Path) -> None:
    for words, said in {
        ("--suite", "nonsense"): "unknown suite 'nonsense'; choose from quick, spec-bench",
        ("--suite", "math-then-code"): "pass --data DIR or set WAGER_DATA",
        ("--data", "."): "the quick suite has prompts of its own",
        ("--methods", "auto,nobody"): "'nobody' is no method",
        ("--methods", ","): "--methods names at least one",
        ("--methods", "ucbspec:colour=red"): "has no parameter 'colour'",
        ("--model", "tiny", "--max-tokens", "2000"): "tiny holds 1,024 tokens: too few",
        ("--limit", "3", "decisions"): "--limit before decisions does nothing",
    }.items():
        code, _, err = bench(*words)
        assert code == 2
        assert said in err
        assert "Traceback" not in err
    assert not (tmp_path / "wager-bench").exists()


def test_methods_are_read_as_they_are_written() -> None:
    text = "suffix:4, auto,kl-ucb:reward=goodput,seed=1,transformers-lookup,suffix:3@2x6,off,transformers,auto"
    with pytest.raises(ValueError, match="no parameter 'seed'"):
        suites.parse_methods(text)
    assert [(m.name, m.kind) for m in suites.parse_methods(text.replace(",seed=1", ""))] == [
        ("transformers", "plain"),
        ("suffix:4", "arm"),
        ("auto", "policy"),
        ("kl-ucb:reward=goodput", "policy"),
        ("transformers prompt lookup", "peer"),
        ("suffix:3@2x6", "arm"),
        ("off", "off"),
    ]
    two = suites.parse_methods("fixed:drafter=suffix,length=4")
    assert two[1].name == "fixed:drafter=suffix,length=4"


def test_without_arms_of_their_own_policies_choose_among_those_of_generate(
    bench: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(*SHORT, "--suite", "humaneval", "--methods", "off,auto")[0] == 0
    assert read(tmp_path / "wager-bench" / RUN)["arms"] == [
        "off",
        *(f"{drafter}:{length}" for drafter in ("suffix", "prompt-lookup") for length in range(1, 9)),
    ]
    monkeypatch.setattr("wager.drafters.shipped.available", lambda *_: {"eagle:ofa": object()})
    assert suites.arms_of(suites.parse_methods("auto"), model)[-8:] == [f"eagle:ofa:{n}" for n in range(1, 9)]
    assert suites.arms_of(suites.parse_methods("auto,suffix:3"), model) == ["off", "suffix:3"]


def test_a_head_is_played_only_where_it_lies_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, played in (({}, False), ({"eagle:ofa": object()}, True), ({"eagle:chat": object()}, False)):
        monkeypatch.setattr("wager.drafters.shipped.available", lambda target, there=there: there)
        names = [method.name for method in suites.default_methods(suites.QUICK, "a-model")]
        assert ("eagle:ofa:3" in names) is played
        assert {"suffix:4", "auto"} <= set(names)


def test_transformers_assisted_gets_a_draft_model_made_of_the_target(model: Any, tmp_path: Path) -> None:
    run = play(tmp_path, model, methods="transformers-assisted")
    assert outline(run)[0][2] == outline(run)[1][2]


def test_a_default_run_leaves_out_assisted_generation_where_no_draft_model_can_be_had(model: Any) -> None:
    other = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=16, n_layer=4, n_head=2))
    names = suites.parse_methods("transformers-assisted,off")
    assert suites.without_impossible(names, model) == names
    assert [m.name for m in suites.without_impossible(names, other)] == ["transformers", "off"]


def test_paths_stay_out_of_the_command() -> None:
    said = "wager bench --out /home/me/made --data ~/data -m ./model --suite quick"
    assert without_paths(said) == "wager bench --out made --data data -m ./model --suite quick"
    joined = "wager bench --out=/home/me/made --data=~/data --methods=fixed:length=4 --model=ORG/NAME"
    assert without_paths(joined) == "wager bench --out=made --data=data --methods=fixed:length=4 --model=ORG/NAME"


# -- prompts


def test_the_prompts_that_come_with_wager_have_every_kind() -> None:
    every = workloads.own_prompts()
    counts = Counter(prompt.task for prompt in every)
    assert {"chat", "translation", "summarization", "qa", "math", "rag"} <= set(counts)
    assert min(counts.values()) >= 4
    assert len({prompt.text for prompt in every}) == len(every)
    assert set(workloads.KIND.values()) <= set(counts)


def test_without_data_a_suite_has_prompts_of_the_same_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    chosen = workloads.suite_prompts("spec-bench", None, 2, 0)
    assert Counter(p.task for p in chosen) == dict.fromkeys(
        ("chat", "translation", "summarization", "qa", "math", "rag"), 2
    )


def test_with_data_a_suite_reads_it(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text("".join(json.dumps({"prompt": f"def f{i}():"}) + "\n" for i in range(5)))
    assert len(workloads.suite_prompts("humaneval", tmp_path, None, 0)) == 5
    assert len(workloads.suite_prompts("humaneval", tmp_path, 2, 0)) == 2


def test_data_without_a_prompt_and_records_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "humaneval.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match="holds no prompt of humaneval"):
        workloads.suite_prompts("humaneval", tmp_path, None, 0)
    for line in ("[1]", "null", '{"prompt_": ""}', "not JSON"):
        path.write_text(line)
        with pytest.raises(ValueError, match=r"cannot read .*humaneval\.jsonl .* with prompt: HumanEval"):
            workloads.suite_prompts("humaneval", tmp_path, None, 0)


def test_a_conversation_that_the_models_template_refuses_is_said_in_one_sentence() -> None:
    class Strict(Letters):
        def apply_chat_template(self, *_: Any, **__: Any) -> Any:
            raise TemplateError("roles must alternate")

    with pytest.raises(ValueError, match="chat template refuses a prompt of qa: roles must alternate"):
        Prompt("qa", "Why?", (("user", "Hm."),)).ids(Strict(), 64, "cpu")


def test_tasks_take_turns() -> None:
    chosen = [Prompt(task, str(n)) for task, many in {"a": 3, "b": 1, "c": 3}.items() for n in range(many)]
    turned = workloads.in_turn(chosen, 5)
    assert sorted(p.task for p in turned[:3]) == ["a", "b", "c"]
    assert sorted(p.task for p in turned[3:5]) == ["a", "c"]
    assert sorted(map(str, turned)) == sorted(map(str, chosen))


# -- figures


def made_up(seed: int, count: int) -> list[Answer]:
    dice = random.Random(seed)
    return [Answer([1] * dice.randrange(5, 60), dice.uniform(0.1, 3.0), dice.randrange(5, 60)) for _ in range(count)]


def quantile(values: Sequence[float], share: float) -> float:
    """By the book: between the two nearest ranks in a straight line."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (place - low) * (ranked[high] - ranked[low])


def slow_bootstrap(ours: list[Answer], theirs: list[Answer], of: Callable[..., float], seed: int) -> list[float]:
    draws = np.random.default_rng(seed).integers(0, len(ours), (maths.RESAMPLES, len(ours)))
    values = [of([ours[i] for i in row], [theirs[i] for i in row]) for row in draws.tolist()]
    return [quantile(values, 0.025), quantile(values, 0.975)]


def slow_ratio(ours: list[Answer], theirs: list[Answer]) -> float:
    speed = [sum(len(a.tokens) for a in part) / sum(a.seconds for a in part) for part in (ours, theirs)]
    return speed[0] / speed[1]


def slow_regret(ours: list[Answer], best: list[Answer]) -> float:
    a_token = sum(a.seconds for a in best) / sum(len(a.tokens) for a in best)
    return sum(a.seconds - len(a.tokens) * a_token for a in ours)


@pytest.mark.parametrize("seed", [0, 7])
def test_intervals_and_regret_are_those_of_a_slow_reference(seed: int) -> None:
    ours, theirs = made_up(1 + seed, 9), made_up(2 + seed, 9)
    assert maths.ratio(ours, theirs) == pytest.approx(slow_ratio(ours, theirs))
    assert maths.regret(ours, theirs) == pytest.approx(slow_regret(ours, theirs))
    assert maths.ratio_interval(ours, theirs, seed=seed) == pytest.approx(
        slow_bootstrap(ours, theirs, slow_ratio, seed)
    )
    assert maths.regret_interval(ours, theirs, seed=seed) == pytest.approx(
        slow_bootstrap(ours, theirs, slow_regret, seed)
    )
    assert maths.ratio_interval(ours[:1], theirs[:1]) is None


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    dice = random.Random(4)
    held = 0
    for _ in range(100):
        theirs = [Answer([1] * 20, dice.lognormvariate(0, 0.3), 20) for _ in range(30)]
        ours = [Answer([1] * 20, dice.lognormvariate(0, 0.3) / 1.5, 20) for _ in range(30)]
        low, high = maths.ratio_interval(ours, theirs) or (0.0, 0.0)
        held += low <= 1.5 <= high
    assert 85 <= held <= 100


def summary_of(speeds: dict[str, float], *, noise: float = 0.02, prompts: int = 8) -> dict[str, Any]:
    """A run in which each method takes its time for 20 tokens, give or take."""
    kinds = {"transformers": "plain", "off": "off", "suffix:4": "arm", "suffix:8": "arm", "auto": "policy"}
    methods = [{"name": name, "kind": kinds[name]} for name in speeds]
    dice = random.Random(1)
    asked = [{"id": f"t-{n}", "task": "t"} for n in range(prompts)]
    answers = {
        (prompt["id"], name): Answer([1] * 20, dice.lognormvariate(0, noise) / speed, 20)
        for prompt in asked
        for name, speed in speeds.items()
    }
    return summarize(methods, asked, answers)


def test_a_summary_tells_the_best_arm_and_the_regret_against_it() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.1, "suffix:4": 1.6, "auto": 1.5}, noise=0.0)
    every, task = summary["tasks"]
    assert every["best_arm"] == "suffix:4"
    rows = {row["method"]: row for row in every["methods"]}
    assert rows["auto"]["speedup"] == pytest.approx(1.5)
    assert rows["auto"]["regret_seconds"] == pytest.approx(8 / 1.5 - 8 / 1.6, abs=1e-3)
    assert rows["suffix:4"]["regret_seconds"] == 0
    assert rows["transformers"]["regret_seconds"] is None
    assert task["methods"] == every["methods"]


def test_a_task_that_is_called_all_counts_its_prompts_once() -> None:
    methods = [{"name": "transformers", "kind": "plain"}, {"name": "auto", "kind": "policy"}]
    asked = [{"id": f"all-{n}", "task": "all"} for n in range(3)] + [{"id": "qa-0", "task": "qa"}]
    answers = {(p["id"], m["name"]): Answer([1] * 20, 1.0, 20) for p in asked for m in methods}
    summary = summarize(methods, asked, answers)
    assert [(task["task"], task["prompts"]) for task in summary["tasks"]] == [("all", 4), ("all", 3), ("qa", 1)]
    assert any(sentence.startswith("It gains most on all") for sentence in verdict.words(summary))


def test_the_luckiest_of_many_arms_that_are_all_alike_is_seldom_called_clearly_faster() -> None:
    dice = random.Random(0)
    names = {"transformers": "plain", "auto": "policy"} | {f"suffix:{n}": "arm" for n in range(1, 10)}
    methods = [{"name": name, "kind": kind} for name, kind in names.items()]
    asked = [{"id": f"t-{n}", "task": "t"} for n in range(21)]
    wrong = 0
    for _ in range(30):
        answers = {
            (p["id"], m["name"]): Answer(
                [1] * 20, dice.lognormvariate(0, 0.1) / (1.0 if m["kind"] == "plain" else 1.3), 20
            )
            for p in asked
            for m in methods
        }
        wrong += "clearly faster" in verdict.advice(summarize(methods, asked, answers))
    assert wrong <= 3, "one time in ten at most; with intervals for a single arm it is one in four"


def test_prompts_that_not_all_have_answered_do_not_count() -> None:
    answers = {("a", "transformers"): Answer([1], 1.0, 1), ("a", "off"): Answer([1], 1.0, 1)}
    methods = [{"name": "transformers", "kind": "plain"}, {"name": "off", "kind": "off"}]
    asked = [{"id": "a", "task": "t"}, {"id": "b", "task": "t"}]
    answers["b", "off"] = Answer([1], 1.0, 1)
    assert summarize(methods, asked, answers)["prompts"] == 1
    nothing = summarize(methods, asked[1:], answers)
    assert verdict.words(nothing) == [
        "No prompt has been answered by every method yet, so there is nothing to compare."
    ]


# -- words


def test_the_verdict_when_it_is_faster() -> None:
    said = verdict.words(summary_of({"transformers": 1.0, "off": 1.05, "suffix:4": 1.3, "auto": 1.4}, noise=0.0))
    assert said[:2] == [
        "On this machine `auto` is 1.40x faster than plain decoding (95 % interval 1.40x to 1.40x); "
        "your best single setting would have been suffix, length 4: 1.30x.",
        "Take `auto`: nothing has to be set.",
    ]


def test_the_verdict_when_a_single_setting_is_clearly_faster() -> None:
    said = verdict.words(summary_of({"transformers": 1.0, "off": 1.0, "suffix:4": 2.0, "auto": 1.4}))
    assert "clearly faster than `auto`, which lost" in said[1]
    assert "`--drafters suffix --policy fixed:drafter=suffix,length=4`" in said[1]


def test_a_drafter_is_advised_as_it_was_given() -> None:
    assert verdict.option("draft-model:3", ["suffix", "draft-model=ORG/SMALL"]).startswith(
        "`--drafters draft-model=ORG/SMALL --policy fixed:drafter=draft-model,length=3"
    )
    assert verdict.option("eagle:mine:3", ["eagle:mine=a head"]).startswith("`--drafters 'eagle:mine=a head' ")
    assert verdict.option("eagle:ofa:3", ["eagle:ofa?"]).startswith("`--drafters eagle:ofa ")


def test_the_verdict_when_there_is_no_gain() -> None:
    said = verdict.words(
        summary_of({"transformers": 1.0, "off": 1.0, "suffix:4": 0.5, "auto": 1.0}, noise=0.2, prompts=40)
    )
    assert said[0].startswith("On this machine `auto` makes no clear difference to plain decoding: ")
    assert "no single draft setting tried here beats `off`" in said[0]
    assert said[1].startswith("Nothing is gained by speculating here: decode plainly")


def test_a_wide_interval_is_not_taken_for_no_gain() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.0, "suffix:4": 0.5, "auto": 1.4}, noise=0.8)
    assert summary["tasks"][0]["methods"][-1]["interval"][1] > 1.2
    assert verdict.advice(summary).startswith("Speculating shows no gain here, but one of up to ")


def test_the_verdict_when_it_is_slower() -> None:
    said = verdict.words(summary_of({"transformers": 1.0, "suffix:4": 0.7, "auto": 0.8}))
    assert said[0].startswith("On this machine `auto` is slower than plain decoding: 0.")
    assert "your best single setting would have been suffix, length 4: 0.7" in said[0]
    assert said[1].startswith("Nothing is gained by speculating here")


@pytest.mark.parametrize(("prompts", "said"), [(1, "one prompt"), (4, "4 prompts")])
def test_the_verdict_of_too_few_prompts_is_none(prompts: int, said: str) -> None:
    told = verdict.words(summary_of({"transformers": 1.0, "off": 1.0, "auto": 1.4}, prompts=prompts, noise=0.0))
    assert told[0].startswith(f"On this machine `auto` ran at 1.40x the speed of plain decoding on the {said} measured")
    assert told[1] == "So few prompts tell too little; measure at least 5."


@pytest.mark.parametrize(
    ("texts", "unexplained", "said"),
    [
        (0, 0, "All 40 texts are plain decoding's own, token for token."),
        (2, 0, "2 of 40 texts part from plain decoding's, each where two logits tie within float error."),
        (2, 1, "1 of 40 texts differ from plain decoding's, and no tie of two logits explains it: this is a bug"),
    ],
)
def test_the_verdict_says_whether_the_texts_are_the_same(texts: int, unexplained: int, said: str) -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.0, "auto": 1.4})
    summary["differences"] = {"answers": 40, "texts": texts, "unexplained": unexplained}
    assert any(sentence.startswith(said) for sentence in verdict.words(summary))


def test_the_verdict_warns_of_a_busy_machine() -> None:
    calm = summary_of({"transformers": 1.0, "auto": 1.4})
    assert not any("something else uses this machine" in sentence for sentence in verdict.words(calm))
    busy = {**calm, "unsteady": 2.0}
    assert verdict.words(busy)[:-1] == verdict.words(calm)
    assert "so trust the intervals more" in verdict.words(busy)[-1]


def test_on_a_machine_that_is_wild_nothing_is_concluded() -> None:
    summary = {**summary_of({"transformers": 1.0, "off": 1.1, "suffix:4": 1.2, "auto": 1.4}), "unsteady": 50.8}
    first, second = verdict.words(summary)
    assert first.startswith("Decoding without drafts was 50.8 times as fast on one prompt as on another")
    assert first.endswith("nothing can be said; measure again when it is quiet.")
    assert second.startswith("What was measured, for what it is worth: `auto` 1.")


def test_what_drafts_bring_is_told_apart_from_what_the_forward_brings() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.25, "suffix:4": 1.25, "auto": 1.5}, noise=0.0)
    assert "wager's forward alone, `off`, runs at 1.25x; drafts bring 1.20x on top." in verdict.words(summary)
    rows = {row["method"]: row for row in summary["tasks"][0]["methods"]}
    assert (rows["suffix:4"]["over_off"], rows["off"]["over_off"]) == (1.0, None)
    assert verdict.standing(rows["suffix:4"]) == verdict.FASTER
    assert verdict.standing(rows["suffix:4"], "over_off_interval") == verdict.EVEN
