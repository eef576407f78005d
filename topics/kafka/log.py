"""A run's log on a Kafka cluster.

Role: makes readers, writers and the admin of one run.
Invariants: constructing does no I/O; `connect` proves the connection.
Failure: `LogUnavailable` names the address and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topics.access import Grant
from topics.catalog import check_run_name
from topics.clock import Deadline
from topics.kafka.acls import check_access
from topics.kafka.admin import KafkaAdmin
from topics.kafka.client import Connection
from topics.kafka.offsets import AdminHandle
from topics.kafka.reader import KafkaReader
from topics.kafka.writer import KafkaWriter
from topics.log import ReaderHooks, ReaderSettings, WriterSettings

_CONNECT_LIMIT_S = 10.0
_NO_CONFIG: Mapping[str, str] = {}


class KafkaLog:
    """The topics of one run on one cluster.

    Args:
        bootstrap: `host:port[,host:port]`.
        run: run name.
        data_partitions: P, the partition count of the data topics.
        replication_factor: of topics that `ensure_topics` creates.
        config: client library settings that win over ours (security, for example).

    Raises:
        SettingsError: the run name is not allowed.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        run: str,
        data_partitions: int,
        replication_factor: int = 1,
        config: Mapping[str, str] = _NO_CONFIG,
    ) -> None:
        check_run_name(run)
        self._connection = Connection(
            bootstrap=bootstrap, run=run, data_partitions=data_partitions, overrides=dict(config)
        )
        self._replication_factor = replication_factor
        self._handle = AdminHandle(self._connection)

    @property
    def run(self) -> str:
        return self._connection.run

    @property
    def data_partitions(self) -> int:
        return self._connection.data_partitions

    @property
    def written_bytes(self) -> Mapping[str, int]:
        return self._connection.written_bytes

    @property
    def read_bytes(self) -> Mapping[str, int]:
        return self._connection.read_bytes

    def connect(self, *, deadline: Deadline) -> None:
        """Prove that a broker answers, within 10 s or the deadline.

        Raises:
            LogUnavailable: naming the address and what to do.
            AccessDenied: credentials or certificates are wrong; told at once.
        """
        self._handle.connect(limit_s=min(_CONNECT_LIMIT_S, deadline.remaining_s()))

    def check_access(self, grants: Sequence[Grant]) -> None:
        """See that the broker allows everything of `grants` on the run's topics that exist.

        Raises:
            AccessDenied: naming all that is missing.
        """
        check_access(self._handle, grants)

    def reader(self, settings: ReaderSettings, *, hooks: ReaderHooks) -> KafkaReader:
        """A reader; it meets the broker at the first `poll`."""
        return KafkaReader(self._connection, settings, hooks=hooks, handle=self._handle)

    def writer(self, settings: WriterSettings) -> KafkaWriter:
        """A writer; a transactional one fences its predecessor at `start`, or at its first transaction."""
        return KafkaWriter(self._connection, settings)

    def admin(self) -> KafkaAdmin:
        """The admin of the run's topics."""
        return KafkaAdmin(self._connection, handle=self._handle, replication_factor=self._replication_factor)
