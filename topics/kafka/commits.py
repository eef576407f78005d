"""Commits of one reader: positions with the id of the topic they belong to.

Role: one committed offset says where, and as its metadata in which topic, since a topic may be deleted and made anew
under its name; offsets without (of older releases, or set by a tool) are taken as they are.
Failure: `Fenced` when the group went on without us, `LogUnavailable` when the broker or coordinator is away for longer
than a session lasts, or the topic is (it may be made anew), `LogError` when it refuses.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from schemas.errors import Fenced, LogUnavailable
from topics.clock import Deadline
from topics.kafka.errors import cause_of, is_not_member, is_transient, is_unknown_topic, not_now
from topics.kafka.offsets import commit_note

_RETRY_S = 0.05


def commit(
    consumer: Consumer, positions: dict[tuple[str, int], tuple[int, str | None]], *, group: str, limit_s: float
) -> None:
    """Commit synchronously, again and again while the broker is away.

    Args:
        consumer: of the group.
        positions: full topic name and partition -> offset, id of the topic if it is known.
        group: for messages.
        limit_s: longest wait.

    Raises:
        Fenced, LogUnavailable, LogError: see the module.
    """
    places = [
        Place(topic, partition, offset, commit_note(topic_id))
        for (topic, partition), (offset, topic_id) in positions.items()
    ]
    deadline = Deadline.after(limit_s)
    while (error := _refusal(consumer, places)) is not None:
        cause = KafkaException(error)
        if is_not_member(error):
            raise Fenced(f"cannot commit: the group went on without this member ({error.str()})") from cause
        if is_unknown_topic(error):
            raise LogUnavailable(f"committing for group {group}: a topic of it is gone ({error.str()})") from cause
        if not is_transient(error) or deadline.expired:
            raise not_now(error, doing=f"committing for group {group}") from cause
        deadline.clock.wait(_RETRY_S)


def _refusal(consumer: Consumer, places: list[Place]) -> KafkaError | None:
    """Try to commit; the error of the first partition that failed."""
    try:
        done = consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as exception:
        return cause_of(exception)
    return next((each.error for each in done if each.error is not None), None)
