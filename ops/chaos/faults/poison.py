"""Records that are none: on every topic, in every form a broker takes.

Role: written past the product's own checks, as any client of the cluster could.
Invariants: keys are our own, so that a compacted topic keeps what it has; nothing here is a record of the run that
decodes and fits its topic, as that would be a forgery, which a broker's access rules keep out, not a decoder.
"""

from __future__ import annotations

import time
from random import Random

from ops.chaos.faults.base import Fault, Kind, Layout
from ops.chaos.world import World
from schemas.codec import MARKER, encode
from schemas.records import Command, Record, StageEvent
from topics.catalog import BY_NAME, CATALOG, COMMANDS, EVENTS, Topic, full_name, num_partitions
from topics.kafka.raw import RawLog, RawRecord

_PROMISE = "1, 12: a dead letter is an outcome; reading goes on, memory stays bounded"
# Limits of the client that writes them; the broker has its own.
_NO_LIMIT = {"message.max.bytes": "1000000000", "queue.buffering.max.kbytes": "1000000"}
_MIB = 2**20
_LARGE_BYTES = 32 * _MIB  # what no compression makes smaller, and a broker just takes
_BOMB_BYTES = (40 * _MIB, 90 * _MIB, 300 * _MIB)  # of zeros: some kilobytes on the wire
_LARGE_TOPICS = ("prompts", "samples", "rewards", "ledger", "weights", "events", "commands")
_FORMS = ("garbage", "schema", "torn", "type", "empty")


class Poison(Fault):
    """A few bad records of one form on every topic.

    Args:
        seed: of their bytes and places.
    """

    def __init__(self, form: str, *, seed: int) -> None:
        self._form = form
        self._seed = seed

    def __str__(self) -> str:
        return f"{len(CATALOG)} topics"

    def inject(self, world: World) -> None:
        """Write them."""
        rng = Random(self._seed)  # noqa: S311 - repeatable, no secret
        for topic in CATALOG:
            values = [_value(self._form, topic, rng=rng, run=world.run) for _ in range(rng.randrange(1, 4))]
            _write(world, topic, values=values, rng=rng)


class Heavy(Fault):
    """One record of many bytes: as they are, or packed so that they are few on the wire.

    Args:
        zeros: a bomb; else bytes that do not compress.
    """

    def __init__(self, topic: str, *, num_bytes: int, zeros: bool, seed: int) -> None:
        self._topic = BY_NAME[topic]
        self._num_bytes = num_bytes
        self._zeros = zeros
        self._seed = seed

    def __str__(self) -> str:
        return f"{self._num_bytes // _MIB} MiB {'of zeros, packed, ' if self._zeros else ''}on {self._topic.name}"

    def inject(self, world: World) -> None:
        """Write it."""
        rng = Random(self._seed)  # noqa: S311 - repeatable, no secret
        value = bytes(self._num_bytes) if self._zeros else rng.randbytes(self._num_bytes)
        _write(world, self._topic, values=[value], rng=rng)


def _value(form: str, topic: Topic, *, rng: Random, run: str) -> bytes:
    if form == "empty":
        return b""
    if form == "garbage":
        return rng.randbytes(rng.choice((1, 9, 200, 5000)))
    if form == "schema":  # a frame of a version that was never shipped
        return MARKER + rng.randbytes(8 + rng.choice((0, 40, 3000)))
    whole = encode(_stranger(topic, run=run) if form == "type" else _native(topic, run=run))
    return whole if form == "type" else whole[: rng.randrange(10, len(whole))]


def _stranger(topic: Topic, *, run: str) -> Record:
    """A sound record of another topic."""
    return _command(run) if topic is EVENTS else _event(run)


def _native(topic: Topic, *, run: str) -> Record:
    """What is cut short: of the topic itself where that is at hand, else of another."""
    return _command(run) if topic is COMMANDS else _event(run)


def _event(run: str) -> StageEvent:
    return StageEvent(
        run=run,
        stage="chaos",
        instance="chaos",
        kind="notice",
        name="poison",
        seq=0,
        monotonic_s=time.monotonic(),
        unix_ms=0,
    )


def _command(run: str) -> Command:
    return Command(run=run, target="nobody", kind="rate", epoch=0, seq=0, reason="poison", rate=0.0, issued_unix_ms=0)


def _write(world: World, topic: Topic, *, values: list[bytes], rng: Random) -> None:
    partitions = num_partitions(topic, world.log.data_partitions)
    records = [
        RawRecord(
            topic=full_name(world.run, topic),
            partition=rng.randrange(partitions),
            offset=0,
            key=b"chaos-" + rng.randbytes(6).hex().encode(),
            value=value,
            headers=(),
            unix_ms=time.time_ns() // 1_000_000,
        )
        for value in values
    ]
    RawLog(world.servers.bootstrap, config=_NO_LIMIT).write(full_name(world.run, topic), records)


def _form(form: str) -> Kind:
    return Kind(
        name=f"poison-{form}",
        weight=0.6,
        promise=_PROMISE,
        draw=lambda rng, _: Poison(form, seed=rng.getrandbits(48)),
        quick=form != "empty",
    )


def _heavy(rng: Random, _layout: Layout) -> Fault:
    topic = rng.choice(_LARGE_TOPICS)
    return Heavy(topic, num_bytes=_LARGE_BYTES, zeros=False, seed=rng.getrandbits(48))


def _bomb(rng: Random, _layout: Layout) -> Fault:
    topic, num_bytes = rng.choice(_LARGE_TOPICS), rng.choice(_BOMB_BYTES)
    return Heavy(topic, num_bytes=num_bytes, zeros=True, seed=rng.getrandbits(48))


KINDS = (
    *(_form(form) for form in _FORMS),
    Kind(name="poison-large", weight=1.0, promise=_PROMISE, draw=_heavy, quick=False),
    Kind(name="poison-bomb", weight=1.0, promise=_PROMISE, draw=_bomb, quick=False),
)
