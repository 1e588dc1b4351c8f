"""Heads in public formats: what wager drafts with them is, token for token, what vLLM drafts."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import public_heads
import pytest
import vllm_drafts
from public_heads import PROMPT

from wager.eagle.drafter import Eagle
from wager.eagle.eagle3_head import Eagle3Head
from wager.models.hf_runner import HFRunner
from wager.models.select import runner
from wager.training import build
from wager.training.config import Drafter
from wager.training.learners import Target

if getattr(find_spec("vllm"), "origin", None) is None:  # the tests do not import it; this folder has its name, too
    pytest.skip("vLLM is not installed; see the README on serving", allow_module_level=True)

TOKENS, LENGTH = 16, 4
# Targets and heads: one of each format, with settings that people publish.
CASES: dict[str, tuple[str, str, Any]] = {
    "EAGLE": ("llama", "eagle", lambda folder: public_heads.eagle(folder)),
    "EAGLE-3": ("llama", "eagle3", lambda folder: public_heads.eagle3(folder)),
    "speculators": (
        "qwen3",
        "eagle3",
        lambda folder: public_heads.speculators(folder, eagle_aux_hidden_state_layer_ids=[1, 4, 6], embed=False),
    ),
    "trained": ("llama", "eagle3", lambda folder: trained(folder)),
    "speculators-qwen3": ("qwen3", "eagle3", lambda folder: public_heads.speculators(folder, "qwen3", **NORMS)),
}
SERVED = ("EAGLE-3", "speculators-qwen3")  # in engines that wager starts; the others know nothing of it
NORMS = {"norm_before_fc": True, "fc_norm": True, "norm_output": True, "norm_before_residual": False}


def trained(folder: Path) -> Path:
    """A head as `wager train` writes it."""
    drafter, columns = Drafter("eagle3-x", "eagle3"), public_heads.drafted_tokens(5)
    made, config = build.learner(drafter, Target(public_heads.target()), columns=columns)
    build.save(folder, drafter, made.module.state_dict(), config, {"depth": public_heads.LAYERS}, columns.tolist())
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path, Path]]:
    """Of every case the target, its folder and the head's."""
    place = tmp_path_factory.mktemp("heads")
    made = {}
    for name, (kind, _, make) in CASES.items():
        model = public_heads.target(kind)
        model.save_pretrained(place / kind)
        made[name] = model, place / kind, make(place / name)
    return made


@pytest.fixture(scope="module")
def oracle(folders: dict[str, tuple[Any, Path, Path]]) -> dict[str, Any]:
    """What vLLM writes and drafts in every case."""
    cases = [
        {"target": str(folders[name][1]), "head": str(folders[name][2]), "method": method, "prompt": PROMPT,
         "tokens": TOKENS, "length": LENGTH, "spec": f"eagle3={folders[name][2]}" if name in SERVED else ""}
        for name, (_, method, _) in CASES.items()
    ]  # fmt: skip
    command = [sys.executable, vllm_drafts.__file__]
    ran = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return dict(zip(CASES, json.loads(ran.stdout.splitlines()[-1]), strict=True))


def drafts(model: Any, head: Path, text: list[int], kind: Any = runner) -> list[tuple[int, list[int]]]:
    """What wager drafts at each of the texts that end with the prompt's next tokens."""
    target, eagle = kind(model), Eagle(head)
    eagle.follow(target)
    target.begin()
    target.prefill(PROMPT)
    eagle.begin(PROMPT)
    made = []
    for at in range(len(PROMPT), len(text)):
        eagle.extend([text[at]])
        made.append((at + 1, eagle.propose(LENGTH).tokens))
        target.forward([text[at]], 1)
    return made


@pytest.mark.parametrize("case", CASES)
def test_drafts_are_vllms(case: str, folders: dict[str, tuple[Any, Path, Path]], oracle: dict[str, Any]) -> None:
    model, _, head = folders[case]
    text = [*PROMPT, *oracle[case]["text"]]
    theirs = {at: tuple(draft) for at, draft in oracle[case]["drafts"] if at <= len(text) and draft}
    assert len(theirs) >= TOKENS // 2
    assert len(set(theirs.values())) > 3, "drafts that are all alike would show nothing"
    for kind in (runner, HFRunner):
        ours = {at: tuple(draft) for at, draft in drafts(model, head, text, kind)}
        assert {at: ours[at] for at in theirs} == theirs


def test_the_oracle_would_notice_a_wrong_layer_and_a_wrong_token_map(
    folders: dict[str, tuple[Any, Path, Path]], oracle: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, head = folders["EAGLE-3"]
    text = [*PROMPT, *oracle["EAGLE-3"]["text"]]
    theirs = {at: draft for at, draft in oracle["EAGLE-3"]["drafts"] if at <= len(text) and draft}

    def same() -> bool:
        ours = dict(drafts(model, head, text))
        return {at: ours[at] for at in theirs} == theirs

    assert same()
    with monkeypatch.context() as patched:
        patched.setattr("wager.eagle.eagle3_head.default_layers", lambda count: (2, count // 2, count - 2))
        assert not same()
    with monkeypatch.context() as patched:
        patched.setattr(Eagle3Head, "named", lambda self, columns: columns)
        assert not same()
    with monkeypatch.context() as patched:
        patched.setattr(Eagle3Head, "_normed", lambda self, x, norm: x)
        assert not same()
