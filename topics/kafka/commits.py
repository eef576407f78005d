"""Commits of one reader: positions with the id of the topic they belong to.

Role: one committed offset says where, and as its metadata in which topic, since a topic may be deleted and made anew
under its name; offsets without (of older releases, or set by a tool) are taken as they are.
A commit waits behind the member's own answer in a rebalance, for as long as the slowest member takes to answer (the
broker takes one request of a connection at a time): who has work to do begins it and hears of it at a later poll.
Invariants: one is under way at a time, but for a synchronous one, which the broker takes after the one before it.
Failure: `Fenced` when the group went on without us, `LogUnavailable` when the broker or coordinator is away for longer
than a session lasts, or the topic is (it may be made anew), `LogError` when it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from schemas.errors import Fenced, LogError, LogUnavailable
from topics.clock import Deadline
from topics.kafka.assignment import Assignment
from topics.kafka.errors import cause_of, is_not_member, is_transient, is_unknown_topic, not_now
from topics.kafka.offsets import commit_note
from topics.log import Positions, ReaderSettings, TopicPartition

_RETRY_S = 0.05


class Commits:
    """The commits of one reader. Not from several threads: the library lets one in at a time.

    Args:
        settings: of the reader.
        parts: its partitions.
        topic_id: tells which topic a position belongs to.
    """

    def __init__(
        self, settings: ReaderSettings, *, parts: Assignment, topic_id: Callable[[TopicPartition], str | None]
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._topic_id = topic_id
        self._begun: Future[None] | None = None
        self._asked: dict[tuple[str, int], int] = {}  # in the one that was begun last

    def commit(self, consumer: Consumer, positions: Positions) -> None:
        """Commit synchronously, again and again while the broker is away, for as long as a session lasts.

        Raises:
            Fenced, LogUnavailable, LogError: see the module.
        """
        places = self._places(positions)
        deadline = Deadline.after(self._settings.session_timeout_s)
        while places and (error := _refusal(consumer, places)) is not None:
            if is_unknown_topic(error) or not is_transient(error) or deadline.expired:
                raise self._meaning(error) from KafkaException(error)
            deadline.clock.wait(_RETRY_S)

    def begin(self, consumer: Consumer, positions: Positions) -> Future[None]:
        """Try once; how it ended is in what this gives, after the poll that hears of it.

        Raises:
            Fenced, LogError: see the module; nothing was begun.
        """
        places = self._places(positions)
        self.forget()
        self._begun = begun = Future[None]()
        self._asked = {(place.topic, place.partition): place.offset for place in places}
        try:
            consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as exception:
            begun.set_exception(self._meaning(cause_of(exception)))
        return begun

    def heard(self, error: KafkaError | None, places: Sequence[Place]) -> None:
        """The library's callback: how an asynchronous commit ended; it may be one that was forgotten."""
        begun, told = self._begun, {(place.topic, place.partition): place.offset for place in places}
        if begun is None or begun.done() or told != self._asked:
            return
        first = error if error is not None else next((each.error for each in places if each.error is not None), None)
        if first is None:
            begun.set_result(None)
        else:
            begun.set_exception(self._meaning(first))

    def forget(self) -> None:
        """Nothing will be heard of the one under way: its client goes, or a later commit holds more."""
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(LogUnavailable(f"committing for group {self._settings.group}: given up"))

    def _places(self, positions: Positions) -> list[Place]:
        if self._settings.group is None and positions:
            raise LogError("this reader has no group to commit for")
        if self._settings.assign == "group" and not set(positions) <= set(self._parts.all()):
            raise Fenced(f"cannot commit {dict(positions)}: assigned are {list(self._parts.all())}")
        names = self._parts.full_names
        return [
            Place(names[topic], partition, offset, commit_note(self._topic_id((topic, partition))))
            for (topic, partition), offset in positions.items()
        ]

    def _meaning(self, error: KafkaError) -> LogError:
        """What a refusal is to the caller."""
        doing = f"committing for group {self._settings.group}"
        if is_not_member(error):
            return Fenced(f"cannot commit: the group went on without this member ({error.str()})")
        if is_unknown_topic(error):
            return LogUnavailable(f"{doing}: a topic of it is gone ({error.str()})")
        return not_now(error, doing=doing)


def _refusal(consumer: Consumer, places: list[Place]) -> KafkaError | None:
    """Try to commit; the error of the first partition that failed."""
    try:
        done = consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as exception:
        return cause_of(exception)
    return next((each.error for each in done if each.error is not None), None)
