"""Comparisons on servers: what is made of found that were measured; the servers themselves are in test_vllm_server."""

import pytest

from wager.bench.endurance import Reference
from wager.bench.versus import PLAIN, Measurement, compared, table_from


def measured(method: str, point: str, speed: float, *, repeat: int = 1, texts: list[str] | None = None) -> Measurement:
    times = {f"{name}_seconds": {"mean": 1 / speed} for name in ("latency", "tpot")}
    summary = {"output_tokens_per_second": speed, "errors": 0, **times}
    return Measurement(method, point, repeat, summary, texts or ["a", "b"])


def test_a_method_is_held_against_plain_decoding_of_the_same_repetition() -> None:
    found = [
        measured(PLAIN, "1", 10, repeat=1),
        measured("nightjar", "1", 15, repeat=1),
        measured(PLAIN, "1", 20, repeat=2),
        measured("nightjar", "1", 24, repeat=2, texts=["a", "other"]),
    ]
    row = next(row for row in compared(found) if row["method"] == "nightjar")
    assert row["throughput_ratios"] == pytest.approx([1.5, 1.2])
    assert row["throughput_ratio"] == pytest.approx(1.35)
    assert row["latency_ratios"] == pytest.approx([10 / 15, 20 / 24])
    assert (row["texts"], row["texts_that_differ"]) == (4, 1)


def test_vllms_table_has_the_best_length_at_every_concurrency_and_no_gap() -> None:
    found = [
        measured(method, point, speed)
        for point, speeds in {"1": (10, 14, 20), "4": (30, 32, 31), "16": (90, 80, 70)}.items()
        for method, speed in zip(("off", "fixed 1", "fixed 2"), speeds, strict=True)
    ]
    table = table_from([*found, measured("off", "trace", 1)], {"off": 0, "fixed 1": 1, "fixed 2": 2}, 64)
    assert table == [[1, 2, 2], [3, 10, 1], [11, 64, 0]]


def test_a_text_differs_only_where_it_parts_without_a_tie() -> None:
    reference = Reference(("The", " cat", " sat"), (2.0, 0.0001, 2.0))
    assert not reference.differs("The cat sat")
    assert not reference.differs("The dog ran"), "a tie may go either way, and so may everything after it"
    assert reference.differs("A cat sat")
    assert reference.differs("The cat ran")
    assert reference.differs("The cat sat down")
    assert reference.differs("The cat sa")
    assert not reference.differs("The cat", part=True)
    assert reference.differs("A", part=True)
