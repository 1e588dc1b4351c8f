"""Full garbage collections do not walk what was loaded while something is timed."""

import gc

from wager.bench.garbage import freeze_answers, loaded_objects_frozen


def test_what_is_loaded_is_frozen_inside_and_collected_again_after_it() -> None:
    assert gc.get_freeze_count() == 0
    with loaded_objects_frozen():
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 1_000
    assert gc.get_freeze_count() == 0


def test_answers_that_are_kept_are_not_walked_again() -> None:
    with loaded_objects_frozen():
        before = gc.get_freeze_count()
        kept = [[number] for number in range(1000)]
        freeze_answers()
        assert gc.get_freeze_count() >= before + len(kept)
        assert len(gc.get_objects()) < len(kept)
    assert gc.get_freeze_count() == 0
