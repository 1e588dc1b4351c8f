"""The report's page: every figure with its source, texts token by token, and nothing from outside."""

import json
import re
from pathlib import Path

import pytest
from commands import Wager
from report_files import KEPT, RESULTS, Tables, a_run, a_text, put

from wager.report.page import MAKES, figures, render
from wager.report.read import read
from wager.report.scales import TIMES, width_of


def tokens_of(page: str) -> list[tuple[str, str]]:
    found = re.findall(r'<span class="t( [^"]*)?" style="--t:[^"]*"[^>]*>(.*?)</span>', page, re.S)
    plain = [(kind, re.sub(r'<i class="sign">.</i>', "", text)) for kind, text in found]
    return [(kind.strip(), text) for kind, text in plain]


def test_the_token_view_is_the_text_itself(tmp_path: Path) -> None:
    held = a_text()
    page = render([read(put(tmp_path / "text.json", held))])
    shown = tokens_of(page)
    whole = "".join(text for _, text in shown)
    assert whole == held["text"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert ["bonus" in kind for kind, _ in shown] == [who == "bonus" for who in held["sources"]]
    assert "round 1, suffix:4: 2 accepted\nrejected: “ &amp; calm”" in page
    assert '<span class="rejected" aria-hidden="true"> &amp; calm</span>' in page


def test_every_text_of_a_run_is_shown_with_its_tokens(run: Path) -> None:
    made = read(run)
    held = [a for a in a_run()["answers"] if a.get("pieces")]
    page = render([made])
    titles = re.findall("<summary><b>(.*?)</b>", page)
    assert len(titles) == len(held) == 6
    assert titles[:3] == ["qa-0 · auto", "rag-0 · auto", "summarization-0 · auto"]
    assert len(tokens_of(page)) == sum(len(tokens) for a in held for _, tokens, _ in a["pieces"])


def test_every_figure_names_its_file_and_its_command(run: Path) -> None:
    paths = [run, *(RESULTS / name for name in ("serving-auto-cpu.json", "engine-cpu.json", "regret.json"))]
    materials = [read(path) for path in paths]
    page = render(materials)
    cards = re.findall(r"<figure.*?</figure>", page, re.S)
    drawn = figures(materials)
    assert len(cards) == len(drawn) > 9
    for card, figure in zip(cards, drawn, strict=True):
        assert f"Source: {figure.source.file}" in card
        assert f"Command: <code>{figure.source.command}</code>" in card
        assert figure.source.command
        assert "<table" in card, "the numbers behind every chart can be read"
    for path in paths:
        assert path.name in page


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    materials = [read(run), *(read(RESULTS / name) for name in KEPT)]
    page = render(materials)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|url\(|@import|https?://""", page)
    assert "default-src 'none'" in page
    assert page.count("<script>") == 1
    assert 'http-equiv="refresh"' not in page
    assert render(materials[:1]) == render([read(run)]), "the same file gives the same page"
    assert str(Path.home()) not in page


@pytest.mark.parametrize("name", KEPT)
def test_every_kept_result_of_a_known_kind_makes_a_page(name: str) -> None:
    page = render([read(RESULTS / name)])
    assert re.search(r"<h1>.+</h1>", page)
    assert "nan" not in re.findall(r'(?:cx|cy|x|y|points|d)="[^"]*(nan|inf)', page)


def test_what_a_file_says_is_shown_and_never_run(tmp_path: Path) -> None:
    held = a_run()
    evil = '<script>alert("1")</script>'
    for answer in held["answers"]:
        answer["prompt"] = evil if answer["prompt"] == "qa-0" else answer["prompt"]
        answer["method"] = evil if answer["method"] == "ucbspec" else answer["method"]
    held["prompts"][0] = {"id": evil, "task": evil, "tokens": 3}
    held["methods"] = [{**m, "name": evil} if m["name"] == "ucbspec" else m for m in held["methods"]]
    held["summary"] = json.loads(json.dumps(held["summary"]).replace('"ucbspec"', json.dumps(evil)))
    held["verdict"], held["command"] = [evil], f"wager bench {evil}"
    page = render([read(put(tmp_path / "run.json", held))])
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_charts_appear_only_where_there_is_data_and_the_page_says_what_makes_the_others() -> None:
    page = render([read(RESULTS / "engine-cpu.json")])
    assert [f.kind for f in figures([read(RESULTS / "engine-cpu.json")])] == ["cost"]
    missing = page.split("Not on this page")[1]
    for kind, (name, commands) in MAKES.items():
        assert (f"<b>{name}</b>" in missing) == (kind != "cost")
        assert (f"<code>{commands[0]}</code>" in missing) or kind == "cost"


def test_fixed_arms_are_no_policies_also_in_files_that_do_not_hold_the_arms_played() -> None:
    page = render([read(RESULTS / "generate-cpu.json")])
    strong = re.findall(r'<text[^>]*class="strong"[^>]*>([^<]*)</text>', page)
    policies = {"ucbspec", "exp3spec", "meta-ucb", "analytical", "kl-ucb:reward=goodput"}
    assert {name for name in strong if not name.endswith((TIMES, "…"))} == policies
    assert "analytical is 1.23 times as fast as wager without speculation" in page, "the best policy is named"
    assert "The best fixed arm, suffix:8, known only afterwards, reaches 1.29." in page
    assert "Relative to transformers&#39; plain decoding it is 1.51 times as fast." in page
    assert "a fixed arm</li>" in page


def test_an_axis_of_speed_ups_ends_just_beyond_its_longest_bar() -> None:
    page = render([read(RESULTS / "generate-cpu.json")])
    panels = re.findall(r"<h4>(\w+)</h4>\s*(<svg.*?</svg>)", page, re.S)
    assert len(panels) == 8
    for task, drawn in panels:
        long = max(float(width) for width in re.findall(r'width="([\d.]+)" height="14"', drawn))
        starts = float(re.findall(r'<rect x="([\d.]+)"', drawn)[0])
        values = [float(said) for said in re.findall(rf">([\d.]+){TIMES}</text></g>", drawn)]
        ends = 330 - 10 - max(width_of(f"{value:.2f}{TIMES}") for value in values)
        assert long > 0.95 * (ends - starts), task


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_goes_and_said_to_be(tmp_path: Path, cli: Wager) -> None:
    whole = a_run()
    last = whole["prompts"][-1]["id"]
    answers = [a for a in whole["answers"] if a["prompt"] != last or a["method"] == "off"]
    cut = {**whole, "complete": False, "answers": [], "summary": {}, "verdict": []}
    lines = [*(json.dumps(a) for a in answers), '{"prompt": "qa-0", "met']
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    page = render([read(put(tmp_path / "run.json", cut))])
    said = f"run.json is not finished: {len(answers)} of {len(whole['answers'])} answers are there."
    assert f"<h1>{said}</h1>" in page
    done = cli("report", tmp_path)
    assert done.code == 0
    assert f"{said} To resume it: {cut['command']}\n" in done.err
    finished = cli("report", put(tmp_path / "whole.json", whole))
    assert "not finished" not in finished.err + Path("report.html").read_text()
    assert Tables(page).of["Arm choice over time: auto"]
    assert read(tmp_path).cards[0].kind == "choice", "a folder stands for its run"
