"""The drafters shipped for SmolLM2-135M: all there, small enough, with their cards, and none changes a text."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from wager import Decoder
from wager.drafters import registry, shipped
from wager.eagle import checkpoint

FOLDER = Path(__file__).parents[2] / "drafters" / "smollm2-135m"
HEADS = ("ofa", "chat", "code", "math", "summarization", "translation")
MODELS = ("ofa", "code", "math")
SPECS = [*(f"eagle:{name}" for name in HEADS), *(f"draft:{name}" for name in MODELS)]
PROMPTS = (
    "A train has 12 cars with 34 seats each. How many seats are there?",
    "Translate German to English: Der Hund schläft im Garten.",
)


def test_they_are_all_there_and_small_enough() -> None:
    found = {name: one for name, one in shipped.available("smollm2-135m").items() if one.folder.parent == FOLDER}
    assert set(found) == set(SPECS)
    sizes = {name: sum(f.stat().st_size for f in one.folder.iterdir()) for name, one in found.items()}
    assert max(sizes.values()) <= 12e6
    assert sum(sizes.values()) <= 90e6
    for one in found.values():
        card = (one.folder / "README.md").read_text(encoding="utf-8")
        assert all(heading in card for heading in ("## Data", "## Recipe", "## Tokens a round"))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_whole(name: str) -> None:
    head = checkpoint.read(FOLDER / f"eagle-{name}")
    assert head.notes["target"] == "smollm2-135m"
    assert head.frequent is not None
    assert all(torch.isfinite(tensor.float()).all() for tensor in head.tensors.values())


def test_no_text_changes_whoever_drafts(smollm2: Any) -> None:
    model, tokenizer = smollm2
    trees = [f"eagle:{name}:4@3x12" for name in HEADS]
    arms = [*(f"{spec}:3" for spec in SPECS), *trees]
    decoder = Decoder(model, tokenizer, drafters=["eagle:*", "draft:*"], arms=arms, policy="round-robin")
    gained: Counter[str] = Counter()
    for words in PROMPTS:
        messages = [{"role": "user", "content": words}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        plain = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        made = decoder.generate(messages, max_new_tokens=24, do_sample=False)
        assert made.tokens == plain[0, ids.shape[1] :].tolist()
        for played in made.rounds:
            gained[played.arm.drafter] += played.accepted
    assert set(gained) == {"off", *SPECS}
    assert sum(map(bool, gained.values())) > len(SPECS) / 2, gained  # each was played a few times only


def test_one_that_may_be_missing_is_taken_where_it_lies_ready_and_left_out_elsewhere() -> None:
    specs = ["suffix", "eagle:ofa?", "eagle:nobody?"]
    assert shipped.expand(specs, "smollm2-135m") == ["suffix", "eagle:ofa"]
    assert shipped.expand(specs, "another") == specs  # its weights may be known under another name
    assert shipped.expand(specs, "another", lambda: "of other weights") == ["suffix"]
    mark = checkpoint.read(FOLDER / "eagle-ofa").notes["target_fingerprint"]
    assert shipped.expand(specs, "another", lambda: mark) == ["suffix", "eagle:ofa"]


def test_what_may_be_missing_has_a_name() -> None:
    for spec in ("eagle:?", "eagle:*?"):
        with pytest.raises(ValueError, match="is written eagle:NAME"):
            registry.parse(spec)
    assert registry.parse("eagle:ofa?") == ("eagle:ofa", "")


def test_the_head_drafts_unless_told_otherwise(smollm2: Any) -> None:
    assert list(Decoder(*smollm2).drafters) == ["suffix", "prompt-lookup", "eagle:ofa"]
