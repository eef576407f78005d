"""Writes records to the memory log, plainly or in transactions.

Role: the producer side of `topics.log.Writer`, with the same checks, order of failures and fencing as on Kafka.
Failure: `RecordTooLarge` before anything is written; `DeliveryError` on the call after the one that failed; `Fenced`.
"""

from __future__ import annotations

from types import TracebackType

from schemas.codec import encode, headers_of, key_of
from schemas.errors import DeliveryError, Fenced, LogError
from schemas.records import Record
from topics.catalog import Topic, full_name
from topics.clock import Clock, Deadline
from topics.log import WriterSettings
from topics.memory.store import MemoryBroker, Stored, Transaction
from topics.routing import Headers, check_partition, check_size, partition_for


class MemoryWriter:
    """One producer."""

    def __init__(
        self, broker: MemoryBroker, settings: WriterSettings, *, run: str, data_partitions: int, clock: Clock
    ) -> None:
        self._broker = broker
        self._run = run
        self._data_partitions = data_partitions
        self._clock = clock
        self._id = settings.transactional_id
        self._epoch: int | None = None
        self._transaction: Transaction | None = None
        self._failure: DeliveryError | None = None

    def start(self, *, deadline: Deadline) -> None:  # noqa: ARG002  # nothing here takes time
        """Take over the transactional id: an older writer of it is fenced and its transaction aborted."""
        if self._id is None or self._epoch is not None:
            return
        with self._broker.changed:
            self._broker.end_transaction(self._id, status="aborted")
            self._epoch = self._broker.epochs.get(self._id, 0) + 1
            self._broker.epochs[self._id] = self._epoch

    def write(self, topic: Topic, record: Record, *, partition: int | None = None) -> None:
        """Write one record.

        Raises:
            CodecError, RecordTooLarge, DeliveryError, Fenced, LogError: as on Kafka.
        """
        target = partition_for(topic, record, data_partitions=self._data_partitions, partition=partition)
        self._append(topic, encode(record), key=key_of(record), headers=headers_of(record), partition=target)

    def write_raw(
        self, topic: Topic, *, key: bytes | None, value: bytes | None, partition: int, headers: Headers = ()
    ) -> None:
        """Write bytes as they are.

        Raises:
            RecordTooLarge, DeliveryError, Fenced, LogError: as on Kafka.
        """
        check_partition(topic, partition, data_partitions=self._data_partitions)
        self._append(topic, value, key=key, headers=headers, partition=partition)

    def flush(self, *, deadline: Deadline) -> None:  # noqa: ARG002
        """Raise what failed.

        Raises:
            DeliveryError: a record was not written.
        """
        self._raise_known()

    def transaction(self, *, deadline: Deadline) -> MemoryTransaction:
        """All writes inside become readable together, or none does."""
        return MemoryTransaction(self, deadline=deadline)

    def close(self, *, deadline: Deadline) -> None:
        """Abort an open transaction and raise what failed."""
        if self._transaction is not None:
            self.end(commit=False)
        self.flush(deadline=deadline)

    def begin(self, *, deadline: Deadline) -> None:
        """Open a transaction (for `MemoryTransaction`)."""
        if self._id is None:
            raise LogError("a transaction was asked of a writer without a transactional id")
        self._raise_known()
        self.start(deadline=deadline)
        with self._broker.changed:
            self._check_epoch()
            self._transaction = self._broker.open[self._id] = Transaction()

    def end(self, *, commit: bool) -> None:
        """Commit, or abort when told or when a record failed (for `MemoryTransaction`)."""
        self._transaction = None
        with self._broker.changed:
            if commit:
                self._check_epoch()
            if self._id is not None and self._epoch == self._broker.epochs.get(self._id):
                good = commit and self._failure is None
                self._broker.end_transaction(self._id, status="committed" if good else "aborted")
        failure, self._failure = self._failure, None
        if commit and failure is not None:
            raise failure

    def _append(
        self, topic: Topic, value: bytes | None, *, key: bytes | None, headers: Headers, partition: int
    ) -> None:
        self._raise_known()
        if value is not None:
            check_size(topic, len(value))
        name = full_name(self._run, topic)
        with self._broker.changed:
            self._check_epoch()
            if self._id is not None and self._transaction is None:
                raise DeliveryError(
                    f"writing to {name} [{partition}]: a transactional writer needs an open transaction"
                )
            stored = self._broker.topics.get(name)
            if stored is None or partition >= len(stored.partitions):
                self._failure = DeliveryError(f"writing to {name} [{partition}]: there is no such topic or partition")
                return
            if self._transaction is not None:
                self._transaction.places.add((name, partition))
            stored.partitions[partition].append(
                Stored(
                    key=key,
                    value=value,
                    headers=tuple(headers),
                    unix_ms=self._clock.unix_ms(),
                    transaction=self._transaction,
                )
            )
            self._broker.changed.notify_all()

    def _check_epoch(self) -> None:
        if self._id is not None and self._epoch is not None and self._broker.epochs[self._id] != self._epoch:
            raise Fenced(
                f"a newer process with the transactional id {self._id} has taken over; nothing was written",
                hint="stop this process; the newer one carries on",
            )

    def _raise_known(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class MemoryTransaction:
    """Context of one transaction: commits at the end, aborts on any exception."""

    def __init__(self, writer: MemoryWriter, *, deadline: Deadline) -> None:
        self._writer = writer
        self._deadline = deadline

    def __enter__(self) -> None:
        self._writer.begin(deadline=self._deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.end(commit=kind is None)
