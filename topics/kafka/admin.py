"""Topics of one run on Kafka: create, check, describe, lag, delete.

Role: the admin side of `topics.log`.
Invariants: an existing topic is accepted or refused, and changed only in what loses nothing and what every release may
read (`_BROUGHT`; who has no right to is told); unknown lag is None, never zero.
Failure: `TopicMismatch` names topic, property, the value seen and the one wanted; other errors are `LogError`s.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported implicitly
    NewTopic,
    TopicMetadata,
)

from schemas.errors import AccessDenied, LogError, TopicMismatch
from topics.catalog import CATALOG, Topic, full_name, num_partitions
from topics.clock import Deadline
from topics.kafka.client import CODEC, Connection, wire_bytes
from topics.kafka.configs import alter_configs, topic_configs
from topics.kafka.errors import cause_of, is_transient, is_unknown_topic, translated, translating
from topics.kafka.ids import ask_known_ids
from topics.kafka.offsets import REQUEST_TIMEOUT_S, AdminHandle, BrokerOffsets, num_copies
from topics.lag import partition_lag
from topics.log import PartitionLag
from topics.told import Told

_READY_LIMIT_S = 30.0
_LATEST = "message.timestamp.after.max.ms"  # by default a broker refuses what hosts with a fast clock write
_STAMPED_BY = "message.timestamp.type"
_CODEC = "compression.type"
_BROUGHT = (_STAMPED_BY, _CODEC)  # of topics made by older releases
_RETRY_S = 0.1
_log = logging.getLogger("topics.kafka.admin")


class KafkaAdmin:
    """The admin of one run's topics."""

    def __init__(self, connection: Connection, *, handle: AdminHandle, replication_factor: int) -> None:
        self._run = connection.run
        self._data_partitions = connection.data_partitions
        self._handle = handle
        self._copies = replication_factor
        self._offsets = BrokerOffsets(handle)
        self._told = Told(_log)
        self._by_full_name = {full_name(self._run, topic): topic for topic in CATALOG}

    def ensure_topics(self) -> list[str]:
        """Create what is missing, check what exists and bring it to this release; returns the full names created.

        Raises:
            TopicMismatch: naming topic, property, the value seen and the one wanted.
            LogError: the broker refused to create or change one.
        """
        existing = self._partition_counts()
        created = [name for name in self._by_full_name if name not in existing and self._create(name)]
        self._wait_until_there(created)
        self.check_partitions()
        self._check_copies()
        self._check_configs([name for name in self._by_full_name if name not in created])
        return created

    def check_partitions(self) -> None:
        """Refuse a partition count other than the run's own; it must not change in mid-stream.

        Raises:
            TopicMismatch: naming topic, count seen and count wanted.
        """
        for name, seen in self._partition_counts().items():
            wanted = self._num_partitions(name)
            if seen != wanted:
                raise _mismatch(name, "partitions", seen=str(seen), wanted=str(wanted))

    def describe(self) -> dict[str, dict[int, tuple[int, int]]]:
        """(earliest, end) offsets per existing short topic name and partition."""
        counts = self._partition_counts()
        places = [(name, partition) for name, count in counts.items() for partition in range(count)]
        with translating("asking for offsets"):
            ranges = self._offsets.ranges(places)
        described: dict[str, dict[int, tuple[int, int]]] = {self._by_full_name[name].name: {} for name in counts}
        for (name, partition), offsets in ranges.items():
            described[self._by_full_name[name].name][partition] = offsets
        return described

    def topic_ids(self) -> dict[str, str]:
        """Broker ids of the run's topics by short name."""
        names = list(self._partition_counts())
        with translating("describing topics"):
            ids = ask_known_ids(self._handle, names)
        return {self._by_full_name[name].name: topic_id for name, topic_id in ids.items()}

    def lag(self, group: str, topics: Sequence[Topic]) -> list[PartitionLag]:
        """How far `group` is behind; everything the broker does not tell is None, and why is logged once."""
        places = [
            (full_name(self._run, topic), partition)
            for topic in topics
            for partition in range(num_partitions(topic, self._data_partitions))
        ]
        try:
            committed = self._offsets.committed(group, places)
            ranges = self._offsets.ranges(places)
            self._told.works(group)
        except KafkaException as exception:
            error = cause_of(exception)
            self._told.warn(group, error.name(), text=f"lag of {group} is unknown: {error}")
            committed, ranges = {}, {}
        return [
            partition_lag(
                self._by_full_name[place[0]].name,
                place[1],
                committed=committed[place].offset if place in committed else None,
                retained=ranges.get(place),
            )
            for place in places
        ]

    def members(self, group: str) -> list[str]:
        """Client ids of the live members of a consumer group; none when there is no such group.

        Raises:
            LogError: the broker did not say.
        """
        deadline = Deadline.after(REQUEST_TIMEOUT_S)
        while True:
            client = self._handle.client()
            futures = client.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)
            try:
                return [str(member.client_id) for member in futures[group].result().members]
            except KafkaException as exception:
                error = cause_of(exception)
                if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                if error.code() == KafkaError._TIMED_OUT:
                    self._handle.renew(client)
                if deadline.expired or not is_transient(error):  # a coordinator may be on its way, on a new cluster
                    raise translated(error, doing=f"asking for the members of {group}") from exception
                deadline.clock.wait(_RETRY_S)

    def delete_topics(self) -> list[str]:
        """Delete all topics of the run; returns the full names deleted."""
        names = list(self._partition_counts())
        if names:
            for future in self._handle.client().delete_topics(names, request_timeout=REQUEST_TIMEOUT_S).values():
                try:
                    future.result()
                except KafkaException as exception:
                    error = cause_of(exception)
                    if not is_unknown_topic(error):  # it was gone before, and still listed for a moment
                        raise translated(error, doing="deleting topics") from exception
        return names

    def _num_partitions(self, name: str) -> int:
        return num_partitions(self._by_full_name[name], self._data_partitions)

    def _partition_counts(self) -> dict[str, int]:
        """Partition count per existing topic of the run, by full name."""
        return {name: len(topic.partitions) for name, topic in self._existing().items()}

    def _existing(self) -> dict[str, TopicMetadata]:
        with translating("asking for the topics"):
            known = self._handle.client().list_topics(timeout=REQUEST_TIMEOUT_S).topics
        return {name: known[name] for name in self._by_full_name if name in known}

    def _check_copies(self) -> None:
        """More copies than asked for are fine."""
        for name, topic in self._existing().items():
            if num_copies(topic) < self._copies:
                seen, wanted = str(num_copies(topic)), str(self._copies)
                raise _mismatch(name, "replication.factor", seen=seen, wanted=wanted)

    def _create(self, name: str) -> bool:
        """Create one topic; False when somebody else was faster."""
        new = NewTopic(
            name,
            num_partitions=self._num_partitions(name),
            replication_factor=self._copies,
            config=self._wanted(name),
        )
        future = self._handle.client().create_topics([new], request_timeout=REQUEST_TIMEOUT_S)[name]
        try:
            with translating(f"creating topic {name}"):
                future.result()
        except LogError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause_of(cause).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def _wait_until_there(self, created: list[str]) -> None:
        """A created topic takes a moment until brokers tell clients of it; and so does a deleted one until all brokers
        have heard of it: one that was listed and is gone is created here."""
        deadline = Deadline.after(_READY_LIMIT_S)
        while missing := self._by_full_name.keys() - self._partition_counts().keys():
            deadline.check(f"the created topics to appear: {', '.join(sorted(missing))}")
            created += [name for name in sorted(missing) if name not in created and self._create(name)]
            deadline.clock.wait(0.02)

    def _check_configs(self, names: Sequence[str]) -> None:
        found = topic_configs(self._handle, names)
        for name, seen in found.items():
            _check_config(name, self._wanted(name), seen=seen)
        older = {name: config for name, seen in found.items() if (config := _to_bring(self._wanted(name), seen=seen))}
        if older:
            self._bring(older)

    def _bring(self, older: Mapping[str, Mapping[str, str]]) -> None:
        """Bring topics to this release's settings, or say that somebody must."""
        try:
            alter_configs(self._handle, older)
        except AccessDenied:
            settings = ",".join(f"{key}={value}" for key, value in next(iter(older.values())).items())
            _log.warning(
                "topics %s were made by an older release and lack %s: a host with a fast clock may not be able to "
                "write, one with a slow clock loses events early, and a foreign batch may take any memory; start "
                "`rlweave up` as a user with the rights of `admin`, or run kafka-configs.sh --alter --add-config %s "
                "on each",
                ", ".join(sorted(older)),
                settings,
                settings,
            )
        else:
            _log.info("topics %s were brought to %s", ", ".join(sorted(older)), dict(next(iter(older.values()))))

    def _wanted(self, name: str) -> dict[str, str]:
        return _wanted_config(self._by_full_name[name], copies=self._copies)


