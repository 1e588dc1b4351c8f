"""The table of docs/models.md is what the tests of the families expect."""

from pathlib import Path

from families import ALL, row

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_table_of_families_is_that_of_the_tests() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("| family |"))
    shown = []
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        shown.append(line)
    assert shown == [row(family) for family in ALL]
    assert len({family.name for family in ALL}) > 20
