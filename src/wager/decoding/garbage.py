"""Python's garbage is collected while the device works, not while the device waits."""

import gc


class Garbage:
    """Keeps automatic collections out of rounds, and collects in their place what is young.

    A round leaves some ten objects behind, and a collection takes a quarter of a millisecond: on a GPU that is a sixth
    of a round. Between rounds, where the caller's own code runs, all is as it was; and it stays so where the caller has
    turned automatic collection off.
    """

    def __init__(self) -> None:
        self.pausing = False

    def pause(self) -> None:
        """A round begins."""
        self.pausing = gc.isenabled()
        if self.pausing:
            gc.disable()

    def collect(self) -> None:
        """The device works: collect, if it would else be due soon. All objects there are may take longer than a round:
        that is left to Python, between rounds."""
        (young, middle, old), (few, some, many) = gc.get_count(), gc.get_threshold()
        if self.pausing and 2 * young > few > 0 and old <= many:
            gc.collect(1 if middle > some else 0)

    def resume(self) -> None:
        """The round is over."""
        if self.pausing:
            gc.enable()
            self.pausing = False
