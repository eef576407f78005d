"""The audit's memory: one column per fact, a few bytes per record, no decoded record is kept.

Role: tables that grow by a row per record and are read as numpy arrays.
Invariants: a sample identity (group, member, attempt) is a 63-bit hash, so tables are compared by sorting numbers; two
of n identities collide with probability n^2 / 2^64, which is 1 in 18 million for a million samples.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]

NO_KEY = 0  # of a member of which no sample was read
NO_AGE = -1
GAP_LIMIT = 10_000


class Table:
    """Columns of 64-bit numbers.

    Args:
        names: of the columns; those beginning with `key` are unsigned.
    """

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("Q" if name.startswith("key") else "q") for name in names}
        self._appends = tuple(column.append for column in self._columns.values())
        self._first = next(iter(self._columns.values()))

    def __len__(self) -> int:
        return len(self._first)

    def append(self, *values: int) -> None:
        """Add one row, in the order of the columns."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def ints(self, name: str) -> Ints:
        """A copy of a signed column."""
        return np.array(self._columns[name], dtype=np.int64)

    def keys(self, name: str) -> Keys:
        """A copy of an unsigned column."""
        return np.array(self._columns[name], dtype=np.uint64)


class Words:
    """Numbers for words that repeat: reasons, results, reward names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._words: list[str] = []

    def number(self, word: str) -> int:
        """The number of a word, given out at its first use."""
        found = self._numbers.get(word)
        if found is None:
            found = self._numbers[word] = len(self._words)
            self._words.append(word)
        return found

    def word(self, number: int) -> str:
        """The word of a number."""
        return self._words[number]

    def __len__(self) -> int:
        return len(self._words)


def left_out(numbers: Ints, *, first: int) -> Ints:
    """Numbers missing between `first` and the highest of `numbers` (ascending, distinct, none below `first`); of each
    gap at most `GAP_LIMIT`, since one wild number makes a gap of any length."""
    if numbers.size == 0:
        return numbers
    starts = np.concatenate([np.array([first], dtype=np.int64), numbers[:-1] + 1])
    lengths = np.minimum(numbers - starts, GAP_LIMIT)
    spans = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True) if length > 0]
    missing: Ints = np.concatenate([np.array([], dtype=np.int64), *spans])
    return missing


def identity(group: int, member: int, *, attempt: str) -> int:
    """The key of a sample's identity; never `NO_KEY`."""
    return _hash(f"{group}/{member}/{attempt}")


def attempted(attempt: str | None) -> int:
    """The key of an attempt; `NO_KEY` without one."""
    return NO_KEY if attempt is None else _hash(attempt)


def named(key: int, name: str) -> int:
    """The key of what one reward says of one sample."""
    return _hash(f"{key}/{name}")


def valued(key: int, value: float) -> int:
    """The key of that with its value, exact to the bit."""
    return _hash(f"{key}={value.hex()}")


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") | 1
