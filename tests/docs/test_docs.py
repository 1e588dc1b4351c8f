"""Every block of code in the README and the docs is run, parsed, or held against the real command line.

======================  ==============================================================================================
block                   what happens to it
======================  ==============================================================================================
python                  is run, after those before it on its page; those of NOT_RUN are compiled only
sh, console, no label   every line is a command that exists, with options that exist; those of RUN are run
json, toml, yaml        is parsed; a training plan is read as one
text                    is shown only: what a program prints
======================  ==============================================================================================

Anything else fails.
"""

import gzip
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pages import PAGES, PIP, ROOT, VLLM, Block, blocks, options, reproduction
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from reproduction import theory, turns
from wager.cli.app import app
from wager.drafters import registry
from wager.models import embedded
from wager.policies.registry import parse as parse_policy

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Python that is compiled and not run, by its first line.
NOT_RUN = {
    "import openai": "asks a running server",
    "import vllm": "loads a model into vLLM",
    "client.chat.completions.create(": "asks a running server",
}
# Commands that are run, and what makes them quick; the last of an option counts.
TINY = "tiny"  # a folder with a small random model
RUN = {
    "lab simulate": ["--tokens", "400", "--runs", "1", "--jobs", "1"],
    "policies": [],
    "lab replay": ["--runs", "1", "--jobs", "1", "--lengths", "2,4"],
    "lab trace": [],
    "datastore build": ["--model", TINY],
    "generate": ["--model", TINY, "--max-tokens", "6", "--no-state"],
}
# Words that stand for something a reader has, and drafters of a model that is not the tiny one.
PLACEHOLDER = re.compile(r"[A-Z]{3,}|heads/|\b(eagle|draft):|…\w")
PYTHON = {
    "pytest",
    "reproduction",
    "reproduction.theory",
    "reproduction.turns",
    "wager",
}  # modules that python -m may name
SHELL = ("sh", "console", "")
DATA = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


def of(kinds: tuple[str, ...]) -> list[Path]:
    return [page for page in PAGES if any(block.kind in kinds for block in blocks(page))]


def shown_only(block: Block) -> bool:
    return block.kind in ("python", "") and block.first in NOT_RUN


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's models, and a place of its own for everything else that is kept, such as policy memory."""
    models = embedded.cache() / "models"
    models.mkdir(parents=True, exist_ok=True)
    cache = tmp_path_factory.mktemp("cache")
    (cache / "models").symlink_to(models, target_is_directory=True)
    monkeypatch.setenv("WAGER_CACHE", str(cache))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_is_of_a_known_kind(page: Path) -> None:
    assert len(re.findall(r"^\s*```", page.read_text(), flags=re.MULTILINE)) == 2 * len(blocks(page)), (
        f"{page.name} has a fence that does not stand at the beginning of a line, or is not closed"
    )
    for block in blocks(page):
        assert block.kind in ("python", "text", *SHELL, *DATA), f"{block.where}: nobody knows how to check {block.kind}"


@pytest.fixture(scope="module")
def shallow(smollm2: Any) -> Any:
    """The embedded model's first three layers: what pages show of it runs as it does on all thirty, but sooner."""
    from wager.bench.draft_models import truncated

    return truncated(smollm2[0], 3), smollm2[1]


