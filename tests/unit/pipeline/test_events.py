"""The writer of events is changed after a failed delivery, at no event's and no stage's cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pipeline.events import Events
from pipeline.metrics import Metrics
from schemas.errors import DeliveryError, LogError
from schemas.records import Record, StageEvent
from tests.unit.producers.world import records_of
from topics.catalog import EVENTS, Topic
from topics.clock import Deadline, ManualClock
from topics.log import Writer, WriterSettings
from topics.memory import MemoryLog


@dataclass
class Opened:
    """A writer that can be made to tell of a failed delivery, once, and that counts what becomes of it."""

    writer: Writer
    fails: bool = False
    closed: list[float] = field(default_factory=list)  # remaining seconds it was given
    num_written: int = 0

    def write(self, topic: Topic, record: Record) -> None:
        if self.closed:
            raise RuntimeError("Producer has been closed")
        if self.fails:
            self.fails = False
            raise DeliveryError("an earlier event did not arrive")
        self.writer.write(topic, record)
        self.num_written += 1

    def close(self, *, deadline: Deadline) -> None:
        self.closed.append(deadline.remaining_s())


@dataclass
class Rig:
    log: MemoryLog
    clock: ManualClock = field(default_factory=ManualClock)
    opened: list[Opened] = field(default_factory=list)
    refuses: bool = False

    def __post_init__(self) -> None:
        metrics = Metrics(run="r", stage="reward", instance="reward-1")
        self.events = Events(
            self._open,  # type: ignore[arg-type]  # the part of a writer that events use
            run="r",
            stage="reward",
            instance="reward-1",
            clock=self.clock,
            metrics=metrics,
        )

    def _open(self) -> Opened:
        if self.refuses:
            raise LogError("no more threads")
        self.opened.append(Opened(self.log.writer(WriterSettings())))
        return self.opened[-1]

    def fail(self) -> None:
        self.opened[-1].fails = True
        self.events.heartbeat()


@pytest.fixture
def rig(memory_log: MemoryLog) -> Rig:
    return Rig(memory_log)


def test_the_former_writer_goes_on_with_what_it_has_until_the_next_change(rig: Rig) -> None:
    """One delivery failed, after half a minute; what was sent since may still arrive."""
    rig.fail()
    assert [each.closed for each in rig.opened] == [[], []]
    assert rig.opened[1].num_written == 1
    rig.clock.advance(30.0)
    rig.fail()
    assert [each.closed for each in rig.opened] == [[0.0], [], []]
    rig.events.close(deadline=Deadline.after(5.0, clock=rig.clock))
    assert [each.closed for each in rig.opened] == [[0.0], [0.0], [5.0]]


def test_no_new_writer_leaves_the_present_one_in_use(rig: Rig) -> None:
    rig.refuses = True
    rig.fail()
    rig.events.heartbeat()
    assert [each.num_written for each in rig.opened] == [1]


def test_this_host_is_told_of_each_phase_and_of_parts_that_no_event_tells(rig: Rig) -> None:
    told: list[str] = []
    rig.events.on_phase = told.append
    rig.events.enter("waiting_for_data")
    with rig.events.phase("forward_backward"), rig.events.within("gradient_sync"):
        pass
    rig.events.enter("waiting_for_data")
    assert [name for name in told if name] == [
        *("waiting_for_data", "forward_backward", "gradient_sync", "forward_backward", "waiting_for_data")
    ]
    said = [event for event in records_of(rig.log, EVENTS) if isinstance(event, StageEvent)]
    assert "gradient_sync" not in {event.name for event in said}


def test_time_in_a_phase_counts_while_it_lasts(rig: Rig) -> None:
    metrics = rig.events._metrics
    rig.events.enter("waiting_for_data")
    rig.clock.advance(2.0)
    rig.events.heartbeat()
    assert metrics.snapshot()["phase_time_s{phase=waiting_for_data}"] == 2.0
    rig.clock.advance(1.0)
    rig.events.enter("forward_backward")
    rig.clock.advance(0.5)
    rig.events.heartbeat()
    told = metrics.snapshot()
    assert told["phase_time_s{phase=waiting_for_data}"] == 3.0
    assert told["phase_time_s{phase=forward_backward}"] == 0.5


def test_an_event_that_is_lost_counts(rig: Rig) -> None:
    rig.refuses = True
    rig.fail()
    assert rig.events._metrics.snapshot()["events_lost"] == 1.0


def test_half_a_character_costs_neither_the_event_nor_the_stage() -> None:
    rig = Rig(MemoryLog(run="r", data_partitions=1))
    rig.events.notice("breaker_opened", details={"last_failure": "ValueError: \ud83d"})
    rig.events.notice("\ud83d")
    rig.events.notice("breaker_closed")
    said = [(event.seq, event.details) for event in records_of(rig.log, EVENTS) if isinstance(event, StageEvent)]
    assert said == [(0, {"last_failure": "ValueError: \\ud83d"}), (2, {})]
    assert rig.events._metrics.snapshot()["events_lost"] == 1
