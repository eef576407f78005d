"""The library's consumer of one reader, which can be changed for a new one.

Role: makes it, takes messages from it, and knows with which topics, by their ids, it has worked.
Invariants: one client never outlives a topic that it worked with. It remembers the leader epochs of partitions by the
topic's name and believes no lower one, while those of a topic made anew begin at 0: it would ask the leaders of the
old topic, for ever (librdkafka 2.16).
Failure: `LogError` when the library does not accept its settings, or fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from topics.kafka.client import Connection, LibraryLog, reader_config
from topics.kafka.errors import translating
from topics.kafka.ids import Ids
from topics.kafka.refusals import Refusals
from topics.log import ReaderSettings


class ReadingClient:
    """See the module.

    Args:
        begin: called with each new consumer, to subscribe it.
        committed: called inside `consume` with how an asynchronous commit ended.
    """

    def __init__(
        self,
        connection: Connection,
        settings: ReaderSettings,
        *,
        refusals: Refusals,
        begin: Callable[[Consumer], None],
        committed: Callable[[KafkaError | None, Sequence[TopicPartition]], None],
    ) -> None:
        hooks = {"error_cb": refusals.note, "on_commit": committed}
        self._config: dict[str, object] = {**reader_config(connection, settings), **hooks}
        self._begin = begin
        self._ids: Ids = {}  # by full topic name, as first seen by this consumer
        self.consumer = self._make()

    def is_outlived_by(self, ids: Ids) -> bool:
        """Whether one of these topics is another one than the consumer has worked with under that name."""
        return any(self._ids.setdefault(name, topic_id) != topic_id for name, topic_id in ids.items())

    def renew(self) -> None:
        """Close the consumer, which takes its partitions away, and make another one."""
        self.close()
        self._ids = {}
        self.consumer = self._make()

    def consume(self, max_messages: int, *, wait_s: float) -> list[Message]:
        """What the client has, else what comes first within `wait_s`; the library itself would wait for all."""
        with translating("reading"):
            messages = self.consumer.consume(max_messages, 0)
            if not messages and wait_s > 0:
                messages = self.consumer.consume(1, wait_s)
                if messages and max_messages > 1:
                    messages += self.consumer.consume(max_messages - 1, 0)
        return messages

    def close(self) -> None:
        """Leave the group, if there is one, without committing."""
        with translating("leaving the group"):
            self.consumer.close()

    def _make(self) -> Consumer:
        with translating("setting up a consumer"):
            consumer = Consumer(self._config, logger=LibraryLog())
        self._begin(consumer)
        return consumer
