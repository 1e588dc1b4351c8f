"""The report command: files it cannot read leave no page, and a live page grows with its trace."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Wager, one_sentence
from report_files import RESULTS, a_run, a_text, rounds_of, write_trace

from wager.core import trace as traces
from wager.report.live import follow
from wager.report.page import render
from wager.report.read import read


def _without(held: dict[str, Any], *path: str | int) -> dict[str, Any]:
    at: Any = held
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return held


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "neither JSON nor a trace"),
    "prose": ("hello", "neither JSON nor a trace"),
    "bytes": (b"\xff\xfe\x00\x01", "is not text"),
    "gzip": (b"\x1f\x8b\x08\x00rest", "does not unpack"),
    "damaged gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\3garbage garbage", "does not unpack"),
    "not a number": (json.dumps({**a_text(), "summary": float("nan")}), "neither JSON nor a trace"),
    "list": ("[1, 2]", "no JSON object"),
    "stranger": ('{"command": "wager bench memory", "rows": []}', "written by: wager bench memory"),
    "version": ('{"format": "wager-run", "version": 9}', "version 9"),
    "old trace": ('{"format": "wager-trace", "version": 7, "meta": {}}\n', "version 7"),
    "broken trace": ('{"format": "wager-trace", "version": 2, "meta": {}}\n{"round": {}}\n{"x": 1}\n', "line 2"),
    "no tokens": (json.dumps(_without(a_run(each=1), "answers", 0, "tokens")), "lacks 'tokens'"),
    "no summary of a task": (json.dumps(_without(a_run(each=1), "summary", "tasks", 0, "methods")), "lacks 'methods'"),
    "odd kind": (json.dumps({**a_run(each=1), "methods": [{"name": "x", "kind": "odd"}]}), "not 'odd'"),
    "unknown arm": (json.dumps({**a_run(each=1), "arms": ["off"]}), "does not hold together"),
    "no widths": ('{"widths": [], "own_seconds_per_round": {"median": 1}, "context": 3}', "lacks"),
    "words for numbers": (json.dumps({**a_text(), "summary": "none"}), "does not hold together"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_read_is_named_in_one_sentence_and_no_page_is_written(
    case: str, run: Path, tmp_path: Path, cli: Wager
) -> None:
    content, said = BAD[case]
    bad, out = tmp_path / "bad.json", tmp_path / "report.html"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = render([read(run)])
    out.write_text(before)
    done = cli("report", run, bad, "-o", out)
    one_sentence(done, said)
    assert "bad.json" in done.err
    assert out.read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "report.html", "run.json"]


def test_the_command_line(run: Path, tmp_path: Path, cli: Wager) -> None:
    out = tmp_path / "page.html"
    done = cli("report", run, RESULTS / "engine-cpu.json", "-o", out)
    assert (done.code, "page.html" in done.err) == (0, True)
    assert out.read_text().startswith("<!doctype html>")
    for wrong, said in {
        (): "name files to report",
        (run, "--live", run): "name files to report",
        (tmp_path / "none.json",): "none.json",
        (run, "-o", run): "is one of the files to read",
        (run, "-o", tmp_path / "no" / "page.html"): "cannot write",
        ("--live", run, "--every", "0"): "--every is 0.2 to 3,600 seconds",
        ("--live", run, "--every", "inf", "--idle", "inf"): "--every is 0.2 to 3,600 seconds",
        ("--live", run): "is not a wager trace",
    }.items():
        given_out = () if "-o" in wrong else ("-o", out)
        done = cli("report", *wrong, *given_out)
        assert (done.code, said in done.err) == (2, True), wrong


@pytest.mark.parametrize("live", [False, True])
def test_a_file_that_is_no_report_is_overwritten_only_by_force(
    live: bool, run: Path, tmp_path: Path, cli: Wager
) -> None:
    trace = write_trace(tmp_path / "made-up.trace", rounds_of(10))
    words = ("--live", trace, "--every", "0.2", "--idle", "0.2") if live else (run,)
    out = tmp_path / "page.html"
    for theirs in ("my notes\n", "<!doctype html>\n<title>My page</title>\n", "about <title>wager report: x</title>"):
        out.write_text(theirs)
        one_sentence(cli("report", *words, "-o", out), "page.html exists and is not a report that wager wrote")
        assert out.read_text() == theirs
    assert cli("report", *words, "-o", out, "--force").code == 0
    assert cli("report", *words, "-o", out).code == 0, "a report of its own is overwritten"
    out.write_text("")
    assert cli("report", *words, "-o", out).code == 0, "nothing is lost with an empty file"


class Clock:
    """Time that passes when someone sleeps; then the next thing happens."""

    def __init__(self, *happens: Any) -> None:
        self.now, self.happens = 0.0, list(happens)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.happens:
            self.happens.pop(0)()

    def follow(self, trace: Path, page: Path, *, every: float, idle: float) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wager.report.live.time", self)
            follow(trace, page, every=every, idle=idle, told=str)


def test_a_live_page_grows_with_its_trace_and_ends_without_a_refresh(tmp_path: Path) -> None:
    rounds = rounds_of(40)
    path, page = write_trace(tmp_path / "live.trace", rounds[:10]), tmp_path / "report.html"
    seen: list[str] = []

    def add(some: list[Any], rest: str = "") -> None:
        seen.append(page.read_text())
        with path.open("a") as file:
            file.write("".join(json.dumps(traces.encode(r)) + "\n" for r in some) + rest)

    half = json.dumps(traces.encode(rounds[20]))
    clock = Clock(lambda: add(rounds[10:20], half[:15]), lambda: add([], half[15:] + "\n"), lambda: add(rounds[21:]))
    clock.follow(path, page, every=2.0, idle=6.0)
    assert all('<meta http-equiv="refresh" content="2">' in each for each in seen)
    counted = [re.search(r"in (\d+) rounds", each) for each in seen]
    assert [int(found[1]) for found in counted if found] == [10, 20, 21]
    last = page.read_text()
    assert "refresh" not in last
    assert 'class="live"' not in last
    assert "in 40 rounds" in last
    assert clock.now == 3 * 2 + 6, "it waited as long as told for more"


def test_ctrl_c_and_a_trace_that_goes_leave_the_last_page(tmp_path: Path) -> None:
    path, page = write_trace(tmp_path / "live.trace", rounds_of(12)), tmp_path / "report.html"

    def interrupt() -> None:
        raise KeyboardInterrupt

    for happens in (interrupt, path.unlink):
        clock = Clock(happens)
        clock.follow(path, page, every=1.0, idle=9.0)
        assert "refresh" not in page.read_text()
        assert "in 12 rounds" in page.read_text()
        assert clock.now == 1


def test_a_trace_whose_first_line_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path, page = tmp_path / "live.trace", tmp_path / "report.html"
    whole = write_trace(tmp_path / "whole.trace", rounds_of(12)).read_text()
    path.write_text(whole[:20])
    clock = Clock(lambda: path.write_text(whole))
    clock.follow(path, page, every=1.0, idle=2.0)
    assert "in 12 rounds" in page.read_text()


def test_a_trace_with_no_round_yet_has_a_page(tmp_path: Path) -> None:
    assert "holds no round yet" in render([read(write_trace(tmp_path / "new.trace", []))], refresh=1.0)
