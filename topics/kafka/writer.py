"""Writes records to Kafka, idempotently or in transactions.

Role: the producer side of `topics.log.Writer`.
Data in and out: records (or bytes, for copies and tombstones) in; zstd-compressed batches to the broker.
Invariants: acknowledged by all replicas; the size is checked before anything is sent; each failed delivery surfaces
on the next call; after a fence, or a commit with unknown result, the writer refuses everything.
Failure: `RecordTooLarge`, `DeliveryError`, `Fenced`, `AccessDenied`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.codec import encode, headers_of, key_of
from schemas.errors import AccessDenied, DeliveryError, Fenced, LogError
from schemas.records import Record
from topics.catalog import Topic, full_name
from topics.clock import Deadline
from topics.kafka.client import Connection, LibraryLog, writer_config
from topics.kafka.errors import cause_of, is_transient, translating, undelivered
from topics.kafka.refusals import Refusals
from topics.log import WriterSettings
from topics.routing import Headers, check_partition, check_size, partition_for

_log = logging.getLogger("topics.kafka.writer")
_FULL_POLL_S = 0.05
_ABORT_LIMIT_S = 10.0
_TRY_S = 5.0  # of a transactional call, which is then taken up again


class KafkaWriter:
    """One producer. Use from one thread."""

    def __init__(self, connection: Connection, settings: WriterSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._refusals = Refusals(connection)
        config: dict[str, object] = {**writer_config(connection, settings), "error_cb": self._refusals.note}
        if settings.transactional_id is None:
            config["on_delivery"] = self._not_delivered
        # else the commit reports failed records; the library would call back on top of the exception of a fence, which
        # Python does not allow
        with translating("setting up a producer"):
            self._producer = Producer(config, logger=LibraryLog())
        self._names: dict[str, str] = {}
        self._failure: DeliveryError | Fenced | AccessDenied | None = None  # of a record; raised once
        self._broken: DeliveryError | Fenced | AccessDenied | None = None  # of the writer; raised from then on
        self._aborting = False
        self._started = settings.transactional_id is None

    def start(self, *, deadline: Deadline) -> None:
        """Take over the transactional id, fencing an older writer of it. Nothing to do without one, or twice.

        Raises:
            DeliveryError: no broker answered, it refused, or the older writer's transaction did not end in time.
        """
        if self._started:
            return
        doing = f"taking over transactional id {self._settings.transactional_id}"
        self._until_done(self._producer.init_transactions, deadline=deadline, doing=doing)
        self._started = True

    def write(self, topic: Topic, record: Record, *, partition: int | None = None) -> None:
        """Queue one record on its partition; `partition` is for records of a data topic that have no group.

        Raises:
            CodecError: the record does not fit its schema.
            RecordTooLarge: before anything is sent.
            DeliveryError: an earlier record failed, or the queue stays full for the delivery limit.
            LogError: the topic does not carry such records, or no partition follows from this one.
        """
        target = partition_for(topic, record, data_partitions=self._connection.data_partitions, partition=partition)
        self._send(topic, encode(record), key=key_of(record), headers=headers_of(record), partition=target)

    def write_raw(
        self, topic: Topic, *, key: bytes | None, value: bytes | None, partition: int, headers: Headers = ()
    ) -> None:
        """Queue bytes as they are: tombstones (`value=None`), and copies made by `replay`.

        Raises:
            RecordTooLarge, DeliveryError, LogError: as `write`.
        """
        check_partition(topic, partition, data_partitions=self._connection.data_partitions)
        self._send(topic, value, key=key, headers=headers, partition=partition)

    def flush(self, *, deadline: Deadline) -> None:
        """Wait until everything queued is acknowledged.

        Raises:
            DeliveryError: a record failed, or the deadline ended and it is unknown whether records were written.
        """
        self._raise_known()
        num_left = self._calling(
            lambda: self._producer.flush(deadline.remaining_s()), doing="waiting for acknowledgements"
        )
        self._raise_known()
        if num_left:
            raise DeliveryError(
                f"{num_left} records were not acknowledged within {deadline.limit_s:g} s; it is unknown whether they "
                "were written",
                hint="restart the stage from its committed positions",
            )

    def transaction(self, *, deadline: Deadline) -> KafkaTransaction:
        """All writes inside become readable together, or none does."""
        return KafkaTransaction(self, deadline=deadline)

    def close(self, *, deadline: Deadline) -> None:
        """Flush and release; an open transaction is aborted.

        Raises:
            DeliveryError: as `flush`.
        """
        try:
            if self._broken is None:
                self.flush(deadline=deadline)
        finally:
            self._aborting = True  # what is dropped from here on was reported above
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            if self._broken is None:  # else there is nothing left to end in order
                self._producer.close()

    def begin(self, *, deadline: Deadline) -> None:
        """Open a transaction (for `KafkaTransaction`)."""
        if self._settings.transactional_id is None:
            raise LogError("a transaction was asked of a writer without a transactional id")
        self._raise_known()
        self.start(deadline=deadline)
        self._calling(self._producer.begin_transaction, doing="beginning a transaction")

    def commit(self, *, deadline: Deadline) -> None:
        """Commit the open transaction, or abort it when a record in it failed (for `KafkaTransaction`)."""
        if self._failure is not None and self._broken is None:
            failure = self._failure
            self.abort()
            raise failure
        self._raise_known()
        self._until_done(self._producer.commit_transaction, deadline=deadline, doing="committing a transaction")
        self._raise_known()

    def abort(self) -> None:
        """Abort the open transaction; a writer that cannot is of no more use (for `KafkaTransaction`)."""
        if self._broken is not None:
            return  # the broker ends it: by the newer writer, or when it times out
        self._aborting = True
        try:
            self._producer.abort_transaction(_ABORT_LIMIT_S)
        except KafkaException as exception:
            self._broken = undelivered(cause_of(exception), doing="aborting a transaction")
            _log.warning("a transaction of %s was not aborted: %s", self._settings.transactional_id, exception)
        finally:
            self._aborting = False
            self._failure = None  # it was of a record that is void now

    def _send(self, topic: Topic, value: bytes | None, *, key: bytes | None, headers: Headers, partition: int) -> None:
        self._raise_known()
        if value is not None:
            check_size(topic, len(value))
            self._connection.written_bytes[topic.name] += len(value)
        name = self._names.get(topic.name)
        if name is None:
            name = self._names[topic.name] = full_name(self._connection.run, topic)

        def produce() -> int:
            self._producer.produce(name, value, key, partition, headers=list(headers))
            return self._producer.poll(0)

        doing = f"writing to {name} [{partition}]"
        try:
            self._calling(produce, doing=doing)
        except BufferError:
            self._when_there_is_room(produce, doing=doing)

    def _when_there_is_room(self, produce: Callable[[], int], *, doing: str) -> None:
        deadline = Deadline.after(self._settings.delivery_timeout_s)
        while not deadline.expired:
            self._calling(lambda: self._producer.poll(_FULL_POLL_S), doing=doing)
            self._raise_known()
            try:
                self._calling(produce, doing=doing)
            except BufferError:
                continue
            return
        raise DeliveryError(
            f"{doing}: the send queue of {self._settings.buffer_bytes} bytes stayed full for {deadline.limit_s:g} s; "
            "the record was not queued",
            hint="check that the broker is up and keeps pace, or raise buffer_bytes",
        )

    def _until_done(self, call: Callable[[float], None], *, deadline: Deadline, doing: str) -> None:
        """Repeat a transactional call as long as that is allowed; then abort, or be of no more use."""
        while True:
            try:
                return call(min(_TRY_S, deadline.remaining_s()))
            except KafkaException as exception:
                error = cause_of(exception)
                if error.txn_requires_abort():
                    self.abort()
                    raise undelivered(error, doing=f"{doing}; nothing of it is readable") from exception
                if is_transient(error) and not deadline.expired:
                    self._refusals.check(self._ask)
                    continue
                if self._started and not error.fatal():  # a commit without an answer
                    self._broken = undelivered(error, doing=f"{doing}; its result is unknown")
                self._refuse(error, doing=doing, cause=exception)

    def _calling(self, call: Callable[[], int | None], *, doing: str) -> int | None:
        """Call the library, its error translated."""
        try:
            return call()
        except KafkaException as exception:
            self._refuse(cause_of(exception), doing=doing, cause=exception)
        except SystemError as clash:  # a fatal error, and a delivery report on top of it: see __init__
            if not isinstance(clash.__cause__, KafkaException):
                raise
            self._refuse(cause_of(clash.__cause__), doing=doing, cause=clash.__cause__)

    def _refuse(self, error: KafkaError, *, doing: str, cause: KafkaException) -> NoReturn:
        if error.code() == KafkaError._FATAL:  # what made it fatal comes out of poll, as an exception
            try:
                self._producer.poll(0)
            except KafkaException as exception:
                error = cause_of(exception)
        if self._broken is None and (error.fatal() or isinstance(undelivered(error, doing=doing), Fenced)):
            self._broken = undelivered(error, doing=doing)
        raise (self._broken if self._broken is not None else undelivered(error, doing=doing)) from cause

    def _not_delivered(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report, for failures only; runs inside produce, poll, flush and the transactional calls."""
        if error is None or self._aborting:
            return
        failure = undelivered(error, doing=f"writing to {message.topic()} [{message.partition()}]")
        if isinstance(failure, Fenced) and self._broken is None:
            self._broken = failure
        elif self._failure is None:
            self._failure = failure

    def _ask(self, limit_s: float) -> object:
        return self._producer.list_topics(timeout=limit_s)

    def _raise_known(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._refusals.check(self._ask)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class KafkaTransaction:
    """Context of one transaction: commits at the end, aborts on any exception."""

    def __init__(self, writer: KafkaWriter, *, deadline: Deadline) -> None:
        self._writer = writer
        self._deadline = deadline

    def __enter__(self) -> None:
        self._writer.begin(deadline=self._deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._writer.commit(deadline=self._deadline)
        else:
            self._writer.abort()
