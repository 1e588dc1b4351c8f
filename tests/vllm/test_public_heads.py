"""Heads in public formats: what wager drafts with them is, token for token, what vLLM drafts.

The heads have random weights. With WAGER_HEAD=FOLDER there is one that `wager train` made instead, and its own target.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import public_heads
import pytest
import vllm_drafts
from public_heads import PROMPT

from wager.eagle import checkpoint
from wager.eagle.drafter import Eagle
from wager.eagle.eagle3_head import Eagle3Head
from wager.models import load, resolve
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
GIVEN, QUESTION = os.environ.get("WAGER_HEAD", ""), "Tom has 12 apples and buys 5 more bags of 8. How many has he now?"
SERVED = ("EAGLE-3", "speculators-qwen3")  # in engines that wager starts; the others know nothing of it
NORMS = {"norm_before_fc": True, "fc_norm": True, "norm_output": True, "norm_before_residual": False}


def trained(folder: Path) -> Path:
    """A head as `wager train` writes it."""
    drafter, columns = Drafter("eagle3-x", "eagle3"), public_heads.drafted_tokens(5)
    made, config = build.learner(drafter, Target(public_heads.target()), columns=columns)
    build.save(folder, drafter, made.module.state_dict(), config, {"depth": public_heads.LAYERS}, columns.tolist())
    return folder


@dataclass
class Case:
    """A target and a head, each also as a folder, and what the target reads and writes."""

    model: Any
    target: Path
    head: Path
    method: str
    prompt: list[int]
    tokens: int = TOKENS
    written: list[int] = field(default_factory=list)  # by vLLM
    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # vLLM's, by the number of tokens before each

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.written]


def given(head: Path) -> Case:
    """A head that was trained; its notes say for which target."""
    notes = checkpoint.read_config(head)["wager"]
    model, tokenizer = load(notes["target"], dtype="float32", device="cpu")
    asked = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    return Case(model, resolve(notes["target"]), head, notes["kind"], prompt, tokens=3 * TOKENS)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Every case, with what vLLM writes and drafts in it."""
    place, made = tmp_path_factory.mktemp("heads"), dict[str, Case]()
    for name, (kind, method, make) in ({} if GIVEN else CASES).items():
        model = public_heads.target(kind)
        model.save_pretrained(place / kind)
        made[name] = Case(model, place / kind, make(place / name), method, PROMPT)
    if GIVEN:
        made[GIVEN] = given(Path(GIVEN).resolve())
    asked = [
        {"target": str(case.target), "head": str(case.head), "method": case.method, "prompt": case.prompt,
         "tokens": case.tokens, "length": LENGTH, "spec": f"eagle3={case.head}" if name in SERVED else ""}
        for name, case in made.items()
    ]  # fmt: skip
    command = [sys.executable, vllm_drafts.__file__]
    ran = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=1200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    for case, found in zip(made.values(), json.loads(ran.stdout.splitlines()[-1]), strict=True):
        case.written = found["text"]
        case.drafts = {at: tuple(draft) for at, draft in found["drafts"] if at <= len(case.text) and draft}
    return made


def same(case: Case, kind: Any = runner) -> bool:
    """Whether wager drafts what vLLM does, wherever vLLM drafted in its text."""
    target, eagle, text = kind(case.model), Eagle(case.head), case.text
    eagle.follow(target)
    target.begin()
    target.prefill(case.prompt)
    eagle.begin(case.prompt)
    made = dict[int, tuple[int, ...]]()
    for at in range(len(case.prompt), len(text)):
        eagle.extend([text[at]])
        made[at + 1] = tuple(eagle.propose(LENGTH).tokens)
        target.forward([text[at]], 1)
    ours = {at: made[at] for at in case.drafts}
    agree = sum(ours[at] == case.drafts[at] for at in ours)
    print(f"{case.head.name}: {agree} of {len(ours)} drafts of {LENGTH} tokens are vLLM's ({kind.__name__})")
    return ours == case.drafts


@pytest.mark.parametrize("name", [GIVEN] if GIVEN else [*CASES])
def test_drafts_are_vllms(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    assert len(case.drafts) >= TOKENS // 2
    assert len(set(case.drafts.values())) > 3, "drafts that are all alike would show nothing"
    assert all(same(case, kind) for kind in (runner, HFRunner))


@pytest.mark.skipif(bool(GIVEN), reason="needs the heads with random weights")
def test_the_oracle_would_notice_a_wrong_layer_and_a_wrong_token_map(
    cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases["EAGLE-3"]
    assert same(case)
    with monkeypatch.context() as patched:
        patched.setattr("wager.eagle.eagle3_head.default_layers", lambda count: (2, count // 2, count - 2))
        assert not same(case)
    with monkeypatch.context() as patched:
        patched.setattr(Eagle3Head, "named", lambda self, columns: columns)
        assert not same(case)
    with monkeypatch.context() as patched:
        patched.setattr(Eagle3Head, "_normed", lambda self, x, norm: x)
        assert not same(case)
