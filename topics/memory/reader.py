"""Reads records from the memory log, in order per partition.

Role: the consumer side of `topics.log.Reader`; group members settle who holds what at their own `poll`, so a partition
moves when its holder has let go of it, as in a cooperative rebalance.
Invariants: those of `topics.kafka.reader`; bytes are decoded with the same codec and fail in the same way.
Failure: `OffsetsLost`, `Fenced`, `LogError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from schemas.errors import CodecError, Fenced, LogError, LogUnavailable
from topics.catalog import full_name, num_partitions
from topics.clock import Deadline, SystemClock
from topics.dead_letters import dead_letter, readable
from topics.log import Envelope, Positions, ReaderHooks, ReaderSettings, TopicPartition
from topics.memory.store import MemoryBroker, Partition, Stored, StoredTopic
from topics.starts import Held, Present, find_start

_SLICE_S = 0.05


class MemoryReader:
    """One consumer. Use from one thread; hooks are called from inside `poll` and `close`."""

    def __init__(
        self,
        broker: MemoryBroker,
        settings: ReaderSettings,
        *,
        hooks: ReaderHooks,
        run: str,
        data_partitions: int,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._hooks = hooks
        self._run = run
        self._topics = {topic.name: topic for topic in settings.topics}
        self._full = {topic.name: full_name(run, topic) for topic in settings.topics}
        self._short = {full: name for name, full in self._full.items()}
        self._positions: dict[TopicPartition, int | None] = {}  # None: start still to be found
        self._paused: set[TopicPartition] = set()
        self._ids: dict[TopicPartition, str] = {}  # of the topic in which each partition was begun
        self._left: dict[TopicPartition, int] = {}  # where partitions stood that went to others, or with their topic
        self._new: list[TopicPartition] = []
        self._turn = 0  # which partition is served first
        if settings.assign == "group":
            self._join()
        else:
            self._take_all(data_partitions)

    @property
    def client_id(self) -> str:
        """What the admin shows of this reader."""
        return self._settings.client_id or self._settings.instance or "rlweave"

    def poll(self, max_records: int, *, deadline: Deadline) -> list[Envelope]:
        """Up to `max_records` records; returns as soon as any are there, with none when the deadline ends.

        Raises:
            OffsetsLost: with `on_lost="stop"`, or a position is beyond the end.
            LogError: a topic does not exist.
        """
        while True:
            with self._broker.changed:
                self._rebalance()
                self._settle()
                taken = self._take(max_records)
                if not taken and not deadline.expired:
                    self._wait(deadline)
                    continue
            envelopes = [
                each for place, offset, stored in taken if (each := self._envelope(place, offset=offset, stored=stored))
            ]
            if envelopes or deadline.expired:
                return envelopes

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop delivering from these until `resume`; membership is kept."""
        self._check(partitions, doing="pause")
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Deliver again."""
        self._check(partitions, doing="resume")
        self._paused.difference_update(partitions)

    def assignment(self) -> tuple[TopicPartition, ...]:
        """Partitions of this reader."""
        return tuple(self._positions)

    def positions(self) -> dict[TopicPartition, int]:
        """Next offset to be returned, per assigned partition that has one."""
        return {place: offset for place, offset in self._positions.items() if offset is not None}

    def seek(self, positions: Positions) -> None:
        """Go on from other offsets."""
        self._check(positions, doing="seek")
        self._positions.update(positions)

    def commit(self, positions: Positions) -> None:
        """Commit.

        Raises:
            Fenced: a partition belongs to another member by now.
            LogUnavailable: the coordinator is away.
            LogError: the reader has no group.
        """
        if not positions:
            return
        if self._settings.group is None:
            raise LogError("this reader has no group to commit for")
        with self._broker.changed:
            if self._broker.coordinator_away:
                raise LogUnavailable(f"committing for group {self._settings.group}: the group's coordinator is away")
            group = self._broker.group(self._settings.group)
            places = {
                (self._full[place[0]], place[1]): Held(offset=at, topic_id=self._ids.get(place))
                for place, at in positions.items()
            }
            if self._settings.assign == "group" and any(group.holders.get(place) is not self for place in places):
                raise Fenced(f"cannot commit {dict(positions)}: assigned are {list(self._positions)}")
            group.committed.update(places)

    def begin_commit(self, positions: Positions) -> Future[None]:
        """Commit; it has ended when this returns."""
        ended: Future[None] = Future()
        try:
            self.commit(positions)
        except LogUnavailable as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)
        return ended

    def end_positions(self) -> dict[TopicPartition, int]:
        """Offset after the last readable record, per assigned partition."""
        with self._broker.changed:
            return {place: self._partition(place).end() for place in self._positions}

    def close(self) -> None:
        """Leave the group without committing."""
        if self._positions and self._settings.assign == "group":
            self._hooks.revoked(list(self._positions))
        self.vanish()

    def vanish(self) -> None:
        """Be gone as after `kill -9` and the end of the session: no hook is called, nothing is committed."""
        with self._broker.changed:
            if self._settings.assign == "group" and self._settings.group is not None:
                group = self._broker.group(self._settings.group)
                group.members = [each for each in group.members if each is not self]
                group.topics.pop(id(self), None)
                for place in [place for place, holder in group.holders.items() if holder is self]:
                    del group.holders[place]
            self._positions.clear()
            self._broker.changed.notify_all()

    def _join(self) -> None:
        if self._settings.group is None:
            raise LogError('assign="group" needs a group id')
        with self._broker.changed:
            group = self._broker.group(self._settings.group)
            group.members.append(self)
            group.topics[id(self)] = set(self._full.values())

    def _take_all(self, data_partitions: int) -> None:
        numbers = self._settings.partitions
        for topic in self._settings.topics:
            for partition in range(num_partitions(topic, data_partitions)):
                if numbers is None or partition in numbers:
                    place = (topic.name, partition)
                    self._positions[place] = self._settings.positions.get(place)
                    self._new.append(place)

    def _rebalance(self) -> None:
        """Let go of what is no longer ours, take what others have let go of."""
        if self._settings.assign != "group" or self._settings.group is None:
            return
        group = self._broker.group(self._settings.group)
        share = self._broker.share_of(group, self)
        gone = [place for place in self._positions if (self._full[place[0]], place[1]) not in share]
        if gone:
            self._hooks.revoked(gone)
            for place in gone:
                position = self._positions.pop(place)
                if position is not None:
                    self._left[place] = position
                self._paused.discard(place)
                group.holders.pop((self._full[place[0]], place[1]), None)
            self._broker.changed.notify_all()
        for place in sorted(share - group.holders.keys()):
            group.holders[place] = self
            self._positions[self._short[place[0]], place[1]] = None
            self._new.append((self._short[place[0]], place[1]))

    def _settle(self) -> None:
        """Give every partition a position on the log; report what is lost and what is new."""
        for place, wanted in self._positions.items():
            stored, partition = self._topic(place), self._partition(place)
            if wanted is not None and self._ids.get(place) == stored.topic_id and partition.holds(wanted):
                continue
            held = self._held(place, topic_id=stored.topic_id)
            present = Present(topic_id=stored.topic_id, earliest=partition.earliest, end=partition.end())
            start = find_start(place, held, present=present, settings=self._settings)
            self._positions[place] = start.offset
            self._ids[place] = stored.topic_id
            if start.lost is not None:
                self._hooks.lost(start.lost)
            if start.recreated is not None:
                self._hooks.recreated(start.recreated)
        if self._new:
            new, self._new = self._new, []
            self._hooks.assigned(new)

    def _take(self, max_records: int) -> list[tuple[TopicPartition, int, Stored]]:
        """Readable records from one partition after the other, beginning with another one each time."""
        taken: list[tuple[TopicPartition, int, Stored]] = []
        order = list(self._positions)
        self._turn = (self._turn + 1) % max(1, len(order))
        for place in order[self._turn :] + order[: self._turn]:
            position = self._positions[place]
            if place in self._paused or position is None or len(taken) >= max_records:
                continue
            found, after = self._partition(place).read(position, limit=max_records - len(taken))
            self._positions[place] = after
            taken.extend((place, offset, stored) for offset, stored in found)
        return taken

    def _wait(self, deadline: Deadline) -> None:
        if isinstance(deadline.clock, SystemClock):
            self._broker.changed.wait(min(_SLICE_S, deadline.remaining_s()))
        else:
            deadline.clock.wait(deadline.remaining_s())

    def _envelope(self, place: TopicPartition, *, offset: int, stored: Stored) -> Envelope | None:
        """The envelope of a record; None when its bytes went to the dead letters."""
        topic = self._topics[place[0]]
        origin = Envelope(
            topic=topic.name,
            partition=place[1],
            offset=offset,
            key=stored.key,
            record=None,
            headers=dict(stored.headers),
            unix_ms=stored.unix_ms,
            num_bytes=0 if stored.value is None else len(stored.value),
        )
        try:
            record = readable(stored.value, topic.records, tombstones=topic.cleanup == "compact")
        except CodecError as error:
            self._hooks.dead_letter(
                dead_letter(
                    origin,
                    value=stored.value,
                    run=self._run,
                    full_topic=self._full[topic.name],
                    error=error,
                    reader=self._settings.instance,
                )
            )
            return None
        return replace(origin, record=record)

    def _held(self, place: TopicPartition, *, topic_id: str) -> Held | None:
        """The position to go on from: as on Kafka."""
        own = self._positions[place]
        if own is not None:
            return Held(offset=own, topic_id=self._ids.get(place))
        if self._settings.assign != "group" or self._settings.group is None:
            return None
        committed = self._broker.group(self._settings.group).committed.get((self._full[place[0]], place[1]))
        if committed is None and place in self._left and self._ids[place] != topic_id:
            return Held(offset=self._left[place], topic_id=self._ids[place])
        return committed

    def _topic(self, place: TopicPartition) -> StoredTopic:
        stored = self._broker.topics.get(self._full[place[0]])
        if stored is None or place[1] >= len(stored.partitions):
            raise LogError(f"reading {self._full[place[0]]} [{place[1]}]: there is no such topic or partition")
        return stored

    def _partition(self, place: TopicPartition) -> Partition:
        return self._topic(place).partitions[place[1]]

    def _check(self, places: Iterable[TopicPartition], *, doing: str) -> None:
        strangers = [place for place in places if place not in self._positions]
        if strangers:
            raise LogError(f"cannot {doing} {strangers}: assigned are {list(self._positions)}")
