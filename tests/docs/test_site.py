"""The site builds without a warning, and needs nothing from the network to be read."""

import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # an advertisement on standard error
pytest.importorskip("material", reason="mkdocs-material is not installed; it comes with wager[docs]")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page fetches, where it leads, and the places others may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {key: value or "" for key, value in attrs}
        self.places.update(filter(None, (named.get("id"), named.get("name"))))
        if tag == "a":
            self.links.append(named.get("href", ""))
        elif tag == "link" and named.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(named.get("href", ""))
        elif "src" in named:
            self.fetched.append(named["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out)))  # strict: a warning is an error
    return out


def test_every_page_is_there_and_has_a_title(site: Path) -> None:
    for source in (ROOT / "docs").glob("*.md"):
        page = (site / source.name).with_suffix(".html").read_text()
        assert re.search(r"<h1[ >]", page), f"{source.name} has no title"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not [one for one in Page(path).fetched if urlsplit(one).scheme or one.startswith("//")], path.name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


def test_links_and_pictures_lead_to_files_of_the_site(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or not link:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name} leads to {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].places, f"{path.name} leads to {link}"


def test_files_outside_the_docs_travel_with_the_site(site: Path) -> None:
    assert (site / "files/results/regret.png").read_bytes() == (ROOT / "results/regret.png").read_bytes()
    assert 'src="files/results/regret.png"' in (site / "simulation.html").read_text()


def test_lists_are_lists(site: Path) -> None:
    """A list without an empty line before it is one on a repository browser, and running text on the site."""
    for path in site.glob("*.html"):
        assert not re.findall(r"<p>[^<]*\n\s*[-*] ", path.read_text()), path.name


def test_links_that_lead_nowhere_stop_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copyfile(ROOT / "docs/outside.py", tmp_path / "docs/outside.py")
    (tmp_path / "docs/auto.md").write_text("# auto\n")
    wrong = "[a](nowhere.md), [b](../nowhere.json), [c](auto.md#nowhere)"
    (tmp_path / "docs/index.md").write_text(f"# Home\n\n{wrong} and [here](auto.md)\n")
    settings = re.sub(r"\nnav:.*", "\n", (ROOT / "mkdocs.yml").read_text(), flags=re.DOTALL)
    (tmp_path / "mkdocs.yml").write_text(settings)
    out = str(tmp_path / "site")
    with pytest.raises(Abort, match="3 warnings"):
        build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=out))
    (tmp_path / "docs/index.md").write_text("# Home\n\nand [here](auto.md)\n")
    build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=out))
