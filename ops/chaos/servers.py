"""The brokers and the Redis of a chaos run, one by one: killed, frozen and brought back.

Role: over `ops.services`, whose state directory is the run's own.
Invariants: only what was started there is signalled, by pid and start time; ports stay.
Failure: `ServicesError` when a server does not come back.
"""

from __future__ import annotations

import signal
from pathlib import Path

from ops.services.cluster import Broker, Cluster
from ops.services.manager import services_down, services_up
from ops.services.model import ServicesError, ServicesSettings
from ops.services.process import is_running, send, wait_until
from ops.services.server import ensure_started
from ops.services.state import StateFile
from ops.services.valkey import redis_servers
from pipeline.redis_client import RedisClient

_GONE_S = 10.0
_FLUSH = "redis.call('FLUSHALL') return {'OK'}"


class Servers:
    """The servers of one state directory. Constructing does no I/O.

    Args:
        brokers: how many.
    """

    def __init__(self, state_dir: Path, *, brokers: int) -> None:
        self._state_dir = state_dir.absolute()
        self._num_brokers = brokers
        self.bootstrap = ""  # known once they are started
        self.redis_url = ""
        self._cluster: Cluster | None = None
        self._state_file = StateFile(self._state_dir)

    def start(self) -> None:
        """Start all.

        Raises:
            ServicesError: one does not start.
        """
        info = services_up(ServicesSettings(state_dir=self._state_dir, brokers=self._num_brokers))
        self.bootstrap, self.redis_url = info.kafka_bootstrap, info.redis_url
        self._cluster = Cluster(self._state_dir)

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """Each broker; none before the start."""
        return () if self._cluster is None else self._cluster.brokers

    def rolling_restart(self) -> None:
        """See `Cluster.rolling_restart`."""
        if self._cluster is not None:
            self._cluster.rolling_restart()

    def wait_in_sync(self) -> None:
        """Until any one broker may go."""
        if self._cluster is not None:
            self._cluster.wait_in_sync()

    def pids(self) -> dict[str, int]:
        """Living servers."""
        found = {f"server:broker-{broker.node}": broker.pid for broker in self.brokers}
        process = self._state_file.read("redis").process
        if process is not None and is_running(process):
            found["server:redis"] = process.pid
        return {name: pid for name, pid in found.items() if pid is not None}

    def flush_redis(self) -> None:
        """Delete everything in it."""
        client = RedisClient(self.redis_url)
        try:
            client.script(_FLUSH, keys=[], args=[])
        finally:
            client.close()

    def signal_redis(self, number: signal.Signals) -> None:
        """Send one signal to it; after SIGKILL wait until it is gone."""
        process = self._state_file.read("redis").process
        if process is None or not send(process, number):
            return
        if number == signal.SIGKILL and not wait_until(lambda: not is_running(process), timeout_s=_GONE_S):
            raise ServicesError(f"redis (pid {process.pid}) is still there after SIGKILL")

    def start_redis(self) -> None:
        """Start it unless it runs."""
        layout = self._state_file.read_layout()
        if layout is None:
            raise ServicesError(f"no services are known in {self._state_dir}")
        with self._state_file.locked():
            ensure_started(redis_servers(self._state_file, layout), self._state_file, may_move=False)

    def close(self) -> None:
        """End all; a frozen one is woken first."""
        self.signal_redis(signal.SIGCONT)
        for broker in self.brokers:
            broker.resume()
            broker.kill()  # nobody needs its data any more, and an orderly end takes long
        services_down(ServicesSettings(state_dir=self._state_dir))
