"""A world of small processes for faults to act upon: no broker, no run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.chaos.settings import ChaosSettings, Limits
from ops.chaos.watch import Watch
from ops.chaos.world import World
from ops.supervisor.processes import Program
from ops.supervisor.settings import SupervisorSettings
from schemas.records import Record, StageEvent
from tests.unit.ops.little_run import trained
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import Envelope
from topics.memory import MemoryLog

STAYS = "import os, time\nparent = os.getppid()\nwhile os.getppid() == parent: time.sleep(0.05)"  # ends with its parent
# Has a child whose command looks like that of the process that forks those that score, which has a child.
FORKS = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {STAYS!r}])\n{STAYS}"
SCORES = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {FORKS!r}, 'consumers.rewards.fork_server'])"
NOWHERE = "127.0.0.1:1"
WAIT_S = 30.0


@dataclass
class Endless:
    """Of a run that never comes to its end."""

    grace_s: float = 5.0

    def is_complete(self) -> bool:
        return False

    def is_drained(self) -> bool:
        return True


def program(name: str, folder: Path, *, code: str = STAYS) -> Program:
    """A small script in the place of a stage; its name says which."""
    stage = name.split("-", maxsplit=1)[0]
    return Program(
        name=name, stage=stage, arguments=("-c", code), command=(sys.executable,), log_file=folder / f"{name}.log"
    )


def chaos_settings(folder: Path, *, limits: Limits | None = None) -> ChaosSettings:
    return ChaosSettings(folder=folder, limits=Limits(recovery_s=0.5) if limits is None else limits)


@contextmanager
def world_of(folder: Path, *names: str, code: str = STAYS, limits: Limits | None = None) -> Iterator[World]:
    """A world with a living crew; it is ended with the block."""
    said: list[str] = []
    settings = SupervisorSettings(restart_backoff_s=0.01, max_backoff_s=0.01, healthy_s=0.01)
    crew = Crew([program(name, folder, code=code) for name in names], settings, ends=Endless(), say=said.append)
    world = World(
        settings=chaos_settings(folder, limits=limits),
        crew=crew,
        servers=Servers(folder / "services", brokers=1),
        watch=Watch(lambda: MemoryLog(run="little", data_partitions=2), data_partitions=2),
        log=KafkaLog(NOWHERE, run="little", data_partitions=2),
        raw=RawLog(NOWHERE),
        links={},
        clocks={},
        disks=None,
        say=said.append,
    )
    crew.start()
    try:
        wait_for(lambda: len(crew.pids()) == len(names))
        yield world
    finally:
        for process in world.left:
            process.kill()
            process.wait()
        crew.abort()
        crew.stop(grace_s=5.0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = Deadline.after(WAIT_S)
    while not condition():
        assert not deadline.expired, "what the test waits for did not come"
        time.sleep(0.02)


def enveloped(record: Record, *, partition: int = 0) -> Envelope:
    return Envelope(
        topic="x", partition=partition, offset=0, key=None, record=record, headers={}, unix_ms=0, num_bytes=0
    )


def heard(world: World, name: str, *, phase: str = "working", now_s: float | None = None) -> None:
    """The process of a program says that it is in a phase."""
    event = StageEvent(
        run="little",
        stage=name,
        instance=f"{name}-host-{world.crew.pid(name)}-abc",
        kind="phase_began",
        name=phase,
        seq=0,
        monotonic_s=0.0,
        unix_ms=0,
    )
    world.watch.add(enveloped(event), now_s=time.monotonic() if now_s is None else now_s)


def stepped(world: World, step: int, *, now_s: float | None = None) -> None:
    """A step of the learner arrives on the ledger."""
    outcome = trained(2 * step, at=f"1.{step}", seq=step)
    world.watch.add(enveloped(outcome), now_s=time.monotonic() if now_s is None else now_s)
