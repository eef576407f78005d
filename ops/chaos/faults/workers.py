"""Processes that run the plug-in of a reward, started by its consumer: killed, and frozen longer than a call may be."""

from __future__ import annotations

import signal
import time
from random import Random

from ops.chaos.errors import ChaosError
from ops.chaos.faults.base import Fault, Kind, Layout
from ops.chaos.settings import CALL_S, REWARD
from ops.chaos.world import World
from topics.clock import Deadline

_OVER_S = (1.5, 4.0)  # frozen for so much longer than a call may take
_THERE_S = 30.0  # until a consumer has a worker: it starts one when there is work
_POLL_S = 0.05
_PROMISE = "1: what it was scoring is scored again; the consumer, and other samples, go on"


class WorkerKill(Fault):
    """SIGKILL.

    Args:
        name: of the reward consumer.
        choice: which of its workers, from 0 up to 1.
    """

    def __init__(self, name: str, *, choice: float) -> None:
        self._name = name
        self._choice = choice
        self._pid: int | None = None

    def __str__(self) -> str:
        return f"one of {self._name}"

    def inject(self, world: World) -> None:
        """Kill it; its consumer starts another one."""
        self._send(world, signal.SIGKILL)

    def _send(self, world: World, number: signal.Signals) -> None:
        deadline = Deadline.after(_THERE_S)
        while not deadline.expired:
            world.check_running()
            workers = world.crew.workers(self._name)
            if workers:
                self._pid = workers[int(self._choice * len(workers))]
                if world.crew.send_worker(self._name, self._pid, number=number):
                    return
            time.sleep(_POLL_S)
        raise ChaosError(f"{self._name} had no worker within {_THERE_S:g} s")


class WorkerFreeze(WorkerKill):
    """SIGSTOP; its consumer kills it once the call takes too long. SIGCONT if it has not, as it had nothing to do."""

    def __init__(self, name: str, *, choice: float, hold_s: float) -> None:
        super().__init__(name, choice=choice)
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"{super().__str__()} for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Stop it."""
        self._send(world, signal.SIGSTOP)

    def heal(self, world: World) -> None:
        """Let it go on, if it is still there."""
        if self._pid is not None:
            world.crew.send_worker(self._name, self._pid, number=signal.SIGCONT)


def _kill(rng: Random, layout: Layout) -> Fault:
    return WorkerKill(rng.choice(_scoring(layout)), choice=rng.random())


def _freeze(rng: Random, layout: Layout) -> Fault:
    return WorkerFreeze(rng.choice(_scoring(layout)), choice=rng.random(), hold_s=CALL_S + rng.uniform(*_OVER_S))


def _scoring(layout: Layout) -> list[str]:
    """Consumers of the reward whose plug-in runs in processes of its own; built-in ones run in threads."""
    return [name for name in layout.of("reward") if name.startswith(f"reward-{REWARD}-")]


KINDS = (
    Kind(name="kill-worker", weight=1.5, promise=_PROMISE, draw=_kill),
    Kind(name="freeze-worker", weight=1.0, promise=_PROMISE, draw=_freeze),
)
