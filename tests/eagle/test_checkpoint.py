"""EAGLE heads' folders and drafters by name: what is refused, and what a name stands for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import PROMPT, config, plain, save, tiny, weights
from identity import first_difference_is_a_tie

import wager
from wager.drafters import registry, shipped
from wager.eagle import checkpoint
from wager.eagle.drafter import Eagle
from wager.models.fingerprint import agree, fingerprint
from wager.models.select import runner


def edit(folder: Path, **content: Any) -> None:
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**known, **content}))


def spoilt(change: Callable[[Path], object]) -> Callable[[Path, Any], object]:
    """Saves a sound head and then changes its folder."""
    return lambda folder, model: change(save(folder, model, frequent=[1, 2]))


def written(**tensors: torch.Tensor | None) -> Callable[[Path, Any], object]:
    """Saves a head with a tensor more or, where it is None, less."""
    changed = {name.replace("_", "."): tensor for name, tensor in tensors.items()}
    return lambda folder, model: checkpoint.write(
        folder, config(model), {k: t for k, t in {**weights(model), **changed}.items() if t is not None}, {}
    )


WEIGHTS = "model.safetensors"
BAD = {
    "no folder": (lambda f, m: None, "no folder .* with an EAGLE head"),
    "no config": (lambda f, m: f.mkdir(), "has no config.json"),
    "broken config": (spoilt(lambda f: (f / "config.json").write_text("{")), "cannot read config.json"),
    "no weights": (spoilt(lambda f: ((f / WEIGHTS).unlink(), (f / checkpoint.INDEX).unlink())), f"has no {WEIGHTS}"),
    "no shard": (spoilt(lambda f: (f / WEIGHTS).unlink()), f"lacks its shard {WEIGHTS}"),
    "broken weights": (spoilt(lambda f: (f / WEIGHTS).write_bytes(b"x" * 99)), "cannot read"),
    "a tensor missing": (written(fc_weight=None), "has no tensor fc.weight"),
    "a wrong shape": (spoilt(lambda f: edit(f, intermediate_size=41)), r"gate_proj.weight of shape \(40, 32\)"),
    "a tensor too many": (written(fc_scale=torch.zeros(32)), "has a tensor fc.scale"),
    "two layers": (spoilt(lambda f: edit(f, num_hidden_layers=2)), "a model of 2 layers; an EAGLE head has one"),
    "no size": (spoilt(lambda f: edit(f, hidden_size=None)), "has hidden_size None"),
    "another rope": (spoilt(lambda f: edit(f, rope_scaling={"rope_type": "dynamic", "factor": 2.0})), "type 'dynamic'"),
    "no frequent tokens": (spoilt(lambda f: (f / checkpoint.FREQUENT).unlink()), "has no frequent.safetensors"),
    "other frequent tokens": (spoilt(lambda f: edit(f, wager={"frequent": 3})), "does not hold the 3 ids"),
    "strange frequent tokens": (lambda f, m: save(f, m, frequent=[1, 99]), "not different tokens below 24"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_holds_no_sound_head_is_told_so(tmp_path: Path, case: str) -> None:
    spoil, says = BAD[case]
    spoil(tmp_path / "head", tiny())
    with pytest.raises(ValueError, match=says) as told:
        Eagle(tmp_path / "head")
    assert "\n" not in str(told.value)


def test_a_target_that_the_head_was_not_made_for_is_refused(tmp_path: Path) -> None:
    eagle = Eagle(save(tmp_path, tiny()))
    for other, says in (
        (tiny(hidden_size=16), "hidden size 32 and the target 16"),
        (tiny(vocab_size=30), "vocabulary of 24 and the target 30"),
        (tiny(7), "was trained for tiny, and the target has other weights"),
    ):
        with pytest.raises(ValueError, match=says):
            eagle.follow(runner(other))
        with pytest.raises(ValueError, match=r"made for (it|the target)"):
            wager.Decoder(other, drafters=[eagle])
    with pytest.raises(ValueError, match="window"):
        Eagle(tmp_path, window=-1)
    edit(tmp_path, wager={})  # a head of someone else's, which does not say
    Eagle(tmp_path).follow(runner(tiny(7)))


def test_a_fingerprint_does_not_depend_on_the_dtype_but_on_the_weights() -> None:
    mark = fingerprint(tiny())
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert agree(mark, fingerprint(tiny().to(dtype)))
    assert not agree(mark, fingerprint(tiny(1)))
    assert not agree(mark, fingerprint(tiny(intermediate_size=40)))
    assert not agree(mark, "")
    assert not agree(mark, mark[:-1] + "z")


@pytest.fixture
def stocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """A place with drafters for one model."""
    model, place = tiny(), tmp_path / "place"
    monkeypatch.setenv(shipped.VARIABLE, str(place))
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "cache"))
    for seed, name in enumerate(("eagle-code", "eagle-ofa")):
        save(place / "tiny" / name, model, seed)
    small = place / "tiny" / "draft-code"
    tiny(5).save_pretrained(small)
    edit(small, wager={"kind": "draft", "target_fingerprint": fingerprint(model)})
    save(tmp_path / "cache" / "drafters" / "tiny" / "eagle-chat", model, 5)
    save(tmp_path / "cache" / "drafters" / "tiny" / "eagle-ofa", model, 6)
    save(place / "other" / "eagle-math", tiny(3), 7)
    (place / "tiny" / "eagle-empty").mkdir()
    return place, model


def test_names_stand_for_what_is_there(stocked: tuple[Path, Any]) -> None:
    place, model = stocked
    assert list(shipped.available("tiny")) == ["eagle:code", "eagle:ofa", "draft:code", "eagle:chat"]
    assert shipped.find("eagle:ofa", "some/tiny").folder == place / "tiny" / "eagle-ofa", "the first place wins"
    expanded = ["suffix", "eagle:code", "eagle:ofa", "eagle:chat", "eagle:x=PATH"]
    assert shipped.expand(["suffix", "eagle:*", "eagle:x=PATH"], "tiny") == expanded
    # By its weights, where the name tells nothing.
    assert list(shipped.available("unknown", lambda: fingerprint(model))) == list(shipped.available("tiny"))
    assert list(shipped.available(mark=lambda: fingerprint(tiny(3)))) == ["eagle:math"]
    for name, at in (
        ("eagle:ofa", ""),
        ("eagle", f"={place / 'tiny' / 'eagle-ofa'}"),
        ("eagle:mine", f"={place / 'tiny' / 'eagle-ofa'}"),
    ):
        assert registry.build(name + at, target="tiny").name == name


def test_drafters_by_name_play_in_a_decoder(stocked: tuple[Path, Any]) -> None:
    _, model = stocked
    decoder = wager.Decoder(model, drafters="eagle:*,draft:code,prompt-lookup", policy="random", lengths=(1, 3))
    assert list(decoder.drafters) == ["eagle:code", "eagle:ofa", "eagle:chat", "draft:code", "prompt-lookup"]
    assert "eagle:ofa:3" in map(str, decoder.arms)
    made = decoder.generate(PROMPT, max_new_tokens=40, do_sample=False)
    assert first_difference_is_a_tie(model, PROMPT, made.tokens, plain(model, count=40), 1e-3)
    assert {played.arm.drafter for played in made.rounds} >= {"eagle:code", "eagle:ofa", "draft:code"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("eagle:sofa", "no drafter 'eagle:sofa' for tiny; there are eagle:code, eagle:ofa, draft:code, eagle:chat in "),
        ("draft:chat", "no drafter 'draft:chat'"),
        ("eagle:", "is written eagle:NAME, eagle:\\* or eagle:NAME=PATH"),
        ("eagle:a b", "is written eagle:NAME"),
        ("eagle:x=", "or eagle:NAME=PATH"),
        ("eagle", "is written eagle=PATH"),
        ("eagle=nowhere", "no folder nowhere with an EAGLE head"),
        ("together=suffix+prompt-lookup+suffix", "names one twice: together=suffix\\+prompt-lookup\\+suffix"),
        ("draft:code", "needs a way to load models"),
        (
            "beagle:x",
            "unknown drafter 'beagle:x' .did you mean 'eagle'.*; choose from .*eagle=PATH, .*eagle3:NAME, draft:NAME",
        ),
    ],
)
def test_a_wrong_name_is_told_what_is_right(stocked: tuple[Path, Any], spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as told:
        registry.build(spec, target="tiny")
    assert "\n" not in str(told.value)


def test_a_star_without_drafters_is_told_where_was_looked(stocked: tuple[Path, Any]) -> None:
    place, _ = stocked
    with pytest.raises(ValueError, match=r"no drafter 'draft:\*' for other; there are eagle:math in ") as told:
        shipped.expand(["draft:*"], "other")
    assert str(place) in str(told.value)
    with pytest.raises(ValueError, match="for this model; there are none in "):
        wager.Decoder(tiny(9), drafters="eagle:*")


def test_heads_are_told_apart_in_a_policys_memory(tmp_path: Path) -> None:
    from wager.decoding.state import _drafter

    model = tiny()
    one, two = (_drafter(Eagle(save(tmp_path / f"{seed}", model, seed))) for seed in (1, 2))
    assert one != two
    eagle = Eagle(tmp_path / "1")
    eagle.follow(runner(model))
    assert _drafter(eagle) == one
