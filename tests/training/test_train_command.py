"""Training on the command line, from prompts to a drafter that decodes."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_setup import WORDS, plan_text, tiny
from typer.testing import CliRunner

from wager import Decoder
from wager.cli import app as cli
from wager.models import load
from wager.training import answers, prompts
from wager.training.config import Answers
from wager.training.vllm_answers import vllm_engine


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A tiny target with a tokenizer of letters."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    letters = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a"))
    letters.pre_tokenizer = Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>", unk_token="a")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content[:40] }}{% endfor %}"
    folder = tmp_path / "target"
    tiny(vocabulary=len(WORDS), layers=7).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=True)


def test_from_prompts_to_a_judged_drafter_that_decodes(tmp_path: Path, corpora: Path, target: Path) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "drafters" / "tiny"
    plan.write_text(plan_text().replace("TARGET", str(target)))
    asked = ("train", "answers", plan, "--data", corpora, "--answers", tmp_path / "answers", "--device", "cpu")
    assert run(*asked, "--shard", "1/2").exit_code == 0
    some = set((tmp_path / "answers").iterdir())
    late = run(*asked, "--minutes", "0").stdout
    assert f"{len(some)} of " in late, late
    assert set((tmp_path / "answers").iterdir()) == some
    assert run(*asked).exit_code == 0
    parts = set((tmp_path / "answers").iterdir())
    assert some < parts
    assert "0 new tokens" in run(*asked).stdout  # nothing twice
    texts = list(answers.texts(tmp_path / "answers"))
    assert {t.temperature for t in texts} == {0.0, 1.0}
    assert all(t.prompt < len(t.tokens) <= t.prompt + 8 for t in texts)
    learn = ("train", "drafters", plan, "--answers", tmp_path / "answers", "--out", folder)
    done = run(*learn, "--work", tmp_path / "work", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert {each.name for each in folder.iterdir()} == {"eagle-ofa", "eagle-code", "eagle3-ofa", "draft-ofa"}
    model, tokenizer = load(str(target), device="cpu")
    settings = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    plain = model.generate(torch.tensor([[5, 6, 7]]), **settings)[0, 3:].tolist()
    for kind, name in (("eagle", "eagle-code"), ("eagle3", "eagle3-ofa"), ("draft-model", "draft-ofa")):
        decoder = Decoder(model, tokenizer, drafters=[f"{kind}={folder / name}"], arms=[f"{kind}:3"], policy="random")
        assert decoder.generate([5, 6, 7], **settings).tokens == plain
    judge(tmp_path, plan, target, sorted(folder.iterdir()))


CATEGORIES = ("writing", "translation", "summarization", "qa", "math_reasoning", "rag")


def benchmark(data: Path) -> Path:
    """Prompts of Spec-Bench's categories."""
    data.mkdir()
    records = [json.dumps({"category": c, "turns": [f"{c} {w * 4}"]}) for c in CATEGORIES for w in "xyz"]
    (data / "spec_bench.jsonl").write_text("\n".join(records))
    return data


def judge(tmp_path: Path, plan: Path, target: Path, folders: list[Path]) -> None:
    """Drafters are judged and get their cards; wrong answers and broken weights are told."""
    data, kept = benchmark(tmp_path / "prompts"), tmp_path / "kept"
    tasks = [word for t in ("mt_bench", *CATEGORIES[1:]) for word in ("--task", t)]
    asked = ("train", "evaluate", *folders, "-m", target, "--data", data, *tasks, "--device", "cpu", "--answers", kept)
    done = run(*asked, "--prompts", "2", "--max-tokens", "12", "--json", tmp_path / "j.json", "--cards", plan)
    assert done.exit_code == 0, (done.output, done.exception)
    result = json.loads((tmp_path / "j.json").read_text())
    assert set(result["drafters"]) == set(result["spec_bench_mat_4"]) == {folder.name for folder in folders}
    row = result["drafters"]["eagle-ofa"]["qa"]
    assert row["texts"] == 2
    assert row["mat"]["4"] == pytest.approx(row["tokens"]["4"] / row["rounds"]["4"], abs=1e-4)
    assert "| qa |" in (folders[0].parent / "eagle-ofa" / "README.md").read_text()
    other = run(*asked, "--prompts", "3", "--max-tokens", "12")
    assert "answers to other prompts" in str(other.exception)
    weights = folders[0].parent / "eagle-ofa" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "cannot read" in str(run(*asked, "--prompts", "2", "--max-tokens", "12").exception)


