"""Reads records from Kafka, in order per partition.

Role: the consumer side of `topics.log.Reader`.
Data in and out: fetched batches in; decoded records with their places out; dead letters and losses to the hooks.
Invariants: nothing automatic about offsets; committed transactions only; what is returned was assigned at that
moment; a position also moves past dead letters and, at the end of the log, past transaction markers.
Failure: the broker being away is waited out; `OffsetsLost` and fatal client errors are raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Place

from schemas.errors import LogError
from topics.catalog import num_partitions
from topics.clock import Deadline
from topics.dead_letters import letter_of_batch
from topics.kafka.assignment import Assignment, full_positions
from topics.kafka.client import Connection
from topics.kafka.commits import Commits
from topics.kafka.consuming import ReadingClient
from topics.kafka.errors import (
    cause_of,
    is_out_of_range,
    is_transient,
    is_unknown_topic,
    is_unpackable,
    not_now,
    translated,
    translating,
)
from topics.kafka.ids import Ids, IdWatch
from topics.kafka.offsets import AdminHandle, BrokerOffsets
from topics.kafka.refusals import Refusals
from topics.kafka.starts import Starts
from topics.kafka.unpack import Unpacker
from topics.kafka.unreadable import end_of_batch
from topics.log import Envelope, Positions, ReaderHooks, ReaderSettings, TopicPartition, UnreadableBatch

_log = logging.getLogger("topics.kafka.reader")
_SLICE_S = 0.05  # between looks at what a rebalance left to do
# Most records of one poll. The library copies all it hands over; few enough are still in the cache when they are
# decoded: 64 at a time cost a third less processor time per 10 kB sample than 500.
_BATCH_RECORDS = 64
_ASK_LIMIT_S = 5.0
_EVENTS = frozenset({KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED, KafkaError._AUTO_OFFSET_RESET})
_UNKNOWN_TOPIC_GRACE_S = 10.0  # a topic just created is not known to every broker at once


class KafkaReader:
    """One consumer. Use from one thread; hooks are called from inside `poll` and `close`."""

    def __init__(
        self, connection: Connection, settings: ReaderSettings, *, hooks: ReaderHooks, handle: AdminHandle
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._hooks = hooks
        self._offsets = BrokerOffsets(handle)
        self._parts = Assignment(connection.run, settings.topics)
        self._starts = Starts(handle, settings, full_names=self._parts.full_names)
        self._watch = IdWatch(handle, list(self._parts.full_names.values()), every_s=settings.topic_check_s)
        self._new: list[TopicPartition] = []  # assigned, not yet told to the owner
        self._revoked: set[TopicPartition] = set()  # during the present call
        self._unreadable: dict[TopicPartition, tuple[int, KafkaError]] = {}  # first offset of a bad batch, and why
        self._failure: LogError | None = None
        self._unknown_topic: Deadline | None = None
        self.num_transient_errors = 0
        self._unpacker = Unpacker(
            self._parts.states,
            run=connection.run,
            read_bytes=connection.read_bytes,
            reader=settings.instance,
            dead_letter=hooks.dead_letter,
            on_error=self._on_error,
        )
        self._refusals = Refusals(connection)
        self._commits = Commits(settings, parts=self._parts, topic_id=self._starts.topic_id)
        self._client = ReadingClient(
            connection, settings, refusals=self._refusals, begin=self._subscribe, committed=self._commits.heard
        )
        if settings.assign == "self":
            self._take_all(connection.data_partitions)

    def poll(self, max_records: int, *, deadline: Deadline) -> list[Envelope]:
        """Up to `max_records` records; returns as soon as any are there, with none when the deadline ends.

        Raises:
            OffsetsLost: with `on_lost="stop"`, or a position is beyond the end.
            AccessDenied: the broker does not let us in, or not read this.
            LogError: the client failed in a way that retrying does not mend.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            self._look_at_ids()
            self._pass_unreadable()
            if (self._parts.pending or self._parts.strayed) and self._settle(deadline) and self._parts.pending:
                self._settle(deadline)  # the others of a topic made anew: positions are never of two topics for long
            envelopes = self._take(max_records, deadline=deadline)
            self._refusals.check(lambda limit_s: self._client.consumer.list_topics(timeout=limit_s))
            if envelopes or (self._failure is None and deadline.expired):
                return envelopes

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop delivering from these until `resume`; membership is kept.

        Raises:
            LogError: a partition is not assigned.
        """
        self._parts.check(partitions, doing="pause")
        self._parts.paused.update(partitions)
        self._each(self._client.consumer.pause, self._active(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Deliver again.

        Raises:
            LogError: a partition is not assigned.
        """
        self._parts.check(partitions, doing="resume")
        self._parts.paused.difference_update(partitions)
        self._each(self._client.consumer.resume, self._active(partitions))

    def assignment(self) -> tuple[TopicPartition, ...]:
        """Partitions of this reader."""
        return self._parts.all()

    def positions(self) -> dict[TopicPartition, int]:
        """Next offset to be returned, per assigned partition that has one."""
        return self._parts.positions()

    def seek(self, positions: Positions) -> None:
        """Go on from other offsets.

        Raises:
            LogError: a partition is not assigned.
        """
        self._parts.check(positions, doing="seek")
        self._withdraw(positions)

    def commit(self, positions: Positions) -> None:
        """Commit synchronously; see `topics.log.Reader` for what is raised, here and below."""
        self._commits.commit(self._client.consumer, positions)

    def begin_commit(self, positions: Positions) -> Future[None]:
        """Commit without waiting, and without trying again; a later `poll` hears how it ended."""
        return self._commits.begin(self._client.consumer, positions)

    def end_positions(self) -> dict[TopicPartition, int]:
        """Offset after the last readable record, per assigned partition.

        Raises:
            LogUnavailable: the broker did not tell, and may do so later.
            LogError: it refused.
        """
        places = {place: (self._parts.full_names[place[0]], place[1]) for place in self._parts.all()}
        try:
            ends = self._offsets.ends(list(places.values()))
        except KafkaException as exception:
            raise not_now(cause_of(exception), doing="asking for log ends") from exception
        return {place: ends[full] for place, full in places.items()}

    def close(self) -> None:
        """Leave the group without committing."""
        self._commits.forget()
        self._client.close()

    def _subscribe(self, consumer: Consumer) -> None:
        if self._settings.assign == "self":
            return
        if self._settings.group is None:
            raise LogError('assign="group" needs a group id')
        consumer.subscribe(
            list(self._parts.full_names.values()),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def _take_all(self, data_partitions: int) -> None:
        numbers = self._settings.partitions
        for topic in self._settings.topics:
            for partition in range(num_partitions(topic, data_partitions)):
                if numbers is None or partition in numbers:
                    place = (topic.name, partition)
                    self._parts.pending[place] = self._settings.positions.get(place)
                    self._new.append(place)

    def _on_assign(self, consumer: Consumer, places: list[Place]) -> None:
        consumer.incremental_assign([])  # handled: each is read from when its start offset is known, see _settle
        for place in self._short(places):
            self._parts.pending[place] = None
            self._new.append(place)

    def _on_revoke(self, consumer: Consumer, places: list[Place]) -> None:
        gone = self._short(places)
        self._hooks.revoked(gone)
        active = set(self._parts.active())
        for place in gone:
            self._unreadable.pop(place, None)
        self._starts.leave({place: self._parts.next_of(place) for place in gone if place in active})
        self._revoked.update(gone)
        self._new = [place for place in self._new if place not in gone]
        consumer.incremental_unassign(self._places(self._parts.forget(gone)))

    def _settle(self, deadline: Deadline) -> bool:
        """Find start offsets for pending and strayed partitions and read from there; wait for the broker if need be.
        False: they are not known yet."""
        self._withdraw({place: self._parts.next_of(place) for place in self._parts.strayed})
        timeout_s = min(_ASK_LIMIT_S, max(0.5, deadline.remaining_s()))
        try:
            found = self._starts.find(self._parts.pending, timeout_s=timeout_s)
        except KafkaException as exception:
            self._judge(cause_of(exception), doing="finding start offsets")
            return False
        starts = {place: start.offset for place, start in found.items()}
        by_full_name = full_positions(starts, self._parts.full_names)
        self._client.consumer.incremental_assign(
            [Place(topic, part, offset) for (topic, part), offset in by_full_name.items()]
        )
        self._parts.begin(starts)
        # the library remembers a pause over the time in which a partition was somebody else's
        self._each(self._client.consumer.resume, [place for place in starts if place not in self._parts.paused])
        self._each(self._client.consumer.pause, [place for place in starts if place in self._parts.paused])
        self._unknown_topic = None
        self._withdraw_from_gone(self._starts.ids)  # other partitions of a topic that one of these found to be gone
        for start in found.values():
            if start.lost is not None:
                self._hooks.lost(start.lost)
            if start.recreated is not None:
                self._hooks.recreated(start.recreated)
        if self._new:
            new, self._new = self._new, []
            self._hooks.assigned(new)
        if not self._parts.pending:  # else others of a topic made anew must be begun there, and told of, before
            self._renew_if_outlived(self._starts.ids)
        return True

    def _renew_if_outlived(self, ids: Ids) -> None:
        """All partitions are begun by now, where they must be in topics made anew: the next client goes on there."""
        if not self._client.is_outlived_by(ids):
            return
        if self._settings.assign == "self":
            self._withdraw({place: self._parts.next_of(place) for place in self._parts.active()})
        self._commits.forget()
        self._client.renew()

    def _pass_unreadable(self) -> None:
        """Go on behind batches that cannot be unpacked, and tell of each."""
        while self._unreadable:
            place, (first, error) = self._unreadable.popitem()
            end = end_of_batch(self._connection, (self._parts.full_names[place[0]], place[1]), first=first)
            first = max(first, self._parts.next_of(place))
            self._withdraw({place: max(first, end)})
            if end > first:
                batch = UnreadableBatch(topic=place[0], partition=place[1], first=first, end=end, why=error.str())
                self._hooks.dead_letter(
                    letter_of_batch(batch, run=self._connection.run, reader=self._settings.instance)
                )
                self._hooks.unreadable(batch)

    def _look_at_ids(self) -> None:
        """Begin again in topics that were made anew: there, the next offset is that of some other record."""
        ids = self._watch.look()
        if not ids:
            return
        if len(ids) == len(self._parts.full_names):
            self._unknown_topic = None  # whichever was unknown is there
        self._withdraw_from_gone(ids)

    def _withdraw_from_gone(self, ids: Ids) -> None:
        moved = self._starts.begun_elsewhere(self._parts.active(), ids)
        self._withdraw({place: self._parts.next_of(place) for place in moved})

    def _withdraw(self, positions: Positions) -> None:
        """Stop reading these; `_settle` begins again from the given offsets."""
        if not positions:
            return
        for place in positions:
            self._unreadable.pop(place, None)  # found again, if it is still in the way
        paused = self._parts.paused & set(positions)
        self._client.consumer.incremental_unassign(self._places(self._parts.forget(positions)))
        self._parts.pending.update(positions)
        self._parts.paused |= paused

    def _take(self, max_records: int, *, deadline: Deadline) -> list[Envelope]:
        self._revoked.clear()
        wait_s = min(_SLICE_S, deadline.remaining_s())
        messages = self._client.consume(min(_BATCH_RECORDS, max_records), wait_s=wait_s)
        if self._revoked:
            messages = [each for each in messages if not self._is_revoked(each)]
        return self._unpacker.unpack(messages)

    def _on_error(self, error: KafkaError, message: Message) -> None:
        """An error or event that came in place of a record."""
        state = self._parts.states.get(str(message.topic()))
        partition, offset = message.partition(), message.offset()
        if state is None or partition is None or partition not in state.next:
            if not is_unpackable(error):  # else of a batch that is passed by now
                self._judge(error, doing="reading")
        elif error.code() == KafkaError._PARTITION_EOF:
            state.next[partition] = max(state.next[partition], -1 if offset is None else offset)
        elif is_unpackable(error) and offset is not None:
            self._unreadable.setdefault((state.name, partition), (offset, error))
        elif is_out_of_range(error):
            self._parts.strayed.add((state.name, partition))
        else:
            self._judge(error, doing=f"reading {message.topic()} [{partition}]")

    def _judge(self, error: KafkaError, *, doing: str) -> None:
        """Count what passes by itself; keep the rest for the next `poll` to raise, after this batch is delivered."""
        self.num_transient_errors += 1
        _log.debug("%s: %s", doing, error)
        if error.code() in _EVENTS or is_transient(error):
            return
        if is_unknown_topic(error):
            if self._unknown_topic is None:
                self._unknown_topic = Deadline.after(_UNKNOWN_TOPIC_GRACE_S)
            if not self._unknown_topic.expired:
                return
        failure = translated(error, doing=doing)
        failure.__cause__ = KafkaException(error)
        self._failure = failure

    def _active(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [place for place in places if place not in self._parts.pending]

    def _each(self, call: Callable[[list[Place]], None], places: Sequence[TopicPartition]) -> None:
        if places:
            with translating("pausing or resuming"):
                call(self._places(places))

    def _places(self, places: Sequence[TopicPartition]) -> list[Place]:
        return [Place(self._parts.full_names[topic], partition) for topic, partition in places]

    def _short(self, places: Sequence[Place]) -> list[TopicPartition]:
        return [(self._parts.states[place.topic].name, place.partition) for place in places]

    def _is_revoked(self, message: Message) -> bool:
        state = self._parts.states.get(str(message.topic()))
        return state is not None and (state.name, message.partition()) in self._revoked
