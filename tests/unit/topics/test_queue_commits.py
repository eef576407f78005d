"""Commits of a work queue while the group's coordinator is away: put off, told once, with a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from schemas.errors import LogUnavailable
from tests.contract.logs import P, sample, soon
from topics.catalog import SAMPLES
from topics.clock import Deadline, ManualClock
from topics.log import Envelope, ReaderHooks, ReaderSettings, WriterSettings
from topics.memory import MemoryLog
from topics.memory.reader import MemoryReader
from topics.queue import COMMIT_LIMIT_S, COMMIT_RETRY_S, WorkQueue


@dataclass
class Rig:
    """One queue with five samples done and not committed."""

    log: MemoryLog
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[str] = field(default_factory=list)
    taken: list[Envelope] = field(default_factory=list)

    def __post_init__(self) -> None:
        writer = self.log.writer(WriterSettings())
        for group in range(5):
            writer.write(SAMPLES, sample(group * P))
        settings = ReaderSettings(topics=(SAMPLES,), assign="group", group="g")
        hooks = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None, commit_delayed=self.told.append)
        self.queue = WorkQueue.open(self.log, settings, hooks=hooks, max_in_flight=9, clock=self.clock)
        self.taken = self.queue.take(9, deadline=soon())
        for envelope in self.taken:
            self.queue.done(envelope)

    def committed(self) -> int | None:
        return self.log.admin().lag("g", [SAMPLES])[0].committed


@pytest.fixture
def rig(memory_log: MemoryLog) -> Rig:
    return Rig(memory_log)


def test_commits_are_put_off_and_go_through_when_the_coordinator_is_back(rig: Rig) -> None:
    rig.log.broker.coordinator_away = True
    for _ in range(3):
        rig.queue.commit()
        rig.clock.advance(COMMIT_RETRY_S)
    assert (rig.committed(), len(rig.told)) == (None, 1)
    assert "coordinator is away" in rig.told[0]
    rig.log.broker.coordinator_away = False
    rig.queue.commit()
    assert rig.committed() == 5


def test_a_put_off_commit_waits_between_tries(rig: Rig) -> None:
    rig.log.broker.coordinator_away = True
    rig.queue.commit()
    rig.log.broker.coordinator_away = False
    rig.queue.commit()
    assert rig.committed() is None
    rig.clock.advance(COMMIT_RETRY_S)
    rig.queue.commit()
    assert rig.committed() == 5


def test_each_outage_is_told_and_has_the_whole_limit(rig: Rig) -> None:
    for _ in range(2):
        rig.log.broker.coordinator_away = True
        rig.queue.commit()
        rig.clock.advance(COMMIT_LIMIT_S - 1)
        rig.queue.commit()
        rig.log.broker.coordinator_away = False
        rig.clock.advance(COMMIT_RETRY_S)
        rig.queue.commit()
        rig.queue._tracker.committed({("samples", 0): 0})  # something to commit again
    assert len(rig.told) == 2


def test_without_any_commit_for_the_limit_it_ends(rig: Rig) -> None:
    rig.log.broker.coordinator_away = True
    rig.queue.commit()
    rig.clock.advance(COMMIT_LIMIT_S)
    with pytest.raises(LogUnavailable, match=r"no offsets could be committed for 300 s, the limit: .*coordinator"):
        rig.queue.commit()


@pytest.mark.parametrize("leave", [WorkQueue.close, lambda queue: queue.revoked([("samples", 0)])])
def test_the_last_commit_ends_nothing(rig: Rig, leave: Callable[[WorkQueue], None]) -> None:
    rig.log.broker.coordinator_away = True
    leave(rig.queue)
    rig.log.broker.coordinator_away = False
    assert rig.committed() is None


def test_a_partition_that_goes_and_comes_back_within_one_poll_is_paused_again(rig: Rig) -> None:
    """Else a queue without room reads on, and puts every record back."""
    reader = rig.queue.reader
    assert isinstance(reader, MemoryReader)
    rig.queue.take(0, deadline=Deadline.after(0))
    places = reader.assignment()
    assert reader._paused == set(places)
    rig.queue.revoked(places)
    reader._paused.clear()  # as of partitions just assigned
    rig.queue.take(0, deadline=Deadline.after(0))
    assert reader._paused == set(places)
