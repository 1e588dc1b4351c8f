"""A draft model of another vocabulary: its text is proposed in the target's tokens, and the target's text stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from identity import first_difference_is_a_tie
from small import SHAPE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import wager
from wager.drafters import Draft, registry
from wager.drafters.universal import BROKEN, UniversalDraftModel

TEXT = "the harbour was quiet and the boats lay in the harbour while the master of the harbour slept in his boat. "
MORE = "a café by the quay was open, and the mäster drank his tea € 12 cups of it € before the boats came in. "


def tokenizer(size: int, corpus: str) -> PreTrainedTokenizerFast:
    """Bytes, and pairs of what is frequent in the corpus."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [corpus] * 3, trainers.BpeTrainer(vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def model(words: PreTrainedTokenizerFast, seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=512, **SHAPE)).eval()


TARGET, DRAFT = tokenizer(340, TEXT + MORE), tokenizer(300, TEXT)


def knowing(drafter: UniversalDraftModel, whole: str) -> UniversalDraftModel:
    """The drafter, with a draft model that knows how the text goes on."""

    def propose(length: int, sample: Any = None) -> Draft:
        seen = DRAFT.decode(drafter.drafter.text)
        assert whole.startswith(seen), "it is shown the text, and all of it"
        return Draft(DRAFT.encode(whole[len(seen) :])[:length])

    drafter.drafter.propose = propose  # type: ignore[method-assign]
    return drafter


@pytest.mark.parametrize("whole", [TEXT * 2, TEXT + MORE, MORE + MORE + TEXT])
def test_text_that_is_right_is_proposed_in_the_targets_tokens(whole: str) -> None:
    tokens = TARGET.encode(whole)
    drafter = knowing(UniversalDraftModel(model(DRAFT, 1), DRAFT, TARGET), whole)
    right = asked = 0
    for at in range(3, len(tokens) - 4):
        drafter.begin(tokens[:at])
        if not whole.startswith(TARGET.decode(tokens[:at])):
            assert drafter.propose(8) == Draft(), "within a character there is nothing to go on from"
            continue
        proposed = drafter.propose(4).tokens
        asked += 1
        assert whole.startswith(TARGET.decode(tokens[:at] + proposed).rstrip(BROKEN)), "it is the text"
        while proposed != tokens[at : at + len(proposed)]:
            proposed = proposed[:-1]  # a word that goes on beyond the draft has other tokens
        right += len(proposed)
    assert asked > 15
    assert right > 1.5 * asked


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8, "seed": 5}])
def test_the_text_is_the_targets_own(how: dict[str, Any]) -> None:
    target, arms = model(TARGET, 0), ["off", "draft-model:2", "draft-model:5"]
    plain = wager.Decoder(target, TARGET, drafters="suffix", arms=["off"]).generate(TEXT, max_new_tokens=50, **how)
    for small in (model(DRAFT, 1), model(TARGET, 0)):
        words = DRAFT if small.config.vocab_size == len(DRAFT) else TARGET
        drafter = UniversalDraftModel(small, words, TARGET)
        decoder = wager.Decoder(target, TARGET, drafters=[drafter], arms=arms, policy="random")
        made = decoder.generate(TEXT, max_new_tokens=50, **how)
        drafted = [played for played in made.rounds if played.arm.length]
        assert any(played.drafted for played in drafted)
        if how["do_sample"]:
            assert made.tokens == plain.tokens  # one seed, one text
        else:
            assert first_difference_is_a_tie(target, TARGET.encode(TEXT), made.tokens, plain.tokens, 1e-3)


def test_the_cache_is_kept_as_far_as_the_text_is_the_same() -> None:
    drafter, tokens = UniversalDraftModel(model(DRAFT, 1), DRAFT, TARGET), TARGET.encode(TEXT + MORE)
    drafter.begin(tokens[:30])
    drafter.propose(3)
    read: list[int] = []
    prefill = drafter.runner.prefill
    drafter.runner.prefill = lambda feed: (read.append(len(feed)), prefill(feed))[1]  # type: ignore[method-assign]
    drafter.extend(tokens[30:32])
    assert drafter.lag == 1
    after = drafter.propose(3).tokens
    assert read[0] < 12, "the beginning is not read again"
    again = UniversalDraftModel(model(DRAFT, 1), DRAFT, TARGET)
    again.begin(tokens[:32])
    assert again.propose(3).tokens == after
    assert drafter.memory > 0
    drafter.begin([])
    assert drafter.propose(3) == Draft()


def test_a_model_with_another_tokenizer_is_found_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(DRAFT, 1).save_pretrained(tmp_path)
    DRAFT.save_pretrained(tmp_path)
    target = model(TARGET, 0)
    decoder = wager.Decoder(target, TARGET, drafters=f"draft-model={tmp_path}", lengths=[3], policy="random")
    assert isinstance(decoder.drafters["draft-model"], UniversalDraftModel)
    made = decoder.generate(TEXT, max_new_tokens=20, do_sample=False)
    assert any(played.drafted for played in made.rounds)
    DRAFT.save_pretrained(tmp_path)
    same = wager.Decoder(model(DRAFT, 2), DRAFT, drafters=f"draft:mine={tmp_path}", lengths=[3])
    assert not isinstance(same.drafters["draft:mine"], UniversalDraftModel)
    assert registry.DRAFTERS["draft-model"].summary


def test_tokens_that_the_target_does_not_have_end_a_draft() -> None:
    class Wider:
        """The target's tokenizer with a token that its table has no row for."""

        def __len__(self) -> int:
            return len(TARGET)

        def decode(self, tokens: Sequence[int], **how: Any) -> str:
            return TARGET.decode(tokens, **how)

        def encode(self, text: str, **how: Any) -> list[int]:
            return [len(TARGET) if token == TARGET.encode("q")[0] else token for token in TARGET.encode(text, **how)]

    whole = "the boats of the qqqqq"
    drafter = knowing(UniversalDraftModel(model(DRAFT, 1), DRAFT, Wider()), whole)
    drafter.begin(TARGET.encode("the boats"))
    drafter.fit(len(TARGET))
    proposed = drafter.propose(20).tokens
    assert proposed
    assert max(proposed) < len(TARGET)
