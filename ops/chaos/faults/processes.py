"""Processes: killed, frozen for longer than any lease or session, and frozen while another one takes their place."""

from __future__ import annotations

import signal
import time
from random import Random

from ops.chaos.crew import wait_ended
from ops.chaos.faults.base import Fault, Kind, Layout
from ops.chaos.settings import LEASE_S, REWARD_SESSION_S, ROLLOUT_SESSION_S
from ops.chaos.world import World
from pipeline.exit_codes import ExitCode
from topics.clock import Deadline

STAGES = ("learner", "rollout", "reward", "prompts", "scheduler", "peer")
# How long a stage's place is kept for it when it says nothing.
_KEPT_S = {"learner": LEASE_S, "rollout": ROLLOUT_SESSION_S, "reward": REWARD_SESSION_S}
_OVER_S = (1.5, 4.0)  # frozen for so much longer
_POLL_S = 0.1
_AWAKE_S = 60.0  # longest life of a process that was replaced, once it wakes up
_PROMISES = {
    "learner": "2, 5: a step counts once; a frozen learner that wakes up writes nothing that is void",
    "rollout": "1, 4: prompts in flight are done again, attempts are not mixed",
    "reward": "1: samples in flight are scored again, and count once",
    "prompts": "1, 5: numbers stay dense",
    "scheduler": "11: engines help themselves while it is away",
    "peer": "9: versions come from elsewhere, or later",
}


class Kill(Fault):
    """SIGKILL."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return self._name

    def inject(self, world: World) -> None:
        """Kill it; the supervisor starts it again."""
        world.crew.send(self._name, signal.SIGKILL)


class Freeze(Fault):
    """SIGSTOP, and SIGCONT after longer than its place is kept."""

    def __init__(self, name: str, *, hold_s: float) -> None:
        self._name = name
        self._pid: int | None = None
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"{self._name} for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Stop it."""
        self._pid = world.crew.send(self._name, signal.SIGSTOP)

    def heal(self, world: World) -> None:
        """Let it go on, if it is still the same process."""
        if self._pid is not None and world.crew.pid(self._name) == self._pid:
            world.crew.send(self._name, signal.SIGCONT)


class Replace(Fault):
    """A process is cut off, frozen here; another one takes its place; then the first one wakes up.

    What a cluster manager does with a host that does not answer.
    """

    def __init__(self, names: list[str], *, hold_s: float) -> None:
        self._names = names
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"{', '.join(self._names)} for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Stop all of them and start others."""
        for name in self._names:
            world.crew.send(name, signal.SIGSTOP)
        for name in self._names:
            process = world.crew.replace(name)
            if process is not None:
                world.left.append(process)

    def heal(self, world: World) -> None:
        """Wake the first ones up once others have their place; they must end by themselves."""
        if world.left:
            self._wait_taken(world)
        left, world.left[:] = list(world.left), []
        for process in left:
            process.send_signal(signal.SIGCONT)
        for process in left:
            code = wait_ended(process, limit_s=_AWAKE_S)
            if code is None:
                world.hangs.append(f"{self}: process {process.pid} was replaced and lived on for {_AWAKE_S:g} s")
            elif code != ExitCode.FENCED:
                world.say(f"  process {process.pid}, which was replaced, ended with code {code}")

    def _wait_taken(self, world: World) -> None:
        """A process that wakes up before the other one is through its start is still in its place, and may keep it."""
        deadline = Deadline.after(world.settings.limits.start_s)
        while not all(world.watch.seen(world.crew.pid(name)).is_past_start for name in self._names):
            if deadline.expired or world.crew.ended is not None:
                return
            time.sleep(_POLL_S)


def _kill(stage: str) -> Kind:
    return Kind(
        name=f"kill-{stage}",
        weight=2.0,
        promise=_PROMISES[stage],
        draw=lambda rng, layout: Kill(rng.choice(layout.of(stage))),
    )


def _freeze(stage: str) -> Kind:
    def draw(rng: Random, layout: Layout) -> Fault:
        return Freeze(rng.choice(layout.of(stage)), hold_s=_KEPT_S.get(stage, 3.0) + rng.uniform(*_OVER_S))

    return Kind(name=f"freeze-{stage}", weight=1.0, promise=_PROMISES[stage], draw=draw)


def _replace(stage: str) -> Kind:
    def draw(rng: Random, layout: Layout) -> Fault:
        return Replace(layout.of(stage), hold_s=_KEPT_S.get(stage, 3.0) + rng.uniform(6.0, 12.0))

    promise = "5: the broker fences it, and it writes nothing more"
    return Kind(name=f"replace-{stage}", weight=1.0, promise=promise, draw=draw, quick=False)


KINDS = (
    *(_kill(stage) for stage in STAGES),
    *(_freeze(stage) for stage in STAGES),
    *(_replace(stage) for stage in ("learner", "prompts", "scheduler")),
)
