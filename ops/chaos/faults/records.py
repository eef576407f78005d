"""Records destroyed: a topic deleted and made anew, and retention that passes a reader.

What goes is known to the last record: the writers of a topic stand still for the moment in which its ids are noted and
the topic is deleted. So the verdict can hold what the system announces against what was destroyed.
The ledger and the prompts are not deleted: without them there is no history, and a learner refuses to go on, by name.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaException, TopicPartition

from ops.chaos.errors import ChaosError
from ops.chaos.faults.base import Fault, Kind
from ops.chaos.settings import GROUP_DEADLINE_S
from ops.chaos.world import World
from ops.replay.sources import decode
from ops.services.kafka import admin_client
from schemas.errors import CodecError, LogError
from schemas.records import Manifest, PromptGroup, Record, Reward, Sample
from topics.catalog import BY_NAME, Topic, full_name, num_partitions
from topics.clock import Deadline

_RECREATED = ("samples", "rewards", "shadow-rewards", "weights", "events", "commands", "dead-letters")
# Topic -> who writes it; of the others, losing what is written in that moment is no loss of an id.
_WRITERS = {"samples": ("rollout",), "rewards": ("reward",), "weights": ("learner",), "prompts": ("prompts",)}
# Topic -> who is passed.
_READERS = {"samples": ("reward",), "rewards": ("learner",), "prompts": ("rollout",)}
# How long readers stand still. Those of samples: until groups are given up, so that there are new ones that nobody has.
_HOLD_S = {
    "samples": (GROUP_DEADLINE_S + 2.0, GROUP_DEADLINE_S + 5.0),
    "rewards": (3.0, 6.0),
    "prompts": (3.0, 6.0),
}
_STILL_S = 0.3
_NOTICED_S = 4.0  # until its readers have come upon it, so that what they do then is part of the fault
_GONE_S = 30.0
_REQUEST_S = 20.0


class Recreated(Fault):
    """A topic is deleted, and made anew at once."""

    hold_s = _NOTICED_S

    def __init__(self, topic: str) -> None:
        self._topic = BY_NAME[topic]

    def inject(self, world: World) -> None:
        """Note what goes, delete, create."""
        name = full_name(world.run, self._topic)
        with _writers_stand_still(world, self._topic):
            _note_doomed(world, self._topic)
            world.raw.delete([name])
            _create_again(world)
        world.say(f"  {name} was deleted and made anew")


class Retention(Fault):
    """The readers of a topic stand still; what they have not read, and all before it, is deleted; they go on."""

    def __init__(self, topic: str, readers: Sequence[str], *, hold_s: float) -> None:
        self._topic = BY_NAME[topic]
        self._readers = list(readers)
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"past {', '.join(self._readers)} after {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Freeze the readers."""
        for name in self._readers:
            world.crew.send(name, signal.SIGSTOP)

    def heal(self, world: World) -> None:
        """Delete up to the end, and wake them."""
        try:
            with _writers_stand_still(world, self._topic, but=self._readers):
                _note_doomed(world, self._topic)
                _delete_records(world, self._topic)
        finally:
            for name in self._readers:
                world.crew.send(name, signal.SIGCONT)


@contextmanager
def _writers_stand_still(world: World, topic: Topic, *, but: Sequence[str] = ()) -> Iterator[None]:
    """Freeze whoever writes ids to a topic, and wait until what they had sent has arrived."""
    names = [name for name in world.crew.names(*_WRITERS.get(topic.name, ("nobody",))) if name not in but]
    frozen = {name: world.crew.send(name, signal.SIGSTOP) for name in names}
    try:
        if frozen:
            time.sleep(_STILL_S)
        yield
    finally:
        for name, pid in frozen.items():
            if pid is not None and world.crew.pid(name) == pid:
                world.crew.send(name, signal.SIGCONT)


def _note_doomed(world: World, topic: Topic) -> None:
    places = [(full_name(world.run, topic), part) for part in range(num_partitions(topic, world.log.data_partitions))]
    ids: set[str] = set()
    num_records = 0
    for record in world.raw.read(world.raw.ranges(places)):
        num_records += 1
        try:
            decoded = decode(topic, record)
        except CodecError:
            continue
        ids |= _ids(decoded)
    world.doomed.add(topic.name, ids, num_records=num_records)


def _ids(record: Record | None) -> set[str]:
    """What the audit calls it."""
    match record:
        case Sample():
            return {f"{record.run}/{record.group}/{record.member}"}
        case Reward():
            return {f"{record.run}/{record.group}/{record.member} reward {record.name}"}
        case PromptGroup():
            return {f"{record.run}/{record.group}"}
        case Manifest():
            return {f"version {record.version.lineage}.{record.version.step}"}
    return set()


def _create_again(world: World) -> None:
    deadline = Deadline.after(_GONE_S)
    while True:
        try:
            world.log.admin().ensure_topics()
        except LogError as error:  # the deletion is not everywhere yet
            if deadline.expired:
                raise ChaosError(f"a topic could not be made anew: {error.message}") from error
            time.sleep(0.1)
        else:
            return


def _delete_records(world: World, topic: Topic) -> None:
    name = full_name(world.run, topic)
    places = [(name, partition) for partition in range(num_partitions(topic, world.log.data_partitions))]
    ends = {place: end for place, (_, end) in world.raw.ranges(places).items()}
    wanted = [TopicPartition(name, partition, end) for (_, partition), end in ends.items() if end > 0]
    client = admin_client(world.servers.bootstrap, {})  # its answers end with it, so it is kept until all are there
    for future in client.delete_records(wanted, request_timeout=_REQUEST_S).values():
        try:
            future.result(_REQUEST_S * 2)
        except KafkaException as error:
            raise ChaosError(f"records of {name} could not be deleted: {error}") from error


def _recreated(topic: str) -> Kind:
    return Kind(
        name=f"recreate-{topic}",
        weight=0.4,
        promise="1, 12: what is gone is told exactly, the rest goes on",
        draw=lambda *_: Recreated(topic),
        quick=False,
    )


def _retention(topic: str) -> Kind:
    return Kind(
        name=f"retention-{topic}",
        weight=0.7,
        promise="12: an offset out of retention is told with the exact count; reading resumes at the earliest one",
        draw=lambda rng, layout: Retention(topic, layout.of(*_READERS[topic]), hold_s=rng.uniform(*_HOLD_S[topic])),
        quick=topic == "prompts",
    )


KINDS = (*map(_recreated, _RECREATED), *map(_retention, _READERS))
