"""Offsets as the broker knows them: the retained range and the committed positions.

Role: the questions that readers and the admin ask about offsets, each one request for many partitions.
Data in and out: `(full topic name, partition)` in; offsets out. The end is the last stable offset: what a
read-committed reader can reach.
Invariants: committed positions are asked for through a consumer, which finds a coordinator again that went and came
back. The library's admin client does not (librdkafka 2.16): it was seen to ask nobody any more, for ever, and to abort
the process.
Failure: library errors come through as they are; the caller knows whether waiting may mend them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported implicitly
    AdminClient,
    ClusterMetadata,
    OffsetSpec,
    TopicMetadata,
)

from schemas.errors import LogUnavailable
from topics.clock import Deadline
from topics.kafka.client import Connection, LibraryLog, admin_config, asker_config
from topics.kafka.errors import UNREACHABLE_HINT, cause_of, is_transient, translating
from topics.kafka.refusals import Refusals
from topics.starts import Held

Place = tuple[str, int]  # (full topic name, partition)
REQUEST_TIMEOUT_S = 10.0
_FIRST_TRY_S = 1.0  # doubled with each: soon enough for a refusal, long enough for a slow broker
_RETRY_S = 0.1
_LEAST_S = 0.1
_RELEARN_S = 2.0
_NOTE = "topic_id="
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # under read_committed: the last stable offset


class AdminHandle:
    """One admin client per run, made when it is first needed, and a consumer per group that is asked about, which joins
    none; all are safe to use from several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._former: AdminClient | None = None  # kept until the next one goes: a call on another thread may use it
        self._askers: dict[str, Consumer] = {}
        self._refusals = Refusals(connection)

    def client(self) -> AdminClient:
        """The client.

        Raises:
            LogError: the library does not accept its settings.
        """
        with self._lock:
            if self._client is None:
                config = admin_config(self._connection)
                with translating("setting up an admin client"):
                    self._client = AdminClient(config, logger=LibraryLog(), error_cb=self._refusals.note)
            client = self._client
        client.poll(0)  # the library keeps what it has to say until it is asked: for ever, while brokers are away
        return client

    def renew(self, client: AdminClient) -> None:
        """Use a new client from the next call on, unless that was done meanwhile.

        One that lost its brokers while it looked for a group's coordinator was seen to ask nobody any more, for ever,
        even when the cluster's metadata was asked for (librdkafka 2.16).
        """
        with self._lock:
            if client is self._client:
                self._client, self._former = None, client

    def asker(self, group: str) -> Consumer:
        """A consumer that knows the group's coordinator and is no member.

        Raises:
            LogError: the library does not accept its settings.
        """
        with self._lock:
            if group not in self._askers:
                config = asker_config(self._connection, group=group)
                with translating("setting up a consumer"):
                    self._askers[group] = Consumer({**config, "error_cb": self._refusals.note}, logger=LibraryLog())
            asker = self._askers[group]
        asker.poll(0)  # as in `client`
        return asker

    def connect(self, *, limit_s: float) -> ClusterMetadata:
        """Prove that a broker answers, and lets us in.

        Raises:
            LogUnavailable: none answers, naming the address and what to do.
            AccessDenied: one refuses us; told at once.
        """
        client, deadline, slice_s = self.client(), Deadline.after(limit_s), _FIRST_TRY_S
        while True:
            try:
                return client.list_topics(timeout=min(slice_s, max(0.1, deadline.remaining_s())))
            except KafkaException as exception:
                client.poll(0)  # hands over what the brokers said
                self._refusals.raise_any(cause=exception)
                if deadline.expired:
                    raise LogUnavailable(
                        f"no Kafka broker answered at {self._connection.bootstrap} within {limit_s:.3g} s: "
                        f"{cause_of(exception).str()}",
                        hint=UNREACHABLE_HINT,
                    ) from exception
            slice_s *= 2
            deadline.clock.wait(_RETRY_S)


def commit_note(topic_id: str | None) -> str:
    """Metadata of a committed offset: the id of the topic it belongs to."""
    return "" if topic_id is None else f"{_NOTE}{topic_id}"


def noted_id(note: str | None) -> str | None:
    """The id in a committed offset's metadata; None when it has none, as those of older releases and of tools."""
    return note.removeprefix(_NOTE) if note is not None and note.startswith(_NOTE) else None


def num_copies(topic: TopicMetadata) -> int:
    """Fewest replicas of a partition, those that are away included."""
    return min((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def relearn(handle: AdminHandle, *, limit_s: float) -> None:
    """A broker went or came back: ask for the cluster's metadata, within the limit or not at all.

    The library does not by itself, for minutes: with a dead broker as controller, or stale leaders, in its cache it was
    seen to answer "timed out waiting for controller", and FENCED_LEADER_EPOCH, to every request.
    """
    with suppress(KafkaException):
        handle.client().list_topics(timeout=max(_LEAST_S, min(_RELEARN_S, limit_s)))


class BrokerOffsets:
    """Asks the broker for offsets."""

    def __init__(self, handle: AdminHandle) -> None:
        self._handle = handle

    def ranges(self, places: Sequence[Place], *, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[Place, tuple[int, int]]:
        """(earliest retained offset, offset after the last readable one) of each partition.

        Raises:
            KafkaException: of the first partition that failed.
        """
        earliest = self._list(places, spec=_EARLIEST, timeout_s=timeout_s)
        ends = self._list(places, spec=_END, timeout_s=timeout_s)
        return {place: (earliest[place], ends[place]) for place in places}

    def ends(self, places: Sequence[Place], *, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[Place, int]:
        """Offset after the last readable record of each partition.

        Raises:
            KafkaException: of the first partition that failed.
        """
        return self._list(places, spec=_END, timeout_s=timeout_s)

    def committed(
        self, group: str, places: Sequence[Place], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> dict[Place, Held]:
        """Committed position of each partition that has one, with the id of its topic if the offset tells.

        Raises:
            KafkaException: the request failed, as a whole or for a partition.
        """
        asked = [TopicPartition(topic, partition) for topic, partition in places]
        found = self._handle.asker(group).committed(asked, timeout=timeout_s)
        for each in found:
            if each.error is not None:  # it may well have an offset
                raise KafkaException(each.error)
        return {
            (each.topic, each.partition): Held(offset=each.offset, topic_id=noted_id(each.metadata))
            for each in found
            if each.offset >= 0
        }

    def _list(self, places: Sequence[Place], *, spec: OffsetSpec, timeout_s: float) -> dict[Place, int]:
        deadline = Deadline.after(timeout_s)
        while places:
            try:
                return self._ask(places, spec=spec, timeout_s=max(_LEAST_S, deadline.remaining_s()))
            except KafkaException as exception:
                if deadline.expired or not is_transient(cause_of(exception)):
                    raise
                deadline.clock.wait(_RETRY_S)
                relearn(self._handle, limit_s=deadline.remaining_s())
        return {}

    def _ask(self, places: Sequence[Place], *, spec: OffsetSpec, timeout_s: float) -> dict[Place, int]:
        request = {TopicPartition(topic, partition): spec for topic, partition in places}
        futures = self._handle.client().list_offsets(
            request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s
        )
        found = {(each.topic, each.partition): future.result().offset for each, future in futures.items()}
        missing = [place for place, offset in found.items() if offset < 0]
        if missing:  # seen when the leader had just gone: no error, and no offset either
            topic, partition = missing[0]
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"no offset of {topic} [{partition}]"))
        return found
