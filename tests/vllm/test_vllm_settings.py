"""What serving is told, and what it refuses before anything is loaded; no vLLM needed but where it says so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import wager
from wager.core import Arm
from wager.vllm import compat
from wager.vllm.settings import KEY, PROPOSER, SCHEDULER, Settings
from wager.vllm.state import open_state


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drafters": ("medusa",)}, "unknown drafter 'medusa'"),
        ({"drafters": ("sufix",)}, "did you mean 'suffix'"),
        ({"drafters": ("suffix=3",)}, "is written suffix"),
        ({"drafters": ("eagle",)}, "is written eagle=MODEL"),
        ({"drafters": ("ngram=3",)}, "is written ngram"),
        ({"drafters": ("ngram", "suffix")}, "only one such in an engine"),
        ({"drafters": ("eagle:ofa", "eagle:code")}, "only one such in an engine"),
        ({"drafters": ("eagle:*",)}, "name one, as in eagle:ofa"),
        ({"drafters": ("draft:",)}, "is written draft:NAME"),
        ({"drafters": ("eagle:ofa=",)}, "or eagle:NAME=PATH"),
        ({"drafters": ("suffix", "suffix")}, "named twice"),
        ({"drafters": ()}, "at least one drafter"),
        ({"max_length": 0}, "1 to 32 tokens, not 0"),
        ({"max_length": 33}, "1 to 32 tokens, not 33"),
        ({"budget": -1}, "0 (none) or more"),
        ({"budget": 8, "drafters": ("ngram",)}, "a token budget is for"),
        ({"budget": 8, "policy": "nightjar"}, "has no token budget; auto has"),
        ({"uniform": "maybe"}, "auto, always or never"),
        ({"policy": "clairvoyant"}, "unknown policy 'clairvoyant'"),
        ({"policy": "fixed:length=3"}, "needs both"),
        ({"policy": "nightjar:beta=1"}, "has no parameter 'beta'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        Settings(**given)
    assert "\n" not in str(refused.value)


def test_a_drafter_that_vllm_runs_goes_to_the_scheduler_and_ours_to_the_proposer() -> None:
    for spec in ("ngram", "eagle=folder", "eagle:ofa", "eagle:mine=folder", "draft:ofa"):
        assert Settings((spec,)).hook == SCHEDULER
    assert Settings(("suffix", "prompt-lookup")).hook == PROPOSER


def test_off_and_the_longest_length_are_always_arms() -> None:
    for drafters in (("ngram",), ("suffix", "prompt-lookup")):
        for longest in (1, 2, 5, 8):
            arms = Settings(drafters, longest).arms
            assert str(arms[0]) == "off"
            names = {arm.drafter for arm in arms[1:]}
            assert len(names) == len(drafters)
            assert all(Arm(name, longest) in arms for name in names)


def test_settings_reach_the_engine_as_they_were() -> None:
    settings = Settings(("suffix",), 4, "kl-ucb:reward=goodput", 0, "never", 7, "file", "other", 3.0)
    carried = json.loads(json.dumps(settings.additional_config()))
    assert Settings.of(carried) == settings


def test_an_engine_without_settings_says_how_to_start_it() -> None:
    for carried in (None, {}, {KEY: 3}, {"other": {}}):
        with pytest.raises(ValueError, match="start it with `wager serve`"):
            Settings.of(carried)
    with pytest.raises(ValueError, match="no setting speed"):
        Settings.of({KEY: {"drafters": ["suffix"], "speed": 2}})


@pytest.mark.parametrize("found", ["0.26.0", "0.31.0", "0.34.0", "1.0.0", "dev"])
def test_a_version_that_was_not_tried_is_refused_by_name_and_range(found: str) -> None:
    with pytest.raises(ValueError, match=re.escape(found)) as refused:
        compat.check_version(found)
    assert "0.32.x and 0.33.x" in str(refused.value)
    assert "pip install" in str(refused.value)
    for tried in ("0.32.0", "0.32.1+cpu", "0.33.0"):
        compat.check_version(tried)


def test_a_version_that_was_tried_on_a_cpu_only_says_so_on_a_gpu() -> None:
    assert compat.gpu_caution("0.32.1") == ""
    assert "'vllm>=0.32,<0.33'" in compat.gpu_caution("0.33.0")


def test_state_survives(tmp_path: Path) -> None:
    settings = Settings(("ngram",), policy="round-robin")
    policy = settings.build_policy()
    path = tmp_path / "state.json"
    kept = open_state(path, policy)
    assert kept.loaded is None
    policy.last = 3  # type: ignore[attr-defined]
    kept.tick()
    kept.save()
    other = settings.build_policy()
    assert open_state(path, other).loaded is not None
    assert other.state_dict() == policy.state_dict()
    assert open_state(path, other, 1).path == tmp_path / "state.1.json", "replicas keep states of their own"


def test_in_a_shared_folder_a_new_replica_begins_with_what_another_learned_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(host: str, spec: str = "round-robin") -> tuple[Any, Any]:
        monkeypatch.setattr("socket.gethostname", lambda: host)
        policy = Settings(("ngram",), policy=spec).build_policy()
        return policy, open_state(tmp_path, policy)

    first, kept = start("a")
    assert kept.loaded is None
    assert kept.path == tmp_path / "a.json"
    first.last = 3
    kept.tick()
    kept.save()
    second, own = start("b")
    assert second.state_dict() == first.state_dict()
    assert own.path == tmp_path / "b.json"
    assert not own.path.exists(), "nothing is written before anything was learned here"
    other, _ = start("c", "nightjar")  # of another policy: it begins from nothing
    assert other.state_dict() == Settings(("ngram",), policy="nightjar").build_policy().state_dict()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")  # as a file that is removed while the folder is read
    third, _ = start("d")
    assert third.state_dict() == first.state_dict()


def test_state_that_does_not_fit_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.json"
    for content in ("", "[]", "{", '{"policy": "Nightjar"}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"\A.*does not fit.*\Z"):  # one line
            open_state(path, Settings(("ngram",), policy="round-robin").build_policy())
    path.unlink()
    kept = open_state(path, Settings(("ngram",), policy="round-robin").build_policy())
    kept.tick()
    kept.save()
    with pytest.raises(ValueError, match="saved state is for policy RoundRobin"):
        open_state(path, Settings(("ngram",), policy="nightjar").build_policy())
    path.write_text(path.read_text().replace(f'"wager": "{wager.__version__}"', '"wager": "0.0.1"'))
    assert open_state(path, Settings(("ngram",), policy="round-robin").build_policy()).loaded is None
    assert "will be replaced: it has wager 0.0.1" in caplog.text
