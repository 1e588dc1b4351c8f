"""What the recorder puts into a recording."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from decoders import alike
from recorders import LONGEST, PROMPT, recorder, tiny

import wager
from wager.decoding.recorder import Recorder
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix


def written(model: Any, count: int) -> list[int]:
    return wager.Decoder(model, drafters="off", policy="off").generate(PROMPT, max_new_tokens=count).tokens


def agreed(draft: Sequence[int], coming: Sequence[int]) -> int:
    """Leading tokens that are the same, counted one by one."""
    count = 0
    while count < min(len(draft), len(coming)) and draft[count] == coming[count]:
        count += 1
    return count


@pytest.mark.parametrize("make", [PromptLookup, Suffix])
def test_a_cheap_drafters_track_is_what_it_proposes_at_each_position(make: Any) -> None:
    model = tiny()
    text = recorder(model, make()).record(PROMPT, "a", 40)
    tokens = written(model, 40)
    assert (text.prompt, text.tokens, text.limit) == (len(PROMPT), 40, 40)
    (track,) = text.tracks.values()
    for at in range(39):
        drafter = make()
        drafter.begin(PROMPT)
        for token in tokens[: at + 1]:
            drafter.extend([token])
        draft = drafter.propose(min(LONGEST, 40 - at - 2))
        assert track.size[at] == len(draft.tokens)
        assert track.agreed[at] == agreed(draft.tokens, tokens[at + 1 :])
        assert track.hint(at, LONGEST) == draft.hint
    assert 0 < sum(track.agreed) < sum(track.size)


def test_a_draft_models_track_is_what_it_drafts_token_by_token() -> None:
    model = tiny()
    draft_model = alike(model)
    text = recorder(model, DraftModel(draft_model)).record(PROMPT, "a", 40)
    tokens = written(model, 40)
    track = text.tracks["draft-model"]
    assert not track.cheap
    drafter = DraftModel(draft_model)
    for at in range(39):
        drafter.begin(PROMPT)
        drafter.extend(tokens[: at + 1])
        draft = drafter.propose(LONGEST)
        assert track.size[at] == len(draft.tokens) == LONGEST
        assert track.agreed[at] == agreed(draft.tokens, tokens[at + 1 :])
        whole = torch.tensor([[*PROMPT, *tokens[: at + 1]]])
        p, q = (torch.softmax(m(whole).logits[0, -1].detach(), -1) for m in (model, draft_model))
        assert track.overlap[at] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-4)
        assert track.confidence[at][0] == pytest.approx(float(q.max()), abs=1e-4)
    assert 0 < sum(track.agreed) < sum(track.size)


def test_a_draft_model_with_less_room_or_fewer_tokens_drafts_as_far_as_it_can() -> None:
    model = tiny()
    tokens = written(model, 40)
    short = tiny(max_position_embeddings=len(PROMPT) + 20)
    text = recorder(model, DraftModel(short)).record(PROMPT, "a", 40)
    assert text.tracks["draft-model"].size == [max(0, min(LONGEST, 19 - at)) for at in range(39)]
    foreign = max(tokens)
    first = tokens.index(foreign)  # nothing can be drafted from where this token stands
    assert first > 0
    narrow = DraftModel(tiny(1))
    narrow.runner.vocabulary = foreign
    text = recorder(model, narrow).record(PROMPT, "a", 40)
    assert text.tracks["draft-model"].size == [LONGEST] * first + [0] * (39 - first)
    for at in (0, first - 1, first, 38):
        narrow.begin(PROMPT)
        narrow.extend(tokens[: at + 1])
        assert len(narrow.propose(LONGEST).tokens) == text.tracks["draft-model"].size[at]


def test_a_drafter_that_remembers_knows_the_texts_before_and_not_the_one_it_is_asked_about() -> None:
    model = tiny()
    walker = recorder(model, Suffix())
    first, again = (walker.record(PROMPT, "a", 40) for _ in range(2))
    assert sum(again.tracks["suffix"].agreed) > sum(first.tracks["suffix"].agreed)  # now it has seen the text
    helped = Recorder(
        wager.Decoder(model, drafters=[Suffix()], policy="fixed:drafter=suffix,length=4"), {"suffix": Suffix()}, LONGEST
    )
    assert helped.record(PROMPT, "a", 40) == first  # whoever helps to write does not tell
    with pytest.raises(ValueError, match="drafters of its own"):
        Recorder(helped.decoder, helped.decoder.drafters, LONGEST)


def test_a_text_that_ends_early_says_how_long_it_might_have_been_and_one_that_ends_at_once_is_none() -> None:
    plain = written(tiny(), 40)
    end = max(map(plain.index, plain))
    text = recorder(tiny(eos_token_id=plain[end]), PromptLookup()).record(PROMPT, "a", 40)
    assert (text.tokens, text.limit) == (end + 1, 40)
    assert recorder(tiny(eos_token_id=plain[0]), PromptLookup()).record(PROMPT, "a", 40) is None
    text = recorder(tiny(max_position_embeddings=30), PromptLookup()).record(PROMPT, "a", 40)  # the model's own limit
    assert (text.tokens, text.limit, text.tracks["prompt-lookup"].size[-1]) == (20, 20, 0)
