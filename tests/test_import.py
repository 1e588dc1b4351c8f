"""What `import wager` does to the process: next to nothing."""

import os
import subprocess
import sys

import pytest

SAYS = "import os; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
LOADED = "sys.modules['torch'] = types.ModuleType('torch'); "  # as after `import torch`, which reads the variable


@pytest.mark.parametrize(
    ("given", "before", "says"),
    [
        ({}, "", "20000 None False"),
        ({"GOMP_SPINCOUNT": "7"}, "", "7 None False"),
        ({"OMP_WAIT_POLICY": "active"}, "", "None active False"),
        ({}, LOADED, "None None True"),
    ],
    ids=["nobody says", "spins are given", "a policy is given", "torch is loaded"],
)
def test_threads_wait_awake_for_less_long_unless_someone_says_how_long(
    given: dict[str, str], before: str, says: str
) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = f"import sys, types; {before}import wager; {SAYS}"
    done = subprocess.run([sys.executable, "-c", script], env={**own, **given}, capture_output=True, text=True)
    assert done.stdout.strip() == says, done.stderr


def test_the_variables_are_the_only_change_to_the_environment() -> None:
    script = "import os; before = dict(os.environ); import wager; print(sorted(os.environ.items() ^ before.items()))"
    own = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True)
    assert done.stdout.strip() in ("[('GOMP_SPINCOUNT', '20000')]", "[]"), done.stderr
