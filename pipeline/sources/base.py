"""What a prompt source is, and the order in which it is walked.

Role: random access to prompts by one running index over all epochs, so that a cursor is a number.
Data in: rows of one epoch (`Rows`); data out: `PromptItem`s.
Invariants: `item(i)` is a pure function of the settings, the seed and i; every epoch visits each row once, in its own
order.
Failure: `RecordInvalid` (reason prompt_invalid) for a row that gives no prompt; the walk goes on with the next index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from schemas.records import Message

Row: TypeAlias = Mapping[str, object]  # a JSON object: question, prompt, messages or token_ids; answer; metadata


@dataclass(frozen=True, kw_only=True)
class PromptItem:
    """One prompt of a source. Exactly one of `text`, `messages`, `token_ids` is set."""

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: bytes | None = None  # packed int32
    answer: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    source_index: int = 0  # position in the epoch's order; with `epoch` it gives back the index
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class SkippedLine:
    """A line of a file that holds no prompt."""

    file: str
    line: int  # from 1
    why: str


class Source(Protocol):
    """A source of prompts."""

    @property
    def name(self) -> str:
        """What and how large it is; another name means that an old cursor says nothing."""
        ...

    @property
    def num_items(self) -> int | None:
        """Items over all epochs; None: endless."""
        ...

    @property
    def items_per_epoch(self) -> int | None:
        """Items in one epoch; None: one endless epoch."""
        ...

    def item(self, index: int) -> PromptItem:
        """Item `index`, from 0 to below `num_items`.

        Raises:
            RecordInvalid: the row gives no prompt; reason `prompt_invalid`.
            SettingsError: the row cannot be read any more.
        """
        ...


class Rows(Protocol):
    """The rows of one epoch, in their natural order."""

    @property
    def name(self) -> str:
        """What and how large it is; part of `Source.name`."""
        ...

    @property
    def num_rows(self) -> int | None:
        """None: endless."""
        ...

    def row(self, index: int) -> Row:
        """The row at `index` of the natural order, 0-based."""
        ...


class Shape(Protocol):
    """Makes a prompt of a row; raises `RecordInvalid` when it holds none."""

    def __call__(self, row: Row, *, source_index: int, epoch: int) -> PromptItem: ...


class EpochSource:
    """Walks rows epoch by epoch.

    Args:
        rows: what is walked.
        shape: makes a prompt of a row, given its position in the epoch's order and the epoch.
        seed: of the orders.
        shuffle: False keeps the natural order in every epoch.
        epochs: how often; None: without end.
    """

    def __init__(self, rows: Rows, *, shape: Shape, seed: int, shuffle: bool, epochs: int | None) -> None:
        self._rows = rows
        self._shape = shape
        self._shuffle = shuffle and rows.num_rows is not None
        self._epochs = epochs
        self._order = lru_cache(maxsize=2)(lambda epoch: _permutation(rows.num_rows or 0, seed=seed, epoch=epoch))

    @property
    def name(self) -> str:
        """See `Source.name`."""
        return self._rows.name

    @property
    def items_per_epoch(self) -> int | None:
        """See `Source.items_per_epoch`."""
        return self._rows.num_rows

    @property
    def num_items(self) -> int | None:
        """See `Source.num_items`."""
        if self._rows.num_rows is None or self._epochs is None:
            return None
        return self._rows.num_rows * self._epochs

    def item(self, index: int) -> PromptItem:
        """See `Source.item`."""
        per_epoch = self._rows.num_rows
        epoch, position = (0, index) if per_epoch is None else divmod(index, per_epoch)
        row = int(self._order(epoch)[position]) if self._shuffle else position
        return self._shape(self._rows.row(row), source_index=position, epoch=epoch)


def index_after(source: Source, *, epoch: int, source_index: int) -> int:
    """The index that follows an item, from the cursor fields of its record."""
    per_epoch = source.items_per_epoch
    return source_index + 1 + (0 if per_epoch is None else epoch * per_epoch)


def _permutation(num_rows: int, *, seed: int, epoch: int) -> npt.NDArray[np.uint32]:
    """The order of one epoch: Philox is specified bit for bit, so it is the same on every machine."""
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), epoch]))
    return generator.permutation(num_rows).astype(np.uint32)
