"""A summary in words: what is claimed, and what is not."""

import random

import pytest
from summaries import summary_of

from wager.bench import verdict
from wager.bench.summary import Answer, summarize

ENGINE = "`off`, the same engine without speculation"


def test_a_task_that_is_called_all_counts_its_prompts_once() -> None:
    methods = [{"name": "transformers", "kind": "plain"}, {"name": "auto", "kind": "policy"}]
    asked = [{"id": f"all-{n}", "task": "all"} for n in range(3)] + [{"id": "qa-0", "task": "qa"}]
    answers = {(p["id"], m["name"]): Answer([1] * 20, 1.0, 20) for p in asked for m in methods}
    summary = summarize(methods, asked, answers)
    assert [(task["task"], task["prompts"]) for task in summary["tasks"]] == [("all", 4), ("all", 3), ("qa", 1)]
    assert any(
        sentence.startswith("By task it is between 1.00 (all) and 1.00 (all)") for sentence in verdict.words(summary)
    )


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
    assert words(off=1.0, suffix4=1.3, auto=1.4, noise=0.0)[:2] == [
        f"On this machine `auto` is 1.40 times as fast as {ENGINE} (95 % interval 1.40 to 1.40); "
        "the best single setting, known only now, was suffix, length 4: 1.30.",
        "Use `auto`: there is nothing to set.",
    ]
    clearly = words(off=1.0, suffix4=2.0, auto=1.4)[1]
    assert "clearly faster than `auto`, which took" in clearly
    assert "`--drafters suffix --policy fixed:drafter=suffix,length=4`" in clearly
    even, then, *_ = words(off=1.0, suffix4=0.5, auto=1.0, noise=0.2, prompts=40)
    assert even.startswith(f"On this machine `auto` is not clearly faster or slower than {ENGINE}: ")
    assert "no single draft setting tried here was faster than `off`" in even
    assert "decode without speculation, with `--policy off`" in then
    slower, then, *_ = words(suffix4=0.7, auto=0.8)
    assert slower.startswith("On this machine `auto` is slower than transformers without speculation: 0.")
    assert "the best single setting, known only now, was suffix, length 4: 0.7" in slower
    assert then.startswith("No setting tried here was faster than transformers without speculation")


def test_a_drafter_is_advised_as_it_was_given() -> None:
    assert verdict.option("draft-model:3", ["suffix", "draft-model=ORG/SMALL"]).startswith(
        "`--drafters draft-model=ORG/SMALL --policy fixed:drafter=draft-model,length=3"
    )
    assert verdict.option("eagle:mine:3", ["eagle:mine=a head"]).startswith("`--drafters 'eagle:mine=a head' ")
    assert verdict.option("eagle:ofa:3", ["eagle:ofa?"]).startswith("`--drafters eagle:ofa ")


def test_a_wide_interval_is_not_taken_for_no_gain() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.0, "suffix:4": 0.5, "auto": 1.4}, noise=0.8)
    low, high = summary["tasks"][0]["methods"][-1]["over_off_interval"]
    assert low < 1 < 1.2 < high
    said = verdict.advice(summary)
    assert said.startswith("The fastest setting, `auto`, measured 1.")
    assert f"its 95 % interval ({low:.2f} to {high:.2f}) contains 1: prompts differ too much" in said


def test_the_verdict_never_contradicts_its_table() -> None:
    dice = random.Random(0)
    seen = set()
    for _ in range(150):
        speeds = {"transformers": dice.uniform(0.4, 1.2), "off": 1.0}
        speeds |= {name: dice.uniform(0.7, 1.4) for name in ("suffix:4", "suffix:8", "auto")}
        summary = {**summary_of(speeds, noise=dice.choice((0.02, 0.15, 0.4))), "unsteady": 1.0}
        rows = {row["method"]: row for row in summary["tasks"][0]["methods"]}
        shown = {name: rows[name]["over_off"] for name in ("suffix:4", "suffix:8", "auto")}
        said = " ".join(verdict.words(summary))
        claims = {
            "No setting tried here was faster": max(shown.values()) <= 1,
            "no single draft setting tried here was faster": max(shown["suffix:4"], shown["suffix:8"]) <= 1,
            "`auto` is slower than": shown["auto"] < 1,
            "Use `auto`": rows["auto"]["over_off_interval"][0] > 1,
            "contains 1: prompts differ too much": max(shown.values()) > 1,
            "clearly faster than `auto`": max(shown["suffix:4"], shown["suffix:8"]) > max(shown["auto"], 1),
            "was the fastest setting": max(shown.values()) > 1,
        }
        for claim, holds in claims.items():
            if claim in said:
                seen.add(claim)
                assert holds, (claim, shown, said)
    assert seen == set(claims), "each of them was said at least once"


def test_the_verdict_of_too_few_prompts_is_none() -> None:
    for prompts, count in ((1, "one prompt"), (4, "4 prompts")):
        told = words(off=1.0, auto=1.4, prompts=prompts, noise=0.0)
        assert f"`auto` ran 1.40 times as fast as {ENGINE}, on the {count} measured" in told[0]
        assert told[1] == "There are too few prompts for a conclusion; measure at least 5."


@pytest.mark.parametrize(
    ("texts", "unexplained", "said"),
    [
        (0, 0, "All 40 texts are identical to plain decoding's, token for token."),
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
    assert not any("something else was using this machine" in sentence for sentence in verdict.words(calm))
    *same, busy = verdict.words({**calm, "unsteady": 2.0})
    assert same == verdict.words(calm)
    assert "so rely on the intervals" in busy
    first, second = verdict.words({**calm, "unsteady": 50.8})
    assert first.startswith("Decoding without drafts was 50.8 times as fast on one prompt as on another")
    assert first.endswith("no conclusion is possible; measure again when it is idle.")
    assert second.startswith("Measured nevertheless: `auto` is 1.")


def test_a_speed_that_tokens_per_round_do_not_allow_is_not_believed() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.0, "suffix:4": 1.5, "auto": 1.4})
    suffix = next(row for row in summary["tasks"][0]["methods"] if row["method"] == "suffix:4")
    assert not any("cannot be" in sentence for sentence in verdict.words(summary))
    suffix["mat"] = 1.03
    said = verdict.words(summary)[-1]
    assert said.startswith("`suffix:4` measured 1.5")
    assert said.endswith("with 1.03 tokens per round, which cannot be: something else was using this machine.")


def test_what_drafts_bring_is_told_apart_from_what_the_forward_brings() -> None:
    summary = summary_of({"transformers": 1.0, "off": 1.25, "suffix:4": 1.25, "auto": 1.5}, noise=0.0)
    said = verdict.words(summary)
    assert said[0].startswith(f"On this machine `auto` is 1.20 times as fast as {ENGINE}")
    assert "Relative to plain transformers: `auto` 1.50, `off` 1.25 times as fast." in said
    rows = {row["method"]: row for row in summary["tasks"][0]["methods"]}
    assert (rows["suffix:4"]["over_off"], rows["off"]["over_off"]) == (1.0, None)
    assert verdict.standing(rows["suffix:4"]) == verdict.EVEN, "only its forward is faster than transformers'"
    assert verdict.standing(rows["off"]) == verdict.FASTER
