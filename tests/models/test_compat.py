"""The private parts of torch and transformers that wager uses are still there and mean what they meant."""

import pytest
import torch
from heads import tiny
from transformers import DynamicCache
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from wager.models import compat_torch, compat_transformers


def test_modules_and_tensors_are_all_found() -> None:
    model = tiny()
    assert set(compat_torch.modules(model)) == set(model.modules())
    places = {found for found in compat_torch.traits(model, ()) if isinstance(found, int)}
    assert {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())} <= places


def test_hooks_are_seen_on_a_module_and_on_all() -> None:
    module = torch.nn.Linear(2, 2)
    for register in (module.register_forward_hook, module.register_forward_pre_hook):
        assert not compat_torch.hooked(module)
        handle = register(lambda *_: None)
        assert compat_torch.hooked(module)
        handle.remove()
    assert not compat_torch.hooked_globally()
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert compat_torch.hooked_globally()
    everywhere.remove()
    assert not compat_torch.hooked_globally()


def test_whatever_is_done_to_a_model_changes_its_traits() -> None:
    def hook(*given: object) -> None: ...

    def traits() -> list[object]:
        return compat_torch.traits(model, ("eps",))

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.BatchNorm1d(2))
    linear, norm = model[0], model[1]
    seen = [traits()]
    assert traits() == seen[0]
    for change in (
        lambda: linear.weight.detach().add_(1),
        lambda: setattr(linear, "weight", torch.nn.Parameter(torch.ones(2, 2))),
        lambda: linear.register_forward_hook(hook),
        lambda: norm.register_forward_pre_hook(hook),
        lambda: setattr(linear, "forward", norm.forward),
        lambda: setattr(norm, "eps", 0.5),
        lambda: model[2].running_mean.add_(1),
        lambda: setattr(norm, "bias", None),
        lambda: model.append(torch.nn.Identity()),
        lambda: model.__setitem__(3, torch.nn.ReLU()),
    ):
        change()
        assert traits() not in seen
        seen.append(traits())
    with torch.inference_mode():
        model.register_buffer("uncounted", torch.zeros(3))
    assert traits() not in seen, "torch counts no versions of such a tensor"


def test_children_are_replaced_in_the_copy_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    copied = compat_torch.with_children(model, **{"1": torch.nn.Tanh()})
    assert isinstance(copied[1], torch.nn.Tanh)
    assert isinstance(model[1], torch.nn.ReLU)
    assert copied[0] is model[0]
    assert float(copied(torch.full((1, 2), 9.0)).detach().abs().max()) <= 1


def test_processors_and_criteria_are_known_by_their_names() -> None:
    heated, penalty = TemperatureLogitsWarper(0.5), RepetitionPenaltyLogitsProcessor(1.5)
    assert [compat_transformers.row_wise(one) for one in (heated, penalty)] == [True, False]
    assert [compat_transformers.temperature_of(one) for one in (heated, penalty)] == [0.5, 1.0]
    assert not compat_transformers.refusal(heated)
    for name in (*compat_transformers.ROW_WISE, *compat_transformers.REFUSED):
        module = pytest.importorskip("transformers.generation.logits_process")
        assert hasattr(module, name) or name == "TopHLogitsWarper", f"{name} was renamed"
    criteria = EosTokenCriteria([3, 5]), MaxLengthCriteria(9), MaxTimeCriteria(1.0)
    assert [compat_transformers.end_tokens(one) for one in criteria] == [[3, 5], None, None]
    assert [compat_transformers.max_length_of(one) for one in criteria] == [None, 9, None]


def test_a_plain_cache_can_be_cropped_and_keeps_all_tokens() -> None:
    model = tiny()
    cache = DynamicCache(config=model.config)
    model(torch.tensor([[1, 2, 3]]), past_key_values=cache, use_cache=True)
    assert compat_transformers.keeps_recent(cache)
    assert all(map(compat_transformers.croppable, cache.layers))
    compat_transformers.record_past(cache)
    compat_transformers.forget_recorded(cache)
    assert cache.get_seq_length() == 3
    assert compat_transformers.attention_of(model.config) in ("eager", "sdpa")
