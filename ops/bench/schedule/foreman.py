"""The executor of `bench schedule`: follows scale commands with threads in place of processes.

Role: what a supervisor is to a run of processes: it starts rollout producers, retires them, and changes the learner's
ranks between two steps. A slot that changes sides is away for the workload's time.
Data in: `commands`. Data out: rollout stages that live and end; heartbeats of the learner's further ranks on `events`,
which are scripted: rank 0 is the real one.
Invariants: see `PoolState`.
Failure: a stage that ends by itself is `broken`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.schedule.pool import Order, PoolState
from ops.bench.schedule.world import World
from pipeline.exit_codes import ExitCode
from pipeline.stage import Stage, StageContext, live
from producers.commands import CommandBoard
from schemas.records import Command, StageEvent
from topics.catalog import COMMANDS, EVENTS
from topics.clock import Deadline, SystemClock
from topics.log import Reader, ReaderSettings, Writer, WriterSettings

_TURN_S = 0.02  # real
_LAST_S = 30.0  # real: longest wait for engines at the end
_MAX_RECORDS = 1000
TARGETS = ("rollout", "learner")


Hire = Callable[[int, float], tuple[Stage, StageContext]]  # number, model time from which on it has room


@dataclass(frozen=True, kw_only=True)
class _Worker:
    """A rollout producer."""

    number: int
    context: StageContext
    thread: threading.Thread
    codes: list[ExitCode]  # one, once it has ended


class Foreman:
    """See the module.

    Args:
        context: its log, hooks and name.
        pool: at the start.
        hire: makes a rollout producer.
    """

    def __init__(self, context: StageContext, *, world: World, pool: PoolState, hire: Hire) -> None:
        self._context = context
        self._world = world
        self._pool = pool
        self._engine = hire
        self._workers: list[_Worker] = []
        self._numbers = itertools.count()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._boards = {target: CommandBoard(target, clock=SystemClock()) for target in TARGETS}
        self._obeyed: dict[str, tuple[int, int]] = {}
        self._team = Followers(context, working=lambda: world.board.working)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foreman")
        self.num_commands = 0
        self.notes: list[str] = []
        self.broken = ""

    def start(self) -> None:
        """Start the engines of the first split, and follow commands."""
        self._world.board.ranks = self._pool.ranks
        for _ in range(self._pool.rollouts):
            self._hire(self._world.now_s())
        self._thread.start()

    def close(self) -> None:
        """End all engines."""
        self._stop.set()
        self._thread.join()
        for worker in self._workers:
            worker.context.stop.request("the run is over")
        deadline = Deadline.after(_LAST_S)
        for worker in self._workers:
            worker.thread.join(deadline.remaining_s())

    def _run(self) -> None:
        reader = self._context.log.reader(
            ReaderSettings(topics=(COMMANDS,), instance=self._context.instance), hooks=self._context.hooks()
        )
        while not self._stop.wait(_TURN_S):
            self._read(reader)
            self._obey()
            self._let_go()
            self._world.look()
            if not self._world.board.working:
                for _ in range(self._pool.change_ranks()):
                    self._hire(self._world.now_s() + self._world.workload.switch_s, from_learner=True)
                self._world.board.ranks = self._pool.ranks
            for each in [each for each in self._due if each[0] <= self._world.now_s()]:
                self._due.remove(each)
                each[1]()
            self._team.speak(self._pool.ranks)
        reader.close()

    def _read(self, reader: Reader) -> None:
        for envelope in reader.poll(_MAX_RECORDS, deadline=Deadline.after(0.0)):
            if isinstance(envelope.record, Command):
                for board in self._boards.values():
                    board.add(envelope.record)

    def _obey(self) -> None:
        for target, board in self._boards.items():
            command = board.latest("scale")
            if command is None or command.replicas is None:
                continue
            if self._obeyed.get(target) != (command.epoch, command.seq):
                self._obeyed[target] = (command.epoch, command.seq)
                self.num_commands += 1
                self.notes.append(
                    f"{self._world.now_s():.0f} s, step {self._world.board.step}: {target} {command.reason}"
                )
                self._pool.order(Order(target=target, replicas=command.replicas, reason=command.reason))
        working = [worker for worker in self._workers if not worker.context.retire.requested]
        for worker in sorted(working, key=lambda one: -one.number)[: self._pool.num_to_retire(len(working))]:
            worker.context.retire.request("scaled")

    def _let_go(self) -> None:
        for worker in [worker for worker in self._workers if not worker.thread.is_alive()]:
            self._workers.remove(worker)
            if not worker.context.retire.requested or worker.codes != [ExitCode.OK]:
                self.broken = f"engine {worker.number} ended with {worker.codes}"
            self._pool.left()
            self._due.append((self._world.now_s() + self._world.workload.switch_s, self._pool.rank_came))

    def _hire(self, ready_s: float, *, from_learner: bool = False) -> None:
        number = next(self._numbers)
        stage, context = self._engine(number, ready_s)
        codes: list[ExitCode] = []
        thread = threading.Thread(target=lambda: codes.append(live(stage, context)), name=f"rollout-{number}")
        thread.start()
        self._workers.append(_Worker(number=number, context=context, thread=thread, codes=codes))
        if from_learner:
            self._due.append((ready_s, self._pool.engine_came))


class Followers:
    """Heartbeats of the ranks that are not there; new names whenever their number changes, as new processes have."""

    def __init__(self, context: StageContext, *, working: Callable[[], bool]) -> None:
        self._context = context
        self._working = working
        self._writer: Writer = context.log.writer(WriterSettings(linger_ms=5.0))
        self._names: list[str] = []
        self._seqs: dict[str, itertools.count[int]] = {}
        self._generation = itertools.count()
        self._said_s = 0.0

    def speak(self, ranks: int) -> None:
        """Say that they are there, when it is time."""
        now_s = self._context.clock.monotonic()
        if len(self._names) != ranks - 1:
            for name in self._names:
                self._say(name, kind="notice", what="stopped")
            generation = next(self._generation)
            self._names = [f"learner.{rank}-{generation}" for rank in range(1, ranks)]
        elif now_s < self._said_s + self._context.run.heartbeat_s:
            return
        self._said_s = now_s
        for name in self._names:
            self._say(name, kind="heartbeat", what="heartbeat")

    def _say(self, name: str, *, kind: str, what: str) -> None:
        event = StageEvent(
            run=self._context.run.name,
            stage="learner",
            instance=name,
            kind=kind,
            name=what,
            details={"phase": "forward_backward" if self._working() else "waiting_for_data"},
            seq=next(self._seqs.setdefault(name, itertools.count())),
            monotonic_s=self._context.clock.monotonic(),
            unix_ms=self._context.clock.unix_ms(),
        )
        self._writer.write(EVENTS, event)
