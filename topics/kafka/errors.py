"""From the client library's errors to those of `schemas.errors`, once.

Role: nothing above `topics.kafka` sees a library code.
Data in and out: a library exception or error object in; an error of ours, or a class of error, out.
Invariants: an unknown code is never treated as harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from schemas.errors import AccessDenied, DeliveryError, Fenced, LogError, LogUnavailable

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_NOT_MEMBER = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
_TRANSIENT = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError._IN_PROGRESS,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        # Leaders on the move: a broker went or came back, and what the client knows of them is older.
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
    }
)
_UNREACHABLE = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
_NO_COORDINATOR = frozenset(
    {
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_DENIED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
DENIED_HINT = (
    "the credentials are those of another role, or rules are missing: `rlweave acls` prints what each role needs, and "
    "sets it with --apply"
)
_UNPACKABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
UNREACHABLE_HINT = "start the local services with `rlweave services up`, or set kafka.bootstrap to your broker"


def cause_of(exception: KafkaException) -> KafkaError:
    """The error object inside a library exception."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError.UNKNOWN, str(exception))


def is_transient(error: KafkaError) -> bool:
    """Whether waiting and trying again may mend it."""
    return not error.fatal() and (error.code() in _TRANSIENT or error.retriable() or _is_leaderless(error))


def _is_leaderless(error: KafkaError) -> bool:
    """A partition without a leader, for the moment: the library has no code of its own for it."""
    return error.code() == KafkaError._NOENT and "leaders" in error.str()


def is_unknown_topic(error: KafkaError) -> bool:
    """Whether the broker does not know the topic or partition (yet)."""
    return error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


def is_out_of_range(error: KafkaError) -> bool:
    """Whether a fetch position is not on the broker; `auto.offset.reset=error` turns it into a message."""
    return error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def is_unpackable(error: KafkaError) -> bool:
    """Whether a batch was fetched and cannot be unpacked: damaged, or larger than the library unpacks."""
    return error.code() in _UNPACKABLE


def is_not_member(error: KafkaError) -> bool:
    """Whether the group has moved on without this member."""
    return error.code() in _NOT_MEMBER


def translated(error: KafkaError, *, doing: str) -> LogError:
    """The error to raise for a failed operation `doing`; the caller chains the cause."""
    if error.code() in _FENCED:
        return Fenced(
            f"{doing}: a newer process with the same transactional id has taken over ({error.str()})",
            hint="stop this process; the newer one carries on",
        )
    if error.code() in _DENIED:
        return AccessDenied(f"{doing}: the broker does not allow it ({error.str()})", hint=DENIED_HINT)
    if error.code() in _UNREACHABLE:
        return LogUnavailable(f"{doing}: no broker answered ({error.str()})", hint=UNREACHABLE_HINT)
    if error.code() in _NO_COORDINATOR:
        return LogUnavailable(f"{doing}: the group's coordinator is away ({error.str()})", hint=UNREACHABLE_HINT)
    return LogError(f"{doing}: {error.name()}: {error.str()}")


def not_now(error: KafkaError, *, doing: str) -> LogError:
    """The same for what may be put off: every error that may pass by itself is a `LogUnavailable`."""
    known = translated(error, doing=doing)
    return LogUnavailable(known.message, hint=UNREACHABLE_HINT) if is_transient(error) else known


def undelivered(error: KafkaError, *, doing: str) -> DeliveryError | Fenced | AccessDenied:
    """The same for a record that was not written, or of which that is unknown."""
    known = translated(error, doing=doing)
    return known if isinstance(known, Fenced | AccessDenied) else DeliveryError(known.message, hint=known.hint)


@contextmanager
def translating(doing: str) -> Iterator[None]:
    """Raise a library error of the body as ours.

    Raises:
        LogError: or a subclass, with the cause chained.
    """
    try:
        yield
    except KafkaException as exception:
        raise translated(cause_of(exception), doing=doing) from exception
