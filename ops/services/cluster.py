"""The brokers of the local Kafka one by one: ended, killed, frozen and brought back, for drills and tests.

Role: `Cluster(state_dir).broker(2).kill()`; what `rlweave services` started is found by its state file.
Invariants: a broker keeps its ports and its data; each change holds the lock of the state directory, so `services up`
and a drill do not get into each other's way.
Failure: `ServicesError` when a broker does not exist, does not start or does not end.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ops.services.kafka import KafkaBroker, admin_client, brokers
from ops.services.model import ServicesError
from ops.services.process import ProcessId, is_running, send, wait_until
from ops.services.server import ensure_started, ensure_stopped
from ops.services.state import StateFile

_GONE_S = 10.0
_IN_SYNC_S = 60.0
_ASK_S = 2.0


class Broker:
    """One broker."""

    def __init__(self, server: KafkaBroker, *, node: int, state_file: StateFile) -> None:
        self._server = server
        self._state_file = state_file
        self.node = node

    @property
    def pid(self) -> int | None:
        """Process id; None when it does not run."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def address(self) -> str:
        """`host:port` for clients; stays across restarts."""
        return self._server.address(self._state_file.read(self._server.name).ports)

    @property
    def log(self) -> Path:
        """Its log file."""
        return self._server.logs[0]

    def start(self) -> None:
        """Start it unless it runs, and wait until it answers and its partitions are led.

        Raises:
            ServicesError: it does not start, or its port is taken.
        """
        with self._state_file.locked():
            ensure_started([self._server], self._state_file, may_move=False)

    def stop(self) -> None:
        """End it in order: what it leads goes to the others first."""
        with self._state_file.locked():
            ensure_stopped([self._server], self._state_file)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone.

        Raises:
            ServicesError: it is still there.
        """
        process = self._process
        if process is None:
            return
        send(process, signal.SIGKILL)
        if not wait_until(lambda: not is_running(process), timeout_s=_GONE_S):
            raise ServicesError(f"{self._server.name} (pid {process.pid}) is still there after SIGKILL")

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    @property
    def _process(self) -> ProcessId | None:
        process = self._state_file.read(self._server.name).process
        return process if process is not None and is_running(process) else None

    def _send(self, signum: signal.Signals) -> None:
        process = self._process
        if process is not None:
            send(process, signum)


class Cluster:
    """The local Kafka of one state directory, which was started before.

    Raises:
        ServicesError: nothing was started there.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_file = StateFile(state_dir.expanduser().absolute())
        layout = self._state_file.read_layout()
        if layout is None:
            raise ServicesError(f"no services are known in {state_dir}", hint="start them with `rlweave services up`")
        self._servers = brokers(self._state_file, layout)
        self.brokers = tuple(
            Broker(server, node=node, state_file=self._state_file) for node, server in enumerate(self._servers, 1)
        )

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, node: int) -> Broker:
        """Broker 1, 2, ...

        Raises:
            ServicesError: there is no such broker.
        """
        if not 1 <= node <= len(self.brokers):
            raise ServicesError(f"there is no broker {node}; there are {len(self.brokers)}")
        return self.brokers[node - 1]

    def rolling_restart(self, *, nodes: Sequence[int] | None = None) -> None:
        """Restart one broker after the other, each once all replicas are in sync; all brokers unless some are named.

        Raises:
            ServicesError: a broker does not come back, or the replicas do not catch up.
        """
        self.wait_in_sync()
        for broker in self.brokers if nodes is None else map(self.broker, nodes):
            broker.stop()
            broker.start()
            self.wait_in_sync()

    def wait_in_sync(self, *, timeout_s: float = _IN_SYNC_S) -> None:
        """Wait until every replica of every partition is in sync, so that any one broker may go.

        Raises:
            ServicesError: some are not after `timeout_s`.
        """
        client = admin_client(self.bootstrap, self._servers[0].client_config())
        lagging: list[str] = []

        def settled() -> bool:
            lagging[:] = _out_of_sync(client)
            return not lagging

        if not wait_until(settled, timeout_s=timeout_s):
            raise ServicesError(f"not all replicas are in sync after {timeout_s:g} s: {', '.join(lagging[:5])}")


def _out_of_sync(client: AdminClient) -> list[str]:
    with suppress(KafkaException):
        topics = client.list_topics(timeout=_ASK_S).topics
        return [
            f"{name} [{partition}]"
            for name, topic in topics.items()
            for partition, seen in topic.partitions.items()
            if set(seen.isrs) != set(seen.replicas)
        ]
    return ["no broker answers"]
