"""How clients are configured, and where their log lines go.

Role: one place for every setting given to the library, with the reason for each that is not its default.
Invariants: limits of the client follow the catalog, so what passes our own check is never refused by the library or
the broker for its size.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from topics.access import no_commits_group
from topics.catalog import CATALOG, Topic
from topics.log import ReaderSettings, WriterSettings

Config = dict[str, str | int | float | bool]

CODEC = "zstd"  # the one codec whose unpacking the library limits, to receive.message.max.bytes
_HEARTBEAT_MS = 1000  # at most, between them: how late a member hears that partitions are to move
_OVERHEAD_BYTES = 64 * 1024  # batch and record framing, key, headers, and zstd on bytes that do not compress
_FETCH_BYTES, _LEAST_FETCH_BYTES = 1024 * 1024, 64 * 1024  # the library's default; more requests would cost more
_log = logging.getLogger("topics.kafka.client")


class LibraryLog:
    """Takes the library's log lines to `logging` at debug level: what matters comes back as an error anyway."""

    def log(self, level: int, message: str, *args: object) -> None:
        """One line of the library, with the level it thinks it has."""
        _log.debug("%s: " + message, logging.getLevelName(level), *args)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What every client of one run shares.

    Args:
        bootstrap: `host:port[,host:port]`.
        run: run name.
        data_partitions: P.
        overrides: library settings that win over ours (security, for example); they may hold a password.
    """

    bootstrap: str
    run: str
    data_partitions: int
    overrides: Mapping[str, str] = field(repr=False)
    written_bytes: Counter[str] = field(default_factory=Counter, repr=False, compare=False)  # by short topic name
    read_bytes: Counter[str] = field(default_factory=Counter, repr=False, compare=False)

    def base(self) -> Config:
        """Settings of every client."""
        return {
            "bootstrap.servers": self.bootstrap,
            "message.max.bytes": MAX_WIRE_BYTES,
            "log_level": 2,  # below, each failed connection is a line, on stderr when the process is about to end
        }


def wire_bytes(topic: Topic) -> int:
    """`max.message.bytes` of a topic: room for its largest record with everything around it."""
    return topic.max_record_bytes + _OVERHEAD_BYTES


MAX_WIRE_BYTES = max(wire_bytes(topic) for topic in CATALOG)


def admin_config(connection: Connection) -> Config:
    """Settings of the admin client."""
    return connection.base() | dict(connection.overrides)


def asker_config(connection: Connection, *, group: str) -> Config:
    """Settings of a consumer that only asks for what a group has committed."""
    config: Config = connection.base() | {"group.id": group, "enable.auto.commit": False}
    return config | dict(connection.overrides)


def writer_config(connection: Connection, settings: WriterSettings) -> Config:
    """Settings of a producer: idempotent or transactional, callbacks for failures only."""
    config: Config = connection.base() | {
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": CODEC,
        "linger.ms": settings.linger_ms,
        "delivery.timeout.ms": round(settings.delivery_timeout_s * 1000),
        "queue.buffering.max.kbytes": max(1, settings.buffer_bytes // 1024),
        "queue.buffering.max.messages": 0,  # the bytes are the limit
        "delivery.report.only.error": True,  # a callback per record written would cost more than writing it
    }
    if settings.transactional_id is not None:
        timeout_ms = round(settings.transaction_timeout_s * 1000)
        config |= {
            "transactional.id": settings.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "delivery.timeout.ms": min(timeout_ms, round(settings.delivery_timeout_s * 1000)),
        }
    return config | dict(connection.overrides)


def reader_config(connection: Connection, settings: ReaderSettings) -> Config:
    """Settings of a consumer: nothing automatic about offsets."""
    session_ms = round(settings.session_timeout_s * 1000)
    config: Config = connection.base() | {
        "group.id": settings.group if settings.group is not None else no_commits_group(connection.run),
        "client.id": settings.client_id or settings.instance or "rlweave",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,  # carries the position past transaction markers
        "check.crcs": True,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(1, min(_HEARTBEAT_MS, session_ms // 4)),
        "queued.max.messages.kbytes": max(1, settings.buffer_bytes // 1024),
        # Of each partition and answer, packed: all partitions of an answer are unpacked at once, to many times as much,
        # before the limit above counts. A larger batch comes all the same (KIP-74).
        "fetch.message.max.bytes": min(_FETCH_BYTES, max(_LEAST_FETCH_BYTES, settings.buffer_bytes // 64)),
        "fetch.wait.max.ms": 100,  # also how long it takes to learn that only a transaction marker was left
        "fetch.queue.backoff.ms": 10,  # a full buffer drains in less than the default of a second
    }
    return config | dict(connection.overrides)
