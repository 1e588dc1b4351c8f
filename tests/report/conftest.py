"""A run that a report shows."""

from pathlib import Path

import pytest
from report_files import a_run, put


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return put(tmp_path / "run.json", a_run())
