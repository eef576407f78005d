"""Feeds a run's records into a fold, in the order that lets a live run balance.

Order: (1) the weights that are there: a step's manifest and outcomes are one transaction, so the ledger must speak of
each; (2) the ledger's ends are taken and the ledger is read; what is on some partitions only may be a transaction
becoming visible, so it is looked at again for a moment; (3) the ends of weights, rewards, samples and prompts are taken
one after the other and read: whatever the ledger speaks of was written before, so it is below them.
Data in: a `Source`. Data out: the fold, and the window that was read.
Failure: errors of the source; undecodable records are counted, not raised.
"""

from __future__ import annotations

from collections.abc import Callable

from ops.audit.fold import AUDITED, Fold, Place
from ops.replay.sources import Source, Window, decode
from schemas.errors import CodecError
from topics.catalog import LEDGER, PROMPTS, SHADOW_REWARDS, WEIGHTS, Topic
from topics.clock import Clock, SystemClock

_LOOKS = 10  # at what may be half-visible
_LOOK_S = 0.1  # between them


def read_all(source: Source, *, clock: Clock | None = None) -> tuple[Fold, dict[tuple[str, int], tuple[int, int]]]:
    """Read every audited topic of a run.

    Returns:
        The fold, and (earliest, end) offsets read per topic and partition.
    """
    reading = _Reading(source, clock=clock if clock is not None else SystemClock())
    fold = reading.fold
    unsettled: dict[str, Callable[[], bool]] = {
        LEDGER.name: lambda: fold.ledger_is_ragged,  # (2)
        WEIGHTS.name: lambda: fold.weights_are_behind,
        PROMPTS.name: lambda: fold.prompts_are_ragged,
    }
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    reading.read(WEIGHTS)  # (1)
    fold.note_published()
    for topic in AUDITED:  # (3)
        reading.read(topic)
        reading.settle(topic, unsettled.get(topic.name, lambda: False))
        ranges |= {(topic.name, partition): bounds for partition, bounds in reading.windows[topic.name].items()}
    reading.read(SHADOW_REWARDS)  # nothing refers to it: it only tells that a reward scored without a weight, then
    return fold, ranges


class _Reading:
    def __init__(self, source: Source, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self.fold = Fold(source.data_partitions)
        self.windows: dict[str, Window] = {}

    def read(self, topic: Topic) -> None:
        """Read a topic up to its present ends, from where it was read to."""
        before = self.windows.get(topic.name, {})
        now = self._source.window(topic)
        new = {part: (before[part][1] if part in before else low, end) for part, (low, end) in now.items()}
        self.windows[topic.name] = {part: (before.get(part, bounds)[0], bounds[1]) for part, bounds in now.items()}
        self._add(topic, {part: bounds for part, bounds in new.items() if bounds[0] < bounds[1]})

    def settle(self, topic: Topic, is_unsettled: Callable[[], bool]) -> None:
        """Look again while the topic grows into a state that makes sense."""
        for _ in range(_LOOKS):
            if not self._source.may_grow or not is_unsettled():
                return
            self._clock.wait(_LOOK_S)
            self.read(topic)

    def _add(self, topic: Topic, ranges: Window) -> None:
        fold = self.fold
        for record in self._source.read(topic, ranges):
            place = Place(topic=topic.name, partition=record.partition, offset=record.offset)
            try:
                decoded = decode(topic, record)
            except CodecError:
                fold.add_undecodable(place)
                continue
            fold.add(place, decoded, key=record.key)
