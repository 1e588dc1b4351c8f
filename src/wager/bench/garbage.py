"""What was loaded, and what is kept of answers, is left out of garbage collections while something is timed."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loaded_objects_frozen() -> Iterator[None]:
    """Without this, now and then one round of some method takes as long as hundreds of others.

    A full collection walks all objects of torch, transformers and the model: 0.2 s, in a text of 0.1 s on a GPU.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def freeze_answers() -> None:
    """Leave out what is kept by now, too, inside ``loaded_objects_frozen``.

    Otherwise a collection takes the longer the more answers there are, and most come in the texts of the method that
    allocates most.
    """
    gc.collect()  # of what came since the last time; what is garbage must not be kept
    gc.freeze()
