"""Rows of numbers that grow: what an index keeps of a record, a few bytes each.

Data in: tuples. Data out: numpy structured arrays.
Invariants: memory is bounded by `limit` rows; a full table takes no more, and says so.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FIRST = 1024


class Rows:
    """A structured array that doubles.

    Args:
        fields: name and dtype of each column.
        limit: most rows.
    """

    def __init__(self, fields: Sequence[tuple[str, str]], *, limit: int) -> None:
        self._dtype = np.dtype(list(fields))
        self._data = np.empty(min(_FIRST, limit), self._dtype)
        self._limit = limit
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no further row fits."""
        return self._count >= self._limit

    def append(self, *values: float) -> bool:
        """Add a row, in the order of the columns; False: it is full."""
        if self._count >= self._limit:
            return False
        if self._count == len(self._data):
            grown = np.empty(min(2 * len(self._data), self._limit), self._dtype)
            grown[: self._count] = self._data
            self._data = grown
        self._data[self._count] = values
        self._count += 1
        return True

    def view(self) -> NDArray[np.void]:
        """The rows that are there; rows that come later do not change it."""
        return self._data[: self._count]
