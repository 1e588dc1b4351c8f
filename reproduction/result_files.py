"""Result files: what each must say of how it was made, and which are older than the code they measure."""

import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

REQUIRED = ("command", "commit", "date", "machine", "versions")
SHOWING = ("old_results.toml", "page.py", "pictures.py", "result_files.py", "summary.py")  # what results do not rest on
UNKNOWN = re.compile(r"unknown \(before ([0-9a-f]{7,40})\)")
# What says how many prompts, requests, runs or rounds a result rests on: at the top, or as an option of its command.
SIZES = (
    "prompts",
    "texts",
    "runs",
    "seeds",
    "requests",
    "finished",
    "steps",
    "turns",
    "compared",
    "parts",
    "experiments",
    "repeats",
)
OPTIONS = ("--runs", "--prompts", "--rounds", "--repeats")
ALWAYS = ("wager lab costs",)  # commands that time everything equally often, whatever their options
THEORY = tuple(f"reproduction/theory{part}.py" for part in ("", "_charts", "_lemmas", "_metasd", "_onthefly", "_runs"))
CHECK = "reproduction/replay_check.py"
# Which sources a result measures, by what its command begins with; the first that fits.
MEASURES = {
    "python -m reproduction.replay_check": (CHECK, "src/wager/decoding", "src/wager/policies", "src/wager/simulation"),
    "python -m reproduction.theory": (*THEORY, "src/wager/policies", "src/wager/simulation"),
    "python -m reproduction.turns": ("src/wager/vllm", "src/wager/policies"),
    "python -m reproduction": ("reproduction", "src/wager/policies", "src/wager/simulation"),
    "wager lab simulate": ("src/wager/policies", "src/wager/simulation"),
    "wager simulate": ("src/wager/policies", "src/wager/simulation"),
    "wager lab replay": ("src/wager/policies", "src/wager/simulation"),
    "wager replay": ("src/wager/policies", "src/wager/simulation"),
    "wager lab decisions": ("src/wager/policies",),
    "wager": ("src/wager/decoding", "src/wager/policies", "src/wager/drafters", "src/wager/eagle", "src/wager/models"),
}


def _texts(judged: Any) -> bool:
    """Whether a table of drafters judged on tasks says on how many texts."""
    rows = judged.values() if isinstance(judged, dict) else ()
    return bool(rows) and all("texts" in cell for row in rows for cell in row.values())


def problems(content: Mapping[str, Any], root: Path) -> list[str]:
    """What a result file lacks, or says that cannot be so; empty where it is sound."""
    found = [f"no {name}" for name in REQUIRED if not content.get(name)]
    command = str(content.get("command"))
    sized = any(content.get(name) for name in SIZES) or any(o in command for o in OPTIONS)
    sized = sized or command.startswith(ALWAYS) or _texts(content.get("drafters"))
    found += [] if sized else ["no sample sizes"]
    if content.get("command") and (why := refused(str(content["command"]))):
        found.append(f"its command is not accepted: {why}")
    commit = str(content.get("commit", ""))
    if commit.endswith("-dirty"):
        found.append("made with changes that were not committed")
    if commit and (why := no_ancestor(commit.removesuffix("-dirty"), root)):
        found.append(why)
    return found


def refused(command: str) -> str:
    """Why the command line would not take it; empty where it would. Nothing is run."""
    words = shlex.split(command)
    try:
        if words[:1] == ["wager"]:
            parse(words[1:])
        elif words[:3] == ["python", "-m", "reproduction"]:
            from reproduction.__main__ import command as reproduce

            alone = typer.Typer()
            alone.command()(reproduce)
            typer.main.get_command(alone).make_context("reproduction", words[3:])
        elif words[:3] == ["python", "-m", "reproduction.turns"]:
            from reproduction.turns import arguments

            with redirect_stderr(said := StringIO()):
                try:
                    arguments().parse_args(words[3:])
                except SystemExit:  # argparse's way to refuse
                    return said.getvalue().strip().rpartition("error: ")[2] or "not a command but a request for help"
        elif words[:2] != ["python", "-m"] or not words[2].startswith("reproduction."):
            return f"{words[0]} is no program of this repository"
    except Exception as error:  # the parser's own classes differ between versions of typer
        return str(getattr(error, "message", "") or error)
    return ""


def parse(words: list[str]) -> None:
    """Read a command line of wager's as the real parser does."""
    from wager.cli.app import app

    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="wager")
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        if isinstance(command, TyperGroup):
            context = typer.Context(command, info_name=name, parent=context)
    if isinstance(command, TyperGroup) and not command.invoke_without_command:
        raise ValueError("no command")
    command.make_context(context.info_name or "wager", list(words), parent=context)


def git(root: Path, *words: str) -> str | None:
    """What git prints; None where there is no git or no history."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def has_history(root: Path) -> bool:
    """Whether this is a checkout whose whole history is there."""
    return git(root, "rev-parse", "--is-shallow-repository") == "false" and (root / ".git").exists()


def no_ancestor(commit: str, root: Path) -> str:
    """Why a commit cannot be what a result here was made with; empty where it can, or where there is no history."""
    if UNKNOWN.fullmatch(commit):
        return "its commit is not known"
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return "" if commit.startswith("wager ") else f"{commit!r} is no commit"
    if not has_history(root) or git(root, "merge-base", "--is-ancestor", commit, "HEAD") is not None:
        return ""
    return f"commit {commit[:7]} is no ancestor of this one"


def stale(content: Mapping[str, Any], root: Path) -> str:
    """Which of the sources that a result measures changed since; empty where none did or history cannot tell."""
    commit, command = str(content.get("commit", "")), str(content.get("command", ""))
    known = UNKNOWN.fullmatch(commit)
    since = known[1] if known else commit.removesuffix("-dirty")
    paths = next((paths for begins, paths in MEASURES.items() if command.startswith(begins)), ())
    if not paths or not re.fullmatch(r"[0-9a-f]{7,40}", since):
        return ""
    apart = [*(f"reproduction/{name}" for name in SHOWING), *(path for path in (CHECK, *THEORY) if path not in paths)]
    changed = git(root, "diff", "--name-only", since, "HEAD", "--", *paths, *(f":!{path}" for path in apart))
    touched = sorted({path for path in paths for line in (changed or "").splitlines() if line.startswith(path)})
    return ", ".join(touched)


def read(path: Path) -> dict[str, Any]:
    """A result file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError
    except ValueError:
        raise ValueError(f"{path} holds no result: it is not a JSON object; make it again") from None
    return content
