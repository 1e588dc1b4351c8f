"""Pages link to files outside docs/ as a repository browser wants it; the site takes those files with it.

A link such as ``../results/regret.png`` becomes ``files/results/regret.png``, and the file is copied there. A page that
lies outside, such as ``../CONTRIBUTING.md``, becomes a page of the site. A folder has none: its link becomes text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```\s*?$|`[^`\n]+`(?!\]))", flags=re.DOTALL | re.MULTILINE)  # code holds no links
FOLDER = "files"


def _page(path: str, docs: str) -> str:
    """Where a file of the repository lies on the site, relative to its pages."""
    return posixpath.relpath(path, docs) if path.startswith(docs + "/") else f"{FOLDER}/{path}"


def _links(text: str) -> list[str]:
    return [found[3] for part in FENCE.split(text)[::2] for found in LINK.finditer(part)]


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add every file outside docs/ that a page links to, and those that these link to."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir).name
    pages = [f"{docs}/{file.src_uri}" for file in files.documentation_pages()]
    taken = set(pages)
    while pages:
        page = pages.pop()
        for link in _links((root / page).read_text()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            if path in taken or path.startswith((docs + "/", "..")) or not (root / path).is_file():
                continue
            taken.add(path)
            file = File.generated(config, _page(path, docs), abs_src_path=str(root / path))
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
            if path.endswith(".md"):
                pages.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Point the links of a page at where their files lie on the site."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir).name
    here = page.file.src_uri
    origin = here.removeprefix(f"{FOLDER}/") if here.startswith(f"{FOLDER}/") else f"{docs}/{here}"

    def moved(found: re.Match[str]) -> str:
        image, text, link, anchor = found.groups(default="")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
        if (root / path).is_dir():
            return text
        return f"{image}[{text}]({posixpath.relpath(_page(path, docs), posixpath.dirname(here) or '.')}{anchor})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)
