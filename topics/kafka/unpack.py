"""Library messages to envelopes: the hot path of reading.

Data in and out: a batch of messages in; envelopes of decoded records out, in the same order; undecodable bytes go to
the dead-letter hook and the very next record follows.
Invariants: each message moves its partition's position, whatever becomes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, Message

from schemas.errors import CodecError
from schemas.records import DeadLetter, Record
from topics.dead_letters import dead_letter, readable
from topics.kafka.assignment import TopicState
from topics.log import Envelope


class Unpacker:
    """Unpacks batches for one reader.

    Args:
        states: by full topic name.
        run: run name, for dead letters.
        reader: instance, for dead letters.
        read_bytes: encoded bytes of values, by short topic name; added to.
        dead_letter: called with each dead letter.
        on_error: called with each message that is an error or an event of the library.
    """

    def __init__(
        self,
        states: Mapping[str, TopicState],
        *,
        run: str,
        reader: str,
        read_bytes: Counter[str],
        dead_letter: Callable[[DeadLetter], None],
        on_error: Callable[[KafkaError, Message], None],
    ) -> None:
        self._states = states
        self._run = run
        self._reader = reader
        self._read_bytes = read_bytes
        self._dead_letter = dead_letter
        self._on_error = on_error

    def unpack(self, messages: Sequence[Message]) -> list[Envelope]:
        """Envelopes of a batch. Per record: the library's getters, one decode, one object; no logging, no copies."""
        envelopes: list[Envelope] = []
        states, read_bytes = self._states, self._read_bytes
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_error(error, message)
                continue
            state = states[message.topic()]  # type: ignore[index]  # only an error can lack its topic
            value = message.value()
            if value is not None:
                read_bytes[state.name] += len(value)
            try:
                record = readable(value, state.record_types, tombstones=state.tombstones)
            except CodecError as rejected:
                self._reject(message, state, error=rejected)
                continue
            envelopes.append(_envelope(message, state, record=record, value=value))
        return envelopes

    def _reject(self, message: Message, state: TopicState, *, error: CodecError) -> None:
        value = message.value()
        origin = _envelope(message, state, record=None, value=value)
        full_topic = str(message.topic())
        self._dead_letter(
            dead_letter(origin, value=value, run=self._run, full_topic=full_topic, error=error, reader=self._reader)
        )


def _envelope(message: Message, state: TopicState, *, record: Record | None, value: bytes | None) -> Envelope:
    """The envelope; moves the position."""
    partition: int = message.partition()  # type: ignore[assignment]  # only an error can lack its place
    offset: int = message.offset()  # type: ignore[assignment]
    state.next[partition] = offset + 1
    headers = message.headers()
    envelope: Envelope = object.__new__(Envelope)
    fields = {
        "topic": state.name,
        "partition": partition,
        "offset": offset,
        "key": message.key(),
        "record": record,
        "headers": dict(headers) if headers else {},
        "unix_ms": message.timestamp()[1],
        "num_bytes": 0 if value is None else len(value),
    }
    object.__setattr__(envelope, "__dict__", fields)  # frozen: __init__ would set the same attributes one by one
    return envelope
