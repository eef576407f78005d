"""Ids of topics: what tells a topic from another one that bears its name.

Role: asks the broker, at once or in the background. A committed offset carries the id of its topic as metadata.
Data in and out: full topic names in; ids by full name out.
Invariants: `look` never waits; a broker that is away, or a topic that is gone, makes it say nothing.
Failure: of `ask`, library errors as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported implicitly
    AdminClient,
    TopicDescription,
)

from topics.clock import Deadline
from topics.kafka.errors import cause_of, is_transient, is_unknown_topic
from topics.kafka.offsets import REQUEST_TIMEOUT_S, AdminHandle, relearn

Ids = dict[str, str]
_RELEARN_S = 1.0


def ask_ids(handle: AdminHandle, names: Sequence[str], *, timeout_s: float = REQUEST_TIMEOUT_S) -> Ids:
    """Id of each topic.

    Raises:
        KafkaException: of the first topic that failed, one that does not exist for example.
    """
    try:
        return {name: str(each.result().topic_id) for name, each in _begin(handle, names, timeout_s=timeout_s).items()}
    except KafkaException as exception:
        if is_transient(cause_of(exception)):
            relearn(handle, limit_s=_RELEARN_S)  # for the next try
        raise


def ask_known_ids(handle: AdminHandle, names: Sequence[str]) -> Ids:
    """Id of each topic that exists; one may have gone since it was listed.

    Raises:
        KafkaException: the broker did not answer, or refused.
    """
    ids: Ids = {}
    for name, future in _begin(handle, names, timeout_s=REQUEST_TIMEOUT_S).items():
        try:
            ids[name] = str(future.result().topic_id)
        except KafkaException as exception:
            if is_unknown_topic(cause_of(exception)):
                continue
            if is_transient(cause_of(exception)):
                relearn(handle, limit_s=_RELEARN_S)  # for the next try
            raise
    return ids


class IdWatch:
    """Looks at the ids of some topics now and then, without waiting for the answer.

    Args:
        every_s: between two looks; each is one request.
    """

    def __init__(self, handle: AdminHandle, names: Sequence[str], *, every_s: float) -> None:
        self._handle = handle
        self._names = list(names)
        self._every_s = every_s
        self._next = Deadline.after(every_s)
        self._asked: dict[str, Future[TopicDescription]] | None = None
        self._client: AdminClient | None = None  # that was asked last

    def look(self) -> Ids:
        """Ids that have come in since the last call, of topics that exist; mostly none."""
        if self._asked is None:
            if self._next.expired:
                self._next = Deadline.after(self._every_s)
                self._client = self._handle.client()
                self._asked = _begin(self._handle, self._names, timeout_s=REQUEST_TIMEOUT_S)
            return {}
        if not all(future.done() for future in self._asked.values()):
            return {}
        asked, self._asked = self._asked, None
        if any(_is_transient(each.exception()) for each in asked.values()) and self._client is not None:
            self._handle.renew(self._client)  # which waits for nothing, unlike `relearn`
        return {name: str(each.result().topic_id) for name, each in asked.items() if each.exception() is None}


def _is_transient(error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and is_transient(cause_of(error))


def _begin(handle: AdminHandle, names: Sequence[str], *, timeout_s: float) -> dict[str, Future[TopicDescription]]:
    return handle.client().describe_topics(TopicCollection(list(names)), request_timeout=timeout_s) if names else {}
