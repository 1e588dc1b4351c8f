"""A state file that does not fit is refused or replaced, and nobody shares one with another model."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import states
import torch
from states import answer, decoder, keep, state, tiny

from wager.core import Arm
from wager.core.state_file import VERSION, StateWarning
from wager.decoding import state as wager_state
from wager.decoding.state import default_path, described
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.policies import build

pytestmark = pytest.mark.usefixtures("cache")


def _changed(**parts: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **parts})


def _without_learned(text: str) -> str:
    content = json.loads(text)
    content["state"]["learned"]["pulls"] = {"deck": 3}
    return json.dumps(content)


UNFIT: dict[str, tuple[Callable[[str], str], str]] = {
    "other version": (_changed(version=1), f"it has version 1, not {VERSION}"),
    "other wager": (_changed(wager="0.0.1"), "it has wager 0.0.1, not"),
    "other key": (_changed(of={"model": "Another"}), "it was learned with model 'Another', not 'LlamaForCausalLM'"),
    "no key": (_changed(of=None), "its state is damaged"),
    "other state": (_changed(state={"policy": "Nightjar"}), "saved state is for policy Nightjar"),
    "no state": (_changed(state=[]), "its state is damaged"),
    "other learned": (_without_learned, "its state is damaged"),
    "half": (lambda text: text[: len(text) // 2], "it is no policy state, or a damaged one"),
}
FOREIGN: dict[str, Callable[[str], str]] = {
    "other format": _changed(format="wager-trace"),
    "list": lambda text: "[]",
    "deep": lambda text: "[" * 100_000,
    "words": lambda text: "dear diary",
}


def _ignored_and_replaced(model: Any, path: Path, why: str, where: bool | Path) -> None:
    with pytest.warns(StateWarning) as said:
        other = decoder(model, where=where)
    assert len(said) == 1
    assert said[0].filename == states.__file__, "the warning points at who made the decoder"
    assert str(said[0].message).startswith(f"policy state {path} is not used and will be replaced: {why}")
    assert "\n" not in str(said[0].message)
    assert state(other) == state(decoder(model, where=False)), "nothing of it is taken up"
    answer(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keep(other)
        assert state(decoder(model, where=where)) == state(other)


@pytest.mark.parametrize(("case", "named"), [*((case, False) for case in UNFIT), ("other key", True), ("half", True)])
def test_a_file_that_does_not_fit_is_replaced_with_a_warning(
    model: Any, tmp_path: Path, case: str, named: bool
) -> None:
    change, why = UNFIT[case]
    where = tmp_path / "named.json" if named else True
    first = decoder(model, where=where)
    answer(first)
    path = keep(first)
    path.write_text(change(path.read_text()))
    _ignored_and_replaced(model, path, why, where)


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_is_no_state_is_refused_where_it_was_named(model: Any, tmp_path: Path, case: str) -> None:
    first = decoder(model)
    answer(first)
    path = keep(first)
    own = tmp_path / "diary"
    own.write_text(FOREIGN[case](path.read_text()))
    with pytest.raises(ValueError, match="no policy state of wager's"):
        decoder(model, where=own)
    with pytest.raises(ValueError, match="is a folder"):
        decoder(model, where=tmp_path)
    assert own.read_text() == FOREIGN[case](path.read_text())
    path.write_text(own.read_text())
    _ignored_and_replaced(model, path, "it ", True)


def test_nobody_shares_a_file_with_another_model_or_policy(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix, lookup = Suffix(), PromptLookup()
    arms = (Arm("off", 0), Arm("suffix", 2), Arm("suffix", 4))
    policy = build("auto", arms)
    bigger, half, named = tiny(3), tiny().to(torch.bfloat16), tiny()
    named.name_or_path = "org/name"
    drafting = DraftModel(tiny(1)), DraftModel(tiny(3))
    keys = [
        described(policy, model, [suffix], arms),
        described(policy, bigger, [suffix], arms),
        described(policy, half, [suffix], arms),
        described(policy, named, [suffix], arms),
        described(policy, model, [lookup], arms),
        described(policy, model, [suffix, lookup], arms),
        described(policy, model, [Suffix(max_tree_depth=8)], arms),
        described(policy, model, [PromptLookup(longest=3)], arms),
        *(described(policy, model, [drafter], arms) for drafter in drafting),
        described(policy, model, [suffix], arms[:2]),
        described(build("auto:budget=9", arms), model, [suffix], arms),
        described(build("ucbspec", arms), model, [suffix], arms),
    ]
    monkeypatch.setattr(wager_state, "processor", lambda: "Another CPU")
    keys.append(described(policy, model, [suffix], arms))
    assert len({default_path(key) for key in keys}) == len(keys)
    monkeypatch.undo()
    assert default_path(described(policy, tiny(), [Suffix()], arms)) == default_path(keys[0]), "found again"
    at = "/home/someone/.cache/huggingface/hub/models--org--name/snapshots/0123abcd"
    named.name_or_path = at
    assert described(policy, named, [suffix], arms)["model"] == "org/name", "online or not, the same model"
