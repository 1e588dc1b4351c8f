"""Which kind of text a prompt asks for, by its tokens alone."""

import json
import random
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from wager.bench.workloads import own_prompts
from wager.drafters import kinds
from wager.drafters.cards import Card, kinds_of, read_card
from wager.drafters.kinds import CLASSES, MOST, STEP, UNLIKE, Kinds, made_of, read_kinds
from wager.models import load_tokenizer

ROOT = Path(__file__).parents[2]
FOLDERS = [
    path.parent for place in ("drafters", "reproduction/drafters") for path in (ROOT / place).glob("*/*/config.json")
]
# kind of the prompts that come with wager -> the tasks on cards that are like it
ALIKE = {
    "chat": {"mt_bench", "alpaca"}, "summarization": {"summarization", "xsum"}, "code": {"humaneval", "debug_bench"},
    "math": {"math_reasoning"}, "translation": {"translation"}, "qa": {"qa"}, "rag": {"rag"},
}  # fmt: skip


def drawn(first: int, count: int = 40, seed: int = 0) -> list[list[int]]:
    """Prompts of tokens from that one on."""
    rng = random.Random(seed)
    return [[first + rng.randrange(50) for _ in range(60)] for _ in range(count)]


@pytest.fixture(scope="module")
def three() -> Kinds:
    return made_of({"low": drawn(0), "middle": drawn(25), "high": drawn(1000)})


def right(told: Kinds) -> float:
    """Share of unseen prompts whose kind is the likeliest."""
    asked = [(kind, tokens) for kind, first in (("low", 0), ("high", 1000)) for tokens in drawn(first, seed=1)]
    return sum(max(c := told.chances(tokens), key=c.__getitem__) == kind for kind, tokens in asked) / len(asked)


def test_prompts_of_a_kind_are_known_by_their_tokens(three: Kinds) -> None:
    assert right(three) > 0.95
    unsure = [three.chances([25 + n % 25 for n in range(20)]), three.chances([900])]
    assert all(max(chances.values()) < 0.8 for chances in unsure), "tokens of two kinds, and of none"


def test_a_table_that_is_read_in_the_wrong_order_would_be_noticed(three: Kinds) -> None:
    wrong = Kinds(dict(zip(three.table, reversed(three.table.values()), strict=True)))
    assert right(wrong) < 0.5


def test_chances_are_those_of_naive_bayes_over_few_tokens(three: Kinds) -> None:
    for tokens in ([1], [3, 1010, 30], drawn(0, 1)[0]):
        places = [(token * kinds.SPREAD >> 8) % CLASSES for token in tokens]
        sums = {}
        for kind, odds in three.table.items():
            steps = [int.from_bytes(odds[at : at + 1], signed=True) for at in places]
            sums[kind] = exp(STEP * sum(steps) / len(steps) * min(len(steps), MOST))
        total = sum(sums.values())
        expected = {kind: (1 - UNLIKE) * x / total + UNLIKE / 3 for kind, x in sums.items()}
        assert three.chances(tokens) == pytest.approx(expected, rel=1e-4)
        assert sum(three.chances(tokens).values()) == pytest.approx(1.0)
    assert three.chances([]) == {}


def test_a_long_prompt_is_never_certain(three: Kinds) -> None:
    assert min(three.chances([5] * 100_000).values()) >= UNLIKE / 3 - 1e-9


def test_they_are_kept_as_text(three: Kinds) -> None:
    kept = read_kinds(json.loads(json.dumps(three.notes())))
    assert kept is not None
    assert kept.table == three.table


@pytest.mark.parametrize("notes", [None, [], {}, {"qa": 3}, {"qa": "no base64"}, {"qa": "AAAA"}])
def test_what_cannot_be_read_tells_nothing(notes: object) -> None:
    assert read_kinds(notes) is None


def test_a_kind_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="no prompt of the kind 'qa'"):
        made_of({"code": [[1, 2]], "qa": [[]]})


def card(kept: Kinds | None = None, **shares: list[float]) -> Card:
    return read_card({"acceptance": shares, **({} if kept is None else {"kinds": kept.notes()})})


def test_a_card_tells_log_odds_by_kind_weighted_by_how_often_positions_are_reached() -> None:
    told, mean = card(qa=[0.8, 0.5], code=[0.4, 0.5]).kinds, 0.6
    # the second position is the same in both, and is reached as often as the first is accepted
    assert told == pytest.approx({kind: (log(p / (1 - p)) - log(mean / (1 - mean))) / (1.0 + p)
                                  for kind, p in (("qa", 0.8), ("code", 0.4))})  # fmt: skip


def test_a_task_without_shares_is_left_out() -> None:
    assert card(qa=[], code=[0.5, 0.4]) == card(code=[0.5, 0.4])


def test_only_kinds_that_can_be_told_count(three: Kinds) -> None:
    assert set(card(three, low=[0.5], high=[0.6], other=[0.7]).kinds) == {"low", "high"}
    assert kinds_of([card(low=[0.5]), Card()]) is None
    known = kinds_of([card(low=[0.5]), card(three, low=[0.5], high=[0.6])])
    assert known is not None
    assert set(known([1, 2])) == set(three.table)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parts[-3]}/{folder.name}")
def test_the_shipped_drafters_tell_ten_kinds(folder: Path) -> None:
    told = read_card(json.loads((folder / "config.json").read_text())["wager"])
    assert told.told_by is not None
    assert set(told.kinds) == set(told.told_by.table) == set().union(*ALIKE.values())


def test_what_a_specialist_is_for_is_where_its_card_says_it_is_best() -> None:
    for kind in ("math", "code", "translation"):
        told = read_card(json.loads((ROOT / f"drafters/smollm2-135m/eagle-{kind}/config.json").read_text())["wager"])
        general = read_card(json.loads((ROOT / "drafters/smollm2-135m/eagle-ofa/config.json").read_text())["wager"])
        better = {task: told.kinds[task] - general.kinds[task] for task in told.kinds}
        assert max(better, key=better.__getitem__) in ALIKE[kind]


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, list[int]]]:
    tokenizer: Any = load_tokenizer("smollm2-135m")
    return [(prompt.task, prompt.ids(tokenizer, 4096, "cpu")[0].tolist()) for prompt in own_prompts()]


def test_prompts_from_elsewhere_are_told_apart_too(asked: list[tuple[str, list[int]]]) -> None:
    """Those that come with wager were written for it: none of the tables has seen their like."""
    told = read_card(json.loads((ROOT / "drafters/smollm2-135m/eagle-ofa/config.json").read_text())["wager"]).told_by
    assert told is not None
    likeliest = [(kind, max(c := told.chances(tokens), key=c.__getitem__)) for kind, tokens in asked]
    known = sum(task in ALIKE[kind] for kind, task in likeliest)
    assert known >= 0.55 * len(likeliest), likeliest
    assert len(likeliest) >= 28
