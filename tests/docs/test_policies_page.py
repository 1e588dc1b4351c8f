"""The table of parameters in docs/policies.md says what `wager policies NAME` says."""

from collections import defaultdict
from pathlib import Path

from wager.policies import POLICIES
from wager.policies.parameters import MEANINGS, meaning

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def expected() -> list[str]:
    """A row for every parameter and meaning, with the policies that have it."""
    rows = defaultdict(list)
    for policy, entry in POLICIES.items():
        for parameter in entry.parameters:
            rows[parameter, meaning(policy, parameter)].append(f"`{policy}`")
    return [f"| `{name}` | {', '.join(having)} | {phrase} |" for (name, phrase), having in sorted(rows.items())]


def test_the_table_of_parameters_is_that_of_the_program() -> None:
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| parameter | of | meaning |\n| --- | --- | --- |\n")
    assert table.partition("\n\n")[0].splitlines() == expected()


def test_every_parameter_has_a_phrase_and_every_phrase_a_parameter() -> None:
    having = {(policy, parameter) for policy, entry in POLICIES.items() for parameter in entry.parameters}
    assert [one for one in having if not meaning(*one)] == []
    assert set(MEANINGS) <= {name for _, name in having} | {".".join(one) for one in having}
