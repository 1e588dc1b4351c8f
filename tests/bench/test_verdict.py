"""A summary in words: what is claimed, and what is not."""

import random

import pytest
from summaries import summary_of

from wager.bench import verdict
from wager.bench.summary import Answer, summarize


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


def words(noise: float = 0.02, prompts: int = 8, **speeds: float) -> list[str]:
    named = {name.replace("suffix4", "suffix:4"): speed for name, speed in speeds.items()}
    return verdict.words(summary_of({"transformers": 1.0, **named}, noise=noise, prompts=prompts))


def test_the_verdict_of_a_method_that_is_faster_or_slower_or_neither() -> None:
    assert words(off=1.05, suffix4=1.3, auto=1.4, noise=0.0)[:2] == [
        "On this machine `auto` is 1.40x faster than plain decoding (95 % interval 1.40x to 1.40x); "
        "your best single setting would have been suffix, length 4: 1.30x.",
        "Take `auto`: nothing has to be set.",
    ]
    clearly = words(off=1.0, suffix4=2.0, auto=1.4)[1]
    assert "clearly faster than `auto`, which lost" in clearly
    assert "`--drafters suffix --policy fixed:drafter=suffix,length=4`" in clearly
    even, then, *_ = words(off=1.0, suffix4=0.5, auto=1.0, noise=0.2, prompts=40)
    assert even.startswith("On this machine `auto` makes no clear difference to plain decoding: ")
    assert "no single draft setting tried here beats `off`" in even
    assert then.startswith("Nothing is gained by speculating here: decode plainly")
    slower, then, *_ = words(suffix4=0.7, auto=0.8)
    assert slower.startswith("On this machine `auto` is slower than plain decoding: 0.")
    assert "your best single setting would have been suffix, length 4: 0.7" in slower
    assert then.startswith("Nothing is gained by speculating here")


def test_a_drafter_is_advised_as_it_was_given() -> None:
    assert verdict.option("draft-model:3", ["suffix", "draft-model=ORG/SMALL"]).startswith(
        "`--drafters draft-model=ORG/SMALL --policy fixed:drafter=draft-model,length=3"
    )
    assert verdict.option("eagle:mine:3", ["eagle:mine=a head"]).startswith("`--drafters 'eagle:mine=a head' ")
    assert verdict.option("eagle:ofa:3", ["eagle:ofa?"]).startswith("`--drafters eagle:ofa ")


def test_a_wide_interval_is_not_taken_for_no_gain() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.0, "suffix:4": 0.5, "auto": 1.4}, noise=0.8)
    assert summary["tasks"][0]["methods"][-1]["interval"][1] > 1.2
    assert verdict.advice(summary).startswith("Speculating shows no gain here, but one of up to ")


def test_the_verdict_of_too_few_prompts_is_none() -> None:
    for prompts, count in ((1, "one prompt"), (4, "4 prompts")):
        told = words(off=1.0, auto=1.4, prompts=prompts, noise=0.0)
        assert f"`auto` ran at 1.40x the speed of plain decoding on the {count} measured" in told[0]
        assert told[1] == "So few prompts tell too little; measure at least 5."


@pytest.mark.parametrize(
    ("texts", "unexplained", "said"),
    [
        (0, 0, "All 40 texts are plain decoding's own, token for token."),
        (2, 0, "2 of 40 texts differ from plain decoding's, each where two logits tie within float error."),
        (2, 1, "1 of 40 texts differ from plain decoding's, and no tie of two logits explains it: this is a bug"),
    ],
)
def test_the_verdict_says_whether_the_texts_are_the_same(texts: int, unexplained: int, said: str) -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.0, "auto": 1.4})
    summary["differences"] = {"answers": 40, "texts": texts, "unexplained": unexplained}
    assert any(sentence.startswith(said) for sentence in verdict.words(summary))


def test_the_verdict_warns_of_a_busy_machine_and_concludes_nothing_on_a_wild_one() -> None:
    calm = summary_of({"transformers": 1.0, "off": 1.1, "suffix:4": 1.2, "auto": 1.4})
    assert not any("something else uses this machine" in sentence for sentence in verdict.words(calm))
    *same, busy = verdict.words({**calm, "unsteady": 2.0})
    assert same == verdict.words(calm)
    assert "so trust the intervals more" in busy
    first, second = verdict.words({**calm, "unsteady": 50.8})
    assert first.startswith("Decoding without drafts was 50.8 times as fast on one prompt as on another")
    assert first.endswith("nothing can be said; measure again when it is quiet.")
    assert second.startswith("Measured nevertheless: `auto` 1.")


def test_what_drafts_bring_is_told_apart_from_what_the_forward_brings() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.25, "suffix:4": 1.25, "auto": 1.5}, noise=0.0)
    assert "wager's forward alone, `off`, runs at 1.25x; drafts bring 1.20x on top." in verdict.words(summary)
    rows = {row["method"]: row for row in summary["tasks"][0]["methods"]}
    assert (rows["suffix:4"]["over_off"], rows["off"]["over_off"]) == (1.0, None)
    assert verdict.standing(rows["suffix:4"]) == verdict.FASTER
    assert verdict.standing(rows["suffix:4"], "over_off_interval") == verdict.EVEN
