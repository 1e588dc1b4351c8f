"""What is distributed beside the package: the wheel of drafters, the container file, the oldest supported versions."""

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from test_packaging import PROJECT, ROOT, python, small

from wager.vllm import compat

DRAFTERS = ROOT / "packages" / "drafters-smollm2"
BUILD = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"
FOUND = "from wager.drafters import shipped; print(*shipped.available('smollm2-135m'))"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drafters' wheel, made of a copy whose weights are only named."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for folder in (DRAFTERS, ROOT / "drafters"):
        left_out = shutil.ignore_patterns("build", "*.egg-info")
        shutil.copytree(folder, tree / folder.relative_to(ROOT), ignore=left_out, copy_function=small)
    made = python("-c", BUILD, str(out), cwd=tree / DRAFTERS.relative_to(ROOT))
    return out / made.stdout.split()[-1]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages with wager in it, away from the checkout."""
    shutil.copytree(ROOT / "src/wager", tmp_path / "site/wager", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "site"


def test_the_drafters_wheel_holds_every_drafter_and_its_licence(wheel: Path) -> None:
    assert wheel.name.startswith("wager_drafters_smollm2-")
    inside = zipfile.ZipFile(wheel).namelist()
    data = {name.removeprefix("wager_drafters/") for name in inside if ".dist-info/" not in name}
    assert data == files(ROOT / "drafters")
    for name in ("LICENSE", "NOTICE"):
        assert any(one.endswith(f".dist-info/licenses/{name}") for one in inside)
        assert (DRAFTERS / name).read_bytes() == (ROOT / name).read_bytes()


def test_installed_drafters_are_found_without_a_checkout(wheel: Path, installed: Path, tmp_path: Path) -> None:
    told = {"PYTHONPATH": str(installed), "WAGER_CACHE": str(tmp_path / "cache"), "WAGER_DRAFTERS": ""}
    assert python("-c", FOUND, cwd=tmp_path, **told).stdout.split() == []
    zipfile.ZipFile(wheel).extractall(installed)
    there = {folder.name.replace("-", ":", 1) for folder in (ROOT / "drafters/smollm2-135m").iterdir()}
    assert set(python("-c", FOUND, cwd=tmp_path, **told).stdout.split()) == there


def test_several_packages_of_drafters_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a folder of packages of its own, as with a user's site-packages; WAGER_DRAFTERS comes before them."""
    from wager.drafters import shipped

    monkeypatch.setenv("WAGER_DRAFTERS", str(tmp_path / "own"))
    for place in ("own", "one/wager_drafters", "two/wager_drafters"):
        folder = tmp_path / place / "some-model" / "eagle-any"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (tmp_path / "two/wager_drafters/some-model/eagle-any").rename(
        tmp_path / "two/wager_drafters/some-model/draft-other"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "one"), str(tmp_path / "two")])
    found = shipped.available("some-model")
    assert set(found) == {"eagle:any", "draft:other"}
    assert found["eagle:any"].folder.is_relative_to(tmp_path / "own")


def test_python_dash_m_runs_the_command(tmp_path: Path) -> None:
    assert python("-m", "wager", "--version", cwd=tmp_path).stdout.startswith("wager ")


def instructions() -> list[tuple[str, str]]:
    """The container file's, each as its word and the rest."""
    text = (ROOT / "deploy/Containerfile").read_text().replace("\\\n", " ")
    lines = [line.partition(" ") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in lines]


def test_the_container_runs_wager_serve_on_the_supported_vllm() -> None:
    given = dict(instructions())
    assert next(word for word, _ in instructions()) == "FROM"
    image, _, tag = given["FROM"].rpartition(":")
    assert image.endswith("/vllm-openai")
    assert re.fullmatch(r"v\d+\.\d+\.\d+", tag)
    compat.check_version(tag.removeprefix("v"))
    (wanted,) = (one for one in map(Requirement, PROJECT["optional-dependencies"]["vllm"]) if one.name == "vllm")
    assert tag.removeprefix("v") in wanted.specifier
    assert f"'vllm=={tag.removeprefix('v')}'" in given["RUN"]  # not replaced, and its own requirements hold
    assert json.loads(given["ENTRYPOINT"]) == ["wager", "serve"]
    assert given["COPY"].split()[0] == "*.whl"  # the build context is dist


def oldest(requirement: Requirement) -> Version:
    """The lower bound of a requirement."""
    (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
    return Version(bound)


def test_the_oldest_versions_are_those_the_package_says_it_supports() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [Requirement(one) for one in (*PROJECT["dependencies"], *extras["bench"])]
    lines = [line for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {one.name: next(iter(one.specifier)) for one in map(Requirement, lines)}
    assert {one.operator for one in pinned.values()} == {"=="}
    assert {name: Version(one.version) for name, one in pinned.items()} == {one.name: oldest(one) for one in wanted}


def test_the_versions_made_together_are_supported() -> None:
    supported = {one.name: one for one in map(Requirement, PROJECT["dependencies"])}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    for pinned in map(Requirement, lines):
        assert next(iter(pinned.specifier)).version in supported[pinned.name].specifier
