"""Shared by the tests of training."""

import json
from pathlib import Path

import pytest
from training_setup import RECORDS


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    folder = tmp_path / "corpora"
    folder.mkdir()
    for name, records in RECORDS.items():
        (folder / name).write_text("\n".join(map(json.dumps, records)))
    line = "The river runs past Great Harbour and the old Tower of Stone. It was built by Edward Longshore. "
    (folder / "wiki.txt").write_text(line * 30 + "\n" + line)
    return folder
