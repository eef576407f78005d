"""Scale commands as the supervisor follows them: the newest of each target, within limits, acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ops.supervisor.executor import Replicas
from ops.supervisor.orders import RETRY_S, Orders
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.errors import LogUnavailable
from schemas.records import DeadLetter, StageEvent
from tests.unit.producers.world import World, records_of
from topics.catalog import COMMANDS, DEAD_LETTERS, EVENTS, full_name
from topics.clock import Deadline, ManualClock
from topics.log import Envelope, Log, ReaderHooks, ReaderSettings
from topics.memory import MemoryLog
from topics.memory.reader import MemoryReader

LIMITS = {"rollout": (1, 3), "reward.sum": (1, 1)}
BEAT_S = 1.0


@dataclass
class Processes:
    """Does what is asked, at once, and notes it."""

    asked: list[tuple[str, int]] = field(default_factory=list)
    replicas: dict[str, Replicas] = field(
        default_factory=lambda: {target: Replicas(running=1, retiring=0) for target in LIMITS}
    )
    slots: int | None = None

    def scale(self, target: str, replicas: int) -> None:
        self.asked.append((target, replicas))
        self.replicas[target] = Replicas(running=replicas, retiring=2)


@dataclass
class AwayReader:
    """Of a broker that goes away and comes back."""

    reader: MemoryReader
    log: AwayLog

    def poll(self, max_records: int, *, deadline: Deadline) -> list[Envelope]:
        if self.log.is_away:
            raise LogUnavailable("of the test")
        return self.reader.poll(max_records, deadline=deadline)

    def __getattr__(self, name: str) -> object:
        return getattr(self.reader, name)


@dataclass
class AwayLog:
    """A log whose broker is away when it is told to."""

    log: MemoryLog
    is_away: bool = True
    num_tries: int = 0

    def reader(self, settings: ReaderSettings, *, hooks: ReaderHooks) -> AwayReader:
        self.num_tries += 1
        if self.is_away:
            raise LogUnavailable("of the test")
        return AwayReader(self.log.reader(settings, hooks=hooks), self)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path, clock: ManualClock) -> World:
    return World(log=memory_log, folder=tmp_path, clock=clock)


@pytest.fixture
def context(memory_log: MemoryLog, tmp_path: Path, clock: ManualClock) -> StageContext:
    run = RunSettings(name=memory_log.run, dir=tmp_path, heartbeat_s=BEAT_S)
    return make_context(memory_log, run=run, stage="supervisor", clock=clock)


@pytest.fixture
def orders(context: StageContext) -> Iterator[Orders]:
    with Orders(context, log=context.log, limits=LIMITS) as made:
        yield made


def events(log: Log, *, kind: str, name: str) -> list[StageEvent]:
    found = [each for each in records_of(log, EVENTS) if isinstance(each, StageEvent)]
    assert {each.stage for each in found} == {"supervisor"}
    return [each for each in found if (each.kind, each.name) == (kind, name)]


def scaled(log: Log) -> list[Mapping[str, str]]:
    return [each.details for each in events(log, kind="notice", name="scaled")]


def test_the_newest_command_of_each_target_is_obeyed_and_acknowledged(world: World, orders: Orders) -> None:
    processes = Processes()
    world.command("scale", replicas=3, epoch=4)
    world.command("scale", replicas=2, epoch=4)
    world.command("scale", replicas=1, epoch=4, target="reward.sum")
    world.command("scale", replicas=7, epoch=4, target="reward.other")
    orders.turn(processes)
    assert processes.asked == [("rollout", 2), ("reward.sum", 1)]
    assert scaled(world.log) == [
        {"target": "rollout", "asked": "2", "replicas": "2"},
        {"target": "reward.sum", "asked": "1", "replicas": "1"},
    ]
    assert [dict(each.gauges) for each in events(world.log, kind="notice", name="scaled")] == [
        {"epoch": 4.0, "seq": 1.0},
        {"epoch": 4.0, "seq": 2.0},
    ]
    orders.turn(processes)
    assert len(processes.asked) == 2, "one command is obeyed once"
    world.command("scale", replicas=2, epoch=4)
    orders.turn(processes)
    assert [each["replicas"] for each in scaled(world.log)] == ["2", "1", "2"], "each one is acknowledged"


def test_a_command_of_a_scheduler_that_was_succeeded_is_ignored(world: World, orders: Orders) -> None:
    processes = Processes()
    world.command("scale", replicas=2, epoch=5)
    orders.turn(processes)
    world.command("heartbeat", target="all", epoch=6)
    world.command("scale", replicas=3, epoch=5)
    orders.turn(processes)
    assert processes.asked == [("rollout", 2)]


@pytest.mark.parametrize(("asked", "replicas"), [(9, 3), (0, 1), (-2, 1)])
def test_what_the_settings_do_not_allow_is_cut_and_that_is_said(
    world: World, orders: Orders, asked: int, replicas: int
) -> None:
    processes = Processes()
    world.command("scale", replicas=asked)
    orders.turn(processes)
    assert processes.asked == [("rollout", replicas)]
    why = "the settings allow 1 to 3"
    assert scaled(world.log) == [
        {"target": "rollout", "asked": str(asked), "replicas": str(replicas), "why": why},
    ]


def test_what_does_not_fit_into_the_pool_is_told_once_per_command(world: World, context: StageContext) -> None:
    processes = Processes(replicas={name: Replicas(running=1, retiring=0) for name in ("rollout", "learner")}, slots=4)
    with Orders(context, log=context.log, limits={"rollout": (1, 3), "learner": (1, 3)}) as orders:
        world.command("scale", replicas=3)
        orders.turn(processes)
        world.command("scale", replicas=1)
        world.command("scale", replicas=3, target="learner")
        orders.turn(processes)
        assert events(world.log, kind="notice", name="scale_does_not_fit") == [], "one less of these, more of those"
        world.command("scale", replicas=2)
        orders.turn(processes)
        orders.turn(processes)
        (told,) = events(world.log, kind="notice", name="scale_does_not_fit")
        assert told.details["text"].startswith("2 of rollout and 3 of learner are wanted, and run.slots = 4")
        assert dict(told.gauges) == {"slots": 4, "wanted": 5}


def test_a_command_without_a_number_changes_nothing(world: World, orders: Orders) -> None:
    processes = Processes()
    world.command("scale")
    orders.turn(processes)
    assert (processes.asked, scaled(world.log)) == ([], [])


def test_heartbeats_say_how_many_there_are(world: World, orders: Orders, clock: ManualClock) -> None:
    processes = Processes()
    orders.turn(processes)
    orders.turn(processes)
    assert len(events(world.log, kind="heartbeat", name="heartbeat")) == 1
    world.command("scale", replicas=3)
    orders.turn(processes)
    clock.advance(BEAT_S)
    processes.slots = 5
    orders.turn(processes)
    before, after = (dict(each.gauges) for each in events(world.log, kind="heartbeat", name="heartbeat"))
    assert (before["replicas{target=rollout}"], before["replicas_retiring{target=rollout}"]) == (1, 0)
    assert (after["replicas{target=rollout}"], after["replicas_retiring{target=rollout}"]) == (3, 2)
    assert after["replicas{target=reward.sum}"] == 1
    assert ("slots" in before, after["slots"]) == (False, 5)


def test_what_cannot_be_decoded_is_passed_over_and_kept(world: World, orders: Orders) -> None:
    world.plain.write_raw(COMMANDS, key=b"rollout", value=b"nonsense", partition=0)
    world.command("scale", replicas=2)
    processes = Processes()
    orders.turn(processes)
    assert processes.asked == [("rollout", 2)]
    letters = [each for each in records_of(world.log, DEAD_LETTERS) if isinstance(each, DeadLetter)]
    assert [each.topic for each in letters] == [full_name(world.log.run, COMMANDS)]


def test_while_the_broker_is_away_nothing_happens_and_it_is_asked_now_and_then(
    world: World, context: StageContext, memory_log: MemoryLog, clock: ManualClock
) -> None:
    away, processes = AwayLog(memory_log), Processes()
    world.command("scale", replicas=2)
    with Orders(context, log=away, limits=LIMITS) as orders:  # type: ignore[arg-type]
        for _ in range(10):
            orders.turn(processes)
        assert (away.num_tries, processes.asked) == (1, [])
        clock.advance(RETRY_S)
        away.is_away = False
        orders.turn(processes)
        assert processes.asked == [("rollout", 2)]
        away.is_away = True
        orders.turn(processes)
        world.command("scale", replicas=3)
        away.is_away = False
        clock.advance(RETRY_S)
        orders.turn(processes)
        assert processes.asked == [("rollout", 2), ("rollout", 3)], "what was done is not done again"
    assert away.num_tries == 3


def test_nothing_is_done_before_all_that_was_there_is_read(
    world: World, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.supervisor.orders._MAX_RECORDS", 1)
    for replicas in (3, 1, 2):
        world.command("scale", replicas=replicas)
    processes = Processes()
    for _ in range(3):
        assert processes.asked == []
        orders.turn(processes)
    assert processes.asked == [("rollout", 2)]


def test_it_says_that_it_came_up_and_that_it_stopped(world: World, context: StageContext) -> None:
    with Orders(context, log=context.log, limits={}) as orders:
        orders.turn(Processes())
        context.stop.request("SIGTERM")
    assert [each.instance for each in events(world.log, kind="notice", name="started")] == [context.instance]
    last = [each for each in records_of(world.log, EVENTS) if isinstance(each, StageEvent)][-2:]
    assert [(each.name, dict(each.details)) for each in last if each.kind == "notice"] == [
        ("stopped", {"reason": "SIGTERM"})
    ]
