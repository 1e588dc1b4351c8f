"""A policy that fails ends no engine: it decodes plainly from then on, and says so once."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from astray import Astray, AstrayBatches
from proposing import CONTEXT, ROWS, make, run

from wager.core import OFF, Arm, Context, Round
from wager.policies import Policy, build
from wager.vllm import compat, proposer
from wager.vllm.guarded import PLAIN, guard
from wager.vllm.lengths import Lengths
from wager.vllm.metrics import Meter
from wager.vllm.policy_file import PolicyFile
from wager.vllm.settings import KEY, Settings
from wager.vllm.state import open_state

ARMS = (OFF, Arm("ngram", 2))
FIXED = "fixed:drafter=suffix,length=4"


def break_in(policy: Policy, method: str, calls: int = 0) -> Policy:
    """The policy, which fails in this method after so many calls."""
    own, left = getattr(policy, method), calls

    def call(asked: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("out of luck")
        return own(asked)

    setattr(policy, method, call)
    return policy


def break_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every policy that settings build from now on fail in its twentieth choice."""
    own = Settings.build_policy
    monkeypatch.setattr(Settings, "build_policy", lambda self, spec=None: break_in(own(self, spec), "choose", 19))


def said_once(caplog: pytest.LogCaptureFixture, method: str, why: str = "out of luck") -> None:
    """One error was logged, about this method, with its traceback."""
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.name == "vllm.wager"
    assert f"failed in {method}; nothing is drafted from now on, and texts are not affected" in record.getMessage()
    assert record.exc_info is not None
    assert why in caplog.text


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        *((FIXED, method) for method in ("choose", "observe")),  # for the step
        *(("auto", method) for method in ("select_drafters", "choose_batch", "observe_batch")),  # for each request
    ],
)
def test_where_a_policy_fails_texts_go_on_and_nothing_is_drafted(
    spec: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    batch = make(spec)
    batch.use(guard(break_in(batch.settings.build_policy(), method, 20)))
    texts = run(batch, 100)
    assert sum(texts.drafted[:20]) > 0
    assert sum(texts.drafted[-50:]) == 0
    said_once(caplog, method)


@pytest.mark.parametrize("instead", [Arm("suffix", 99), Arm("magic", 4), Arm("suffix", 4, None, ARMS[1]), None])
def test_a_step_goes_on_without_drafts_after_an_arm_that_is_not_there(
    instead: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batch = make(FIXED)
    batch.use(guard(Astray(batch.settings.arms, instead=instead, calls=20)))
    assert sum(run(batch, 100).drafted[20:]) == 0
    said_once(caplog, "choose", "policy Astray chose ")


@pytest.mark.parametrize("instead", [(2, 3), (0, 99), (0, -1), (-1, 3), (-7, 0), (0, 2.5)], ids=str)
def test_requests_go_on_without_drafts_after_a_choice_that_cannot_be(
    instead: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batch = make("auto")
    batch.use(guard(AstrayBatches(batch.settings.arms, instead=instead, calls=20)))
    assert sum(run(batch, 100).drafted[20:]) == 0
    said_once(caplog, "choose_batch", "policy AstrayBatches chose drafters ")


@pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "asynchronous"])
def test_the_scheduler_hook_goes_on_after_an_arm_that_is_not_there(
    overlap: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policy = guard(Astray(ARMS, instead=Arm("ngram", 3), calls=10))
    meter = Meter("scheduler", "fixed", ARMS, drafters=("ngram",), log_seconds=0.0, export=False)
    lengths = Lengths(policy, ARMS, meter, overlap=overlap)
    for _ in range(50):
        step, began = lengths.plan(4, 4, 0, False)
        lengths.finish(step, began, 0, 4, (0,) * step.arm.length, busy=True)
        assert step.length == 0
    said_once(caplog, "choose", "policy Astray chose ngram:3, which is no arm of this round; there are off, ngram:2")


@pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("method", ["choose", "observe"])
def test_the_scheduler_hooks_steps_go_on_without_drafts(
    method: str, overlap: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policy = guard(break_in(build("fixed:drafter=ngram,length=2", ARMS), method, 10))
    meter = Meter("scheduler", "fixed", ARMS, drafters=("ngram",), log_seconds=0.0, export=False)
    drafted, now = [0], 0.0
    lengths = Lengths(policy, ARMS, meter, overlap=overlap, clock=lambda: now)
    for number in range(100):
        if number == 5:
            policy.exploring = True  # until it fails: what is played then is no trial
        step, began = lengths.plan(4, 4, 4 * drafted[-1], False)
        now += 0.01  # deciding takes no time: the policy is asked in every step
        lengths.finish(step, began, 0, 4, (0,) * step.arm.length, busy=True)
        drafted.append(step.length)
    assert drafted[5] == 2
    assert set(drafted[-50:]) == {0}
    assert not lengths.rounds.trying
    said_once(caplog, method)


def test_a_guarded_policy_is_the_policy_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(("ngram",), policy="nightjar")
    policy, plain = settings.build_policy(), settings.build_policy()
    kept = open_state(tmp_path / "state.json", policy)
    assert guard(policy) is policy
    calls = [getattr(policy, name) for name in PLAIN]
    assert calls == [getattr(guard(policy), name) for name in PLAIN], "it is guarded once"
    for _ in range(200):
        arm = policy.choose(Context(policy.arms, 4))
        assert arm == plain.choose(Context(plain.arms, 4))
        told = Round(arm, 4 * arm.length, 2 * arm.length, 4 + 2 * arm.length, 4, verify_seconds=0.01)
        policy.observe(told)
        plain.observe(told)
    kept.tick()
    kept.save()
    again = guard(settings.build_policy())
    assert open_state(tmp_path / "state.json", again).loaded is not None
    assert again.state_dict() == policy.state_dict() == plain.state_dict()
    assert not caplog.records


def test_every_policy_that_a_control_file_names_is_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy"
    settings = Settings(("suffix", "prompt-lookup"), policy=FIXED, control=str(path))
    break_all(monkeypatch)
    for spec in ("", "random", "+random"):
        path.write_text(spec)
        batch = make("off")
        batch.use(PolicyFile(settings, settings.build_policy()).policy())
        run(batch, 40)
        said_once(caplog, "choose")
        caplog.clear()


def test_vllms_proposer_guards_its_policy(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    distributed = pytest.importorskip("vllm.distributed", reason="vLLM is not installed; see the README on serving")
    monkeypatch.setattr(distributed, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(compat, "follow_model_runner", lambda kind: None)
    break_all(monkeypatch)
    config = SimpleNamespace(
        additional_config={KEY: {"drafters": ["suffix"], "max_length": 5, "policy": FIXED, "log_seconds": 0.0}},
        speculative_config=SimpleNamespace(num_speculative_tokens=5),
        parallel_config=SimpleNamespace(data_parallel_index=0),
        scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        model_config=SimpleNamespace(max_model_len=CONTEXT),
    )
    texts = run(proposer.Proposer(config).batch, 100)
    assert sum(texts.drafted[:20]) > 0
    assert sum(texts.drafted[-50:]) == 0
    said_once(caplog, "choose")
