"""Brokers and Redis: killed and brought back, frozen, restarted one after the other, flushed."""

from __future__ import annotations

import signal
from random import Random

from ops.chaos.faults.base import Fault, Kind, Layout
from ops.chaos.world import World

_BROKER = "1, 2: what was acknowledged is there, what was in flight has one outcome"
_REDIS = "design, section 5: it is never the only copy of anything"
_ROLLING_MIN_BROKERS = 3


class BrokerKill(Fault):
    """One broker is killed, and comes back after a while."""

    def __init__(self, node: int, *, hold_s: float) -> None:
        self._node = node
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"broker {self._node} for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """SIGKILL."""
        world.servers.brokers[self._node - 1].kill()

    def heal(self, world: World) -> None:
        """Start it again; with several, until its replicas have caught up."""
        world.servers.brokers[self._node - 1].start()
        if len(world.servers.brokers) > 1:
            world.servers.wait_in_sync()


class BrokerFreeze(BrokerKill):
    """One broker stands still, with its connections open."""

    def inject(self, world: World) -> None:
        """SIGSTOP."""
        world.servers.brokers[self._node - 1].pause()

    def heal(self, world: World) -> None:
        """SIGCONT."""
        world.servers.brokers[self._node - 1].resume()
        if len(world.servers.brokers) > 1:
            world.servers.wait_in_sync()


class RollingRestart(Fault):
    """Every broker is restarted in order, each once the others have all copies."""

    def __init__(self, num_brokers: int) -> None:
        self._num_brokers = num_brokers

    def __str__(self) -> str:
        return f"{self._num_brokers} brokers"

    def inject(self, world: World) -> None:
        """The whole of it."""
        world.servers.rolling_restart()


class RedisFlush(Fault):
    """Everything in Redis is deleted."""

    def inject(self, world: World) -> None:
        """FLUSHALL."""
        world.servers.flush_redis()


class RedisKill(Fault):
    """Redis is killed, and comes back after a while."""

    def __init__(self, *, hold_s: float) -> None:
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """SIGKILL."""
        world.servers.signal_redis(signal.SIGKILL)

    def heal(self, world: World) -> None:
        """Start it again."""
        world.servers.start_redis()


class RedisFreeze(RedisKill):
    """Redis stands still, with its connections open."""

    def inject(self, world: World) -> None:
        """SIGSTOP."""
        world.servers.signal_redis(signal.SIGSTOP)

    def heal(self, world: World) -> None:
        """SIGCONT."""
        world.servers.signal_redis(signal.SIGCONT)


def _any_broker(rng: Random, layout: Layout) -> int:
    return rng.randrange(layout.brokers) + 1


def _needs_several(layout: Layout) -> str | None:
    if layout.brokers >= _ROLLING_MIN_BROKERS:
        return None
    return f"a rolling restart needs {_ROLLING_MIN_BROKERS} brokers (--brokers {_ROLLING_MIN_BROKERS})"


KINDS = (
    Kind(
        name="broker-kill",
        weight=2.0,
        promise=_BROKER,
        draw=lambda rng, layout: BrokerKill(_any_broker(rng, layout), hold_s=rng.uniform(2.0, 8.0)),
    ),
    Kind(
        name="broker-freeze",
        weight=1.0,
        promise=_BROKER,
        draw=lambda rng, layout: BrokerFreeze(_any_broker(rng, layout), hold_s=rng.uniform(3.0, 12.0)),
    ),
    Kind(
        name="broker-rolling",
        weight=1.0,
        promise=_BROKER,
        draw=lambda _, layout: RollingRestart(layout.brokers),
        missing=_needs_several,
        quick=False,
    ),
    Kind(name="redis-flush", weight=1.0, promise=_REDIS, draw=lambda *_: RedisFlush()),
    Kind(
        name="redis-kill",
        weight=1.0,
        promise=_REDIS,
        draw=lambda rng, _: RedisKill(hold_s=rng.uniform(1.0, 6.0)),
    ),
    Kind(
        name="redis-freeze",
        weight=1.0,
        promise=_REDIS,
        draw=lambda rng, _: RedisFreeze(hold_s=rng.uniform(3.0, 8.0)),
    ),
)