@pytest.mark.parametrize("page", of(("python",)), ids=lambda p: p.name)
def test_a_pages_python_blocks_run(page: Path, shallow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wager.models.load", {"smollm2-135m": shallow}.__getitem__)
    monkeypatch.setattr("wager.eagle.head.agree", lambda *_: True)  # its head was trained for all thirty layers
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.kind == "python":
            code = compile(block.code, block.where, "exec")
            if not shown_only(block):
                exec(code, names)


def test_what_is_not_run_compiles_and_is_still_there() -> None:
    left = [block for page in PAGES for block in blocks(page) if shown_only(block)]
    for block in left:
        compile(block.code, block.where, "exec")
    assert {block.first for block in left} >= set(NOT_RUN) - {"arm = policy.choose(context)"}  # the README's may go


@pytest.mark.parametrize("page", of(tuple(DATA)), ids=lambda p: p.name)
def test_data_blocks_are_what_they_say(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.kind in DATA:
            DATA[block.kind](block.code)
        if block.kind == "toml" and block.code.startswith("target"):
            from wager.training import config

            plan = tmp_path / "plan.toml"
            plan.write_text(block.code)
            config.read(plan)


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, as words: no comments, no prompts, no variables before them."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line.removeprefix("$ "), comments=True), "&&"]:
            if word != "&&":
                if words or not re.fullmatch(r"[A-Z_]+=.*", word):
                    words.append(word)
            elif words:
                yield [words[0].removeprefix(".venv/bin/"), *words[1:]]
                words = []


def check(words: list[str], where: str) -> None:
    """Refuse a command that does not exist, or an option that it does not have."""
    program, *rest = words
    if program == "wager":
        check_wager(rest, where)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE)
        variables = re.findall(r"^(?:ifdef )?([A-Z]+)(?: \?=.*)?$", makefile, flags=re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= set(targets), f"{where}: make knows {targets}"
        assert {word.partition("=")[0] for word in rest if "=" in word} <= set(variables), f"{where}: {variables}"
    elif program == "pip":
        check_pip(rest, where)
    elif program == "python":
        assert rest[0] == "-m", f"{where}: python -m …"
        assert rest[1] in PYTHON, f"{where}: no module {rest[1]} here"
        if rest[1] == "reproduction":
            assert {word for word in rest[2:] if word.startswith("--")} <= options(reproduction()), where
        elif rest[1] == "reproduction.theory":
            assert {word for word in rest[2:] if word.startswith("--")} <= options(get_command(theory.app)), where
        elif rest[1] == "reproduction.turns":
            turns.arguments().parse_args(rest[2:])
    elif program == "docker":
        check_docker(rest, where)
    else:
        assert words == ["mkdocs", "build"], f"{where}: {program!r} is no command that pages may name"


def check_wager(words: list[str], where: str) -> None:
    try:
        context = parsed(words)
    except Exception as error:  # of the parser's, whose classes differ between versions of typer
        pytest.fail(f"{where}: wager {shlex.join(words)}: {getattr(error, 'message', '') or error!r}")
    if context is None:
        return
    given = context.params
    for spec in listed(given.get("policy")):
        parse_policy(spec)
    for spec in listed(given.get("drafters")):
        for one in spec.split(","):
            registry.parse(one)
    if context.info_name == "serve" and "drafter" in given:  # not bench serve
        from wager.vllm.settings import DRAFTERS, Settings

        Settings(tuple(given["drafter"] or DRAFTERS), given["max_length"], given["policy"], given["budget"])
        assert {word for word in context.args if word.startswith("--")} <= VLLM, f"{where}: no option of vLLM's we know"


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def parsed(words: list[str]) -> typer.Context | None:
    """The command line as the real parser reads it; nothing is run. None where it is about wager itself."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="wager")
    if words[0].startswith("-"):
        assert set(words) <= options(command), f"wager has no option {words[0]}"
        return None
    name = ""
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        if isinstance(command, TyperGroup):
            context = typer.Context(command, info_name=name, parent=context)
    assert not isinstance(command, TyperGroup) or command.invoke_without_command, f"wager {name} needs a command"
    return command.make_context(name, list(words), parent=context)


def check_pip(words: list[str], where: str) -> None:
    assert words[0] == "install", f"{where}: pip install …"
    for before, word in pairwise(words):
        if before in ("-r", "--requirement", "-c", "--constraint"):
            assert (ROOT / word).is_file(), f"{where}: no file {word}"
        elif word.startswith("--"):
            assert word in PIP, f"{where}: {word}"
        elif not word.startswith("-"):
            package, _, extras = word.rstrip("]").partition("[")
            ours = package == "wager" or (package.startswith(".") and (ROOT / package / "pyproject.toml").is_file())
            assert ours, f"{where}: what is {package}?"
            assert set(filter(None, extras.split(","))) <= set(PROJECT["optional-dependencies"]), f"{where}: {word}"


def check_docker(words: list[str], where: str) -> None:
    if words[0] == "build":
        assert (ROOT / words[words.index("--file") + 1]).is_file(), f"{where}: no such container file"
    else:
        assert words[0] == "run", f"{where}: docker build or docker run"
        check_wager(["serve", *words[words.index("wager") + 1 :]], where)  # the image's entry point


def check_block(block: Block) -> None:
    found = list(commands(block))
    assert found, f"{block.where}: a block without a label and without a command"
    for words in found:
        check(words, block.where)


@pytest.mark.parametrize("page", of(SHELL), ids=lambda p: p.name)
def test_every_command_and_its_options_exist(page: Path) -> None:
    for block in blocks(page):
        if block.kind in SHELL and not shown_only(block):
            check_block(block)


@pytest.mark.parametrize(
    "line",
    [
        "wager generate --polcy auto",
        "wager lab simulate --policy ucbspek",
        "wager lab simulate --policy ucbspec:epsilon=1",
        "wager generate x --drafters sufix",
        "wager serve MODEL --drafter nothing",
        "wager serve MODEL --prot 8000",
        "wager simulate",
        "wager bench --siute quick",
        "wager train",
        "wager top",
        "wager --verison",
        "make tests",
        "make reproduce FUL=1",
        "pip install wager[all]",
        "pip install . -r nowhere.txt",
        "pip install ./packages/nowhere",
        "docker build --file nowhere --tag wager dist",
        "docker run --gpus all wager MODEL --drafter nothing",
        "python script.py",
        "curl http://127.0.0.1:8000",
        "arm = policy.choose(context)  # no command",
    ],
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        check_block(Block(ROOT / "README.md", 1, "", line))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name: files of the checkout, a recording, texts, and a tiny model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from wager.models import load_tokenizer

    folder = tmp_path_factory.mktemp("place")
    for name in ("examples", "results"):
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    with gzip.open(ROOT / "results/recordings/test.jsonl.gz", "rt") as whole:
        header, *texts = whole
    few = [text for label in ('"humaneval"', '"mt_bench"') for text in [t for t in texts if label in t][:8]]
    (folder / "dev.jsonl").write_text("".join([header, *few]))
    with gzip.open(folder / "dev.jsonl.gz", "wt") as out:
        out.write((folder / "dev.jsonl").read_text())
    (folder / "notes.txt").write_text("The rivers are long. The rivers are wide.\n")
    (folder / "tickets.jsonl").write_text('{"text": "The printer does not print."}\n')
    tokenizer = load_tokenizer("smollm2-135m")
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(folder / TINY)
    tokenizer.save_pretrained(folder / TINY)
    return folder


def runs(words: list[str]) -> list[str] | None:
    """The command as it is run; None where it is not."""
    if words[0] != "wager" or any(PLACEHOLDER.search(word) for word in words[1:]):
        return None
    name = next((name for name in RUN if words[1:][: name.count(" ") + 1] == name.split()), None)
    return None if name is None else [*words[1:], *RUN[name]]


def runnable(page: Path) -> list[list[str]]:
    found = [words for b in blocks(page) if b.kind in SHELL and not shown_only(b) for words in commands(b)]
    return [command for words in found if (command := runs(words)) is not None]


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p)], ids=lambda p: p.name)
def test_a_pages_cheap_commands_run(page: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for item in place.iterdir():
        (tmp_path / item.name).symlink_to(item)
    monkeypatch.chdir(tmp_path)  # what a page writes is its own
    monkeypatch.setenv("COLUMNS", "160")
    for command in runnable(page):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{page.name}: wager {shlex.join(command)}: {done.exception!r}\n{done.output}"


def test_each_kind_of_cheap_command_is_run_somewhere() -> None:
    run = {" ".join(command) for page in PAGES for command in runnable(page)}
    for name in RUN:
        assert any(command.startswith(name) for command in run), f"no page shows wager {name}"