def test_answers_of_vllm_are_those_of_transformers(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for vLLM's public interface: prompts, sampling and order are passed on as they are meant."""
    model, _ = load(str(target), device="cpu")
    some = tuple((prompts.Prompt("a", ()), tuple(range(3, 3 + n))) for n in (4, 6, 5))
    seen: dict[str, Any] = {}

    class LLM:
        def __init__(self, **settings: Any) -> None:
            seen.update(settings)

        def generate(self, asked: list[dict[str, list[int]]], how: dict[str, Any], use_tqdm: bool) -> list[Any]:
            alone = [
                answers.Part("x", how["temperature"], ((some[0][0], tuple(a["prompt_token_ids"])),)) for a in asked
            ]
            found = [answers.transformers_engine(model)(part, how["max_tokens"])[0] for part in alone]
            outputs = [f[len(a["prompt_token_ids"]) :] for f, a in zip(found, asked, strict=True)]
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)]) for tokens in outputs]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=dict))
    engine = vllm_engine(target, longest=64, dtype="float32", cache=0.5, eager=True)
    part = answers.Part("t0-0000", 0.0, some)
    assert engine(part, 8) == answers.transformers_engine(model)(part, 8)
    assert (seen["model"], seen["max_model_len"], seen["kv_cache_memory_bytes"]) == (str(target), 64, 1 << 29)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match="needs vLLM"):
        vllm_engine(target, longest=64, dtype="float32", cache=None, eager=True)


def test_specialists_trained_together_take_the_same_steps(tmp_path: Path, corpora: Path, target: Path) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "drafters"
    kept = plan_text(steps=1000).replace("TARGET", str(target)).split("[[drafter]]")[0]
    shape = "steps = 1000\nevaluate = 1000\ntokens = 512\nunroll = 2\n"
    for name, domains in (("eagle-wiki", '["wiki"]'), ("eagle-mixed", '["*"]'), ("eagle3-mixed", '["*"]')):
        kind = name.split("-")[0]
        kept += f'[[drafter]]\nname = "{name}"\nkind = "{kind}"\ndomains = {domains}\n{shape}'
    plan.write_text(kept)
    asked = ("--answers", tmp_path / "answers", "--device", "cpu")
    assert run("train", "answers", plan, "--data", corpora, *asked).exit_code == 0
    learn = ("train", "drafters", plan, *asked, "--out", folder, "--work", tmp_path / "work")
    done = run(*learn, "--together", "--minutes", "0.005")
    assert done.exit_code == 0, (done.output, done.exception)
    steps = {each.name: json.loads((each / "config.json").read_text())["wager"] for each in folder.iterdir()}
    assert steps.keys() == {"eagle-wiki", "eagle-mixed", "eagle3-mixed"}
    (reached,) = {notes["held_out"]["step"] for notes in steps.values()}
    assert 0 < reached < 1000
    assert "needs --together" in str(run(*learn, "--minutes", "1").exception)
    data = benchmark(tmp_path / "prompts")
    judged = (
        "train",
        "evaluate",
        *sorted(folder.iterdir()),
        "-m",
        target,
        "--data",
        data,
        "--task",
        "qa",
        "--prompts",
        1,
    )
    held = ("--held-out", tmp_path / "answers", "--max-tokens", 8, "--device", "cpu", "--json", tmp_path / "j.json")
    done = run(*judged, *held)
    assert done.exit_code == 0, (done.output, done.exception)
    rows = json.loads((tmp_path / "j.json").read_text())["drafters"]
    assert rows.keys() == steps.keys()
    for row in rows.values():
        assert row["wiki (held out)"]["texts"] > 0
        assert list(row["wiki (held out)"]["mat"]) == ["1", "2", "3", "4", "5", "6"]


def test_bad_input_is_one_sentence(tmp_path: Path, corpora: Path, target: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text().replace("TARGET", str(target)))
    for arguments, complaint in (
        (("answers", tmp_path / "none.toml"), "cannot read"),
        (("answers", plan, "--data", tmp_path), "pass --data"),
        (("answers", plan, "--data", corpora, "--shard", "3/2"), "--shard is written"),
        (("answers", plan, "--data", corpora, "--engine", "hand"), "--engine is transformers or vllm"),
        (("drafters", plan, "--answers", tmp_path / "none"), "make them first"),
        (("drafters", plan, "eagle-none"), "no drafter 'eagle-none'"),
        (("evaluate", tmp_path, "--task", "none"), "unknown task"),
    ):
        done = run("train", *arguments)
        assert isinstance(done.exception, ValueError), (arguments, done.output)
        assert complaint in str(done.exception)


def test_parts_are_the_same_work_again() -> None:
    class Letters:
        def apply_chat_template(self, chats: list[list[dict[str, str]]], **_: Any) -> list[list[int]]:
            return [[len(m["content"]) for m in messages] for messages in chats]

    some = [prompts.Prompt("a", ({"role": "user", "content": "x" * n},)) for n in range(1, 50)]
    first, again = (answers.parts(some, Letters(), Answers(batch=8)) for _ in range(2))
    assert first == again
    greedy = [pair[0].key for part in first if part.temperature == 0 for pair in part.prompts]
    assert sorted(greedy) == sorted(p.key for p in some)
