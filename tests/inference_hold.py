"""Holds the sequences of `inference_server` until other weights have come, so that they are in flight at a swap."""

from __future__ import annotations

from collections.abc import Collection


class Hold:
    """Two tokens of each of so many sequences, then none until the next load, but what a probe needs.

    Args:
        num_sequences: that are waited for before the first token is made.
        num_loads: that the server has done.
    """

    def __init__(self, *, num_sequences: int, num_loads: int) -> None:
        self._num_sequences = num_sequences
        self._num_loads = num_loads
        self._num_steps = 2
        self._ids: frozenset[str] = frozenset()  # of the sequences, once all of them have come

    @property
    def reached(self) -> bool:
        """Whether the tokens are made."""
        return not self._num_steps

    def may_step(self, waiting: Collection[str], *, num_loads: int) -> bool:
        """Whether a token may be made of each of these sequences; counts it if so. After a load: always."""
        if num_loads != self._num_loads:
            return True
        if not self._ids:
            if len(waiting) < self._num_sequences:
                return False
            self._ids = frozenset(waiting)
        if not self._num_steps:
            return not self._ids.issuperset(waiting)
        self._num_steps -= 1
        return True