def _wanted_config(topic: Topic, *, copies: int) -> dict[str, str]:
    return {
        "min.insync.replicas": str(copies // 2 + 1),  # the majority: what is acknowledged survives a minority's loss
        "cleanup.policy": topic.cleanup,
        "retention.ms": str(topic.retention_ms),
        "retention.bytes": "-1",
        "max.message.bytes": str(wire_bytes(topic)),
        _LATEST: str(2**63 - 1),  # for as long as a topic is stamped by its writers
        # The codec of our writers, whose batches the broker leaves as they are. It packs batches of other codecs anew:
        # the client library would unpack those without any limit (docs/security.md).
        _CODEC: CODEC,
        _STAMPED_BY: "LogAppendTime",  # by the broker: one clock for retention and `replay --since` (promise 13)
    }


def _to_bring(wanted: Mapping[str, str], *, seen: Mapping[str, str]) -> dict[str, str]:
    """Settings of an older topic that are changed; what the broker does not list, it does not know."""
    return {key: wanted[key] for key in _BROUGHT if key in seen and seen[key] != wanted[key]}


def _check_config(name: str, wanted: Mapping[str, str], *, seen: Mapping[str, str]) -> None:
    """Accept longer retention, larger messages and more replicas in sync than is asked for, nothing else."""
    for key, value in wanted.items():
        if not _is_enough(key, seen=seen[key], wanted=value):
            raise _mismatch(name, key, seen=seen[key], wanted=value)


def _is_enough(key: str, *, seen: str, wanted: str) -> bool:
    if key == "cleanup.policy":
        return seen == wanted
    if key in ("max.message.bytes", "min.insync.replicas"):
        return int(seen) >= int(wanted)
    if key == _LATEST or key in _BROUGHT:  # see `_bring`; the former matters only until then
        return True
    return int(seen) == -1 or -1 < int(wanted) <= int(seen)  # retention; -1 keeps for ever


def _mismatch(name: str, key: str, *, seen: str, wanted: str) -> TopicMismatch:
    return TopicMismatch(
        f"topic {name} has {key} = {seen}, this run needs {wanted}; nothing was changed",
        hint="correct the topic or the setting, or choose a new run name",
    )
