"""Changed weights are noticed, also where they were written through ``.data``."""

import pytest
import torch
from decoders import ours, plain
from decoders import tiny as made
from heads import tiny

import wager
from wager.models.llama_runner import LlamaRunner
from wager.models.llama_weights import llama_weights
from wager.models.select import current, runner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_or_a_part_of_every_row_of_the_output_head_is_noticed(dtype: torch.dtype) -> None:
    model = tiny().to(dtype)
    before, rows = llama_weights(model), model.lm_head.weight.data
    assert before.current(model)
    for row in range(0, len(rows), 3):
        kept = rows[row].clone()
        rows[row] = rows[(row + 1) % len(rows)]
        assert not before.current(model), row
        rows[row] = kept
    assert llama_weights(model) is before
    rows[:, rows.shape[1] // 2 :] *= 1.5
    assert llama_weights(model) is not before


def test_writes_are_noticed_whatever_the_layout_of_a_weight() -> None:
    model = tiny()
    inner, head, other = model.model.layers[0].self_attn.q_proj, model.lm_head, model.model.layers[1].mlp.up_proj
    for linear in (inner, head):
        linear.weight = torch.nn.Parameter(linear.weight.detach().t().contiguous().t())
        assert not linear.weight.is_contiguous()
    before = llama_weights(model)
    assert before.current(model)
    inside = [(inner.weight, slice(1, None)), (other.weight, (slice(None), slice(1, None)))]
    for weight, part in [*inside, *((head.weight, slice(at, at + 1)) for at in (0, 1, 7, 23))]:
        rows = weight.data[part]
        kept = rows.clone()
        rows *= 1.5
        assert not before.current(model), part
        rows.copy_(kept)
        assert before.current(model)


def test_weights_that_change_between_two_texts_are_noticed_by_begin_and_by_current() -> None:
    model = tiny()
    target = runner(model)
    assert current(model, target) is target
    target.restart()
    weights = target.weights  # type: ignore[attr-defined]
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    target.begin()
    assert target.weights is not weights  # type: ignore[attr-defined]


def test_a_configuration_that_changes_under_a_decoder_is_noticed() -> None:
    for family, change in (("llama", {"num_hidden_layers": 1}), ("mistral", {"sliding_window": 5})):
        model = made(family)
        decoder = wager.Decoder(model, policy="random")
        assert ours(decoder) == plain(model)
        before = plain(model)
        for name, value in change.items():
            setattr(model.config, name, value)
        assert plain(model) != before
        assert ours(decoder) == plain(model)


def test_a_cache_that_could_not_grow_grows_at_the_next_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("llama")
    decoder, tables = wager.Decoder(model, drafters="off"), LlamaRunner._rope_tables
    ours(decoder)

    def full(self: LlamaRunner, capacity: int) -> None:
        monkeypatch.setattr(LlamaRunner, "_rope_tables", tables)
        raise MemoryError

    monkeypatch.setattr(LlamaRunner, "_rope_tables", full)
    long = [1 + at % 60 for at in range(300)]
    with pytest.raises(MemoryError):
        ours(decoder, long)
    assert ours(decoder, long) == plain(model, long)
