"""A Kafka broker (KRaft, broker and controller in one Java process), alone or in a cluster; the check of any broker.

Files under `<state dir>/kafka` (`kafka-1`, `kafka-2`, ... in a cluster): `data` (formatted once), `logs`,
`server.properties` (rewritten at every start). It listens on 127.0.0.1 only. Without `secure` there is no
authentication: it is for one user on one machine.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from ops.services.jars import find_jars, jars_dir, jars_version
from ops.services.kafka_settings import BrokerPlace, broker_properties
from ops.services.model import Layout, ServicesError
from ops.services.process import ProcessId, spawn_detached
from ops.services.programs import find_java
from ops.services.secure import secure_files, write_private
from ops.services.state import LOOPBACK, ServiceState, StateFile
from pipeline.credentials import client_config
from pipeline.settings import KafkaSettings
from topics.access import ADMIN

_LOG4J = Path(__file__).with_name("log4j2.properties")
_FORMAT_S = 60.0
_PROBE_S = 1.0
_HEAP = {1: "-Xmx384m"}  # by number of brokers; a cluster's replicate, which takes buffers
_CLUSTER_HEAP = "-Xmx512m"

# TieredStopAtLevel=1: ready in 1.4 s instead of 1.9-2.9 s, 3 s of processor time instead of 5 s for the same 60,000
# records of 8 kB, at the same produce rate.
# No ExitOnOutOfMemoryError: a foreign batch that is packed anew (compression.type) and does not fit the heap is
# refused, and the broker goes on; ended by it, the broker would be ended again by each try of that writer.
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class KafkaBroker:
    """One broker of one state directory (see `ops.services.server.Server`).

    Args:
        state_file: of the directory; says where the other brokers are.
        node: its number, from 1.
        layout: of the cluster.
    """

    def __init__(self, state_file: StateFile, *, node: int, layout: Layout) -> None:
        self._state_file = state_file
        self._node = node
        self._layout = layout
        self.name = _name(node, self._layout)
        self.num_ports = 3 if self._layout.secure else 2  # clients, (brokers,) controllers
        self._root = state_file.directory / self.name
        self._files = secure_files(state_file.directory)
        self._data, self._log_dir = self._root / "data", self._root / "logs"
        self.logs = (self._log_dir / "server.log", self._log_dir / "output.log")
        self._formatting: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """Write the configuration and begin to format the data directory on first use.

        Raises:
            ServicesError: Java or the jars are missing.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(self._configuration())
        if self._cluster_id() is None:
            self._formatting = self._format()

    def spawn(self, ports: tuple[int, ...]) -> ProcessId:  # noqa: ARG002 - they are in the configuration already
        """Start the broker, when the data directory is formatted.

        Raises:
            ServicesError: Java or the jars are missing, or formatting failed.
        """
        if self._formatting is not None:
            self._wait_formatted(self._formatting)
            self._formatting = None
        self.logs[-1].unlink(missing_ok=True)
        return spawn_detached([*self._command(), "kafka.Kafka", str(self._properties)], output=self.logs[-1])

    def address(self, ports: tuple[int, ...]) -> str:
        """Bootstrap address."""
        return f"{LOOPBACK}:{ports[0]}"

    def version(self) -> str | None:
        """Version of the jars in use; None before the first start."""
        return jars_version(jars_dir())

    def probe(self, state: ServiceState) -> Callable[[], bool]:
        """Check that a broker with this directory's cluster id answers, and that its partitions are led."""
        client, expected = admin_client(self.address(state.ports), self.client_config()), self._cluster_id()

        def answers() -> bool:
            try:
                metadata = client.list_topics(timeout=_PROBE_S)
            except KafkaException:
                return False
            member = metadata.cluster_id == expected and self._node in metadata.brokers
            return member and _is_led(metadata, node=self._node)

        return answers

    def client_config(self) -> dict[str, str]:
        """Library settings of an administrator of this cluster."""
        return admin_config(self._state_file.directory, self._layout)

    @property
    def _properties(self) -> Path:
        return self._root / "server.properties"

    def _configuration(self) -> str:
        places = {node: self._state_file.read(_name(node, self._layout)).ports for node in _nodes(self._layout)}
        place = BrokerPlace(
            node=self._node,
            ports=places[self._node],
            controllers={node: ports[-1] for node, ports in places.items()},
        )
        return broker_properties(place, layout=self._layout, data=self._data, files=self._files)

    def _command(self) -> list[str]:
        java, jars = find_java(), find_jars()
        heap = _HEAP.get(self._layout.brokers, _CLUSTER_HEAP)
        system = (f"-Dlog4j2.configurationFile={_LOG4J}", f"-Drlweave.kafka.logs={self._log_dir}")
        return [java, heap, *_JVM, f"-XX:ErrorFile={self._log_dir}/jvm-%p.log", *system, "-cp", f"{jars}/*"]

    def _format(self) -> subprocess.Popen[str]:
        command = [*self._command(), "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        command += ["-t", self._layout.cluster_id, "-c", str(self._properties)]
        if self._layout.secure:
            # The users are part of the format, by way of a file: arguments can be seen by everybody on the machine.
            lines = [f"--add-scram\nSCRAM-SHA-512=[name={u},password={p}]" for u, p in self._files.passwords().items()]
            self._users_file.unlink(missing_ok=True)
            write_private(self._users_file, "\n".join(lines))
            command.append(f"@{self._users_file}")
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def _wait_formatted(self, formatting: subprocess.Popen[str]) -> None:
        try:
            _, said = formatting.communicate(timeout=_FORMAT_S)
        except subprocess.TimeoutExpired as error:
            formatting.kill()
            raise ServicesError(f"Kafka did not format {self._data} within {_FORMAT_S:g} s") from error
        finally:
            self._users_file.unlink(missing_ok=True)
        if formatting.returncode != 0:
            shown = "" if self._layout.secure else f": {said.strip()[-1000:]}"  # it may quote a password
            raise ServicesError(f"Kafka could not format {self._data}{shown}", hint="is the disk full or read-only?")

    @property
    def _users_file(self) -> Path:
        return self._root / "users.txt"

    def _cluster_id(self) -> str | None:
        """Read the cluster id of the formatted data directory; None when it is not formatted."""
        try:
            lines = (self._data / "meta.properties").read_text().splitlines()
        except FileNotFoundError:
            return None
        return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")).get("cluster.id")


def brokers(state_file: StateFile, layout: Layout) -> list[KafkaBroker]:
    """The brokers of a state directory, in order."""
    return [KafkaBroker(state_file, node=node, layout=layout) for node in _nodes(layout)]


def admin_config(state_dir: Path, layout: Layout) -> dict[str, str]:
    """Library settings of an administrator of the local cluster."""
    if not layout.secure:
        return {}
    files = secure_files(state_dir)
    settings = KafkaSettings(security="sasl_ssl", credentials_dir=files.credentials, ca_file=files.ca)
    return client_config(settings, role=ADMIN)


def check_kafka(bootstrap: str, *, timeout_s: float) -> None:
    """Prove that a broker answers at `bootstrap` within `timeout_s` seconds.

    Raises:
        ServicesError: none does, or the address has no `host:port` form.
    """
    seen: list[str] = []  # what the client met on the way: "connection refused", "failed to resolve"
    client = admin_client(bootstrap, {}, on_error=lambda error: seen.append(error.str()))
    try:
        client.list_topics(timeout=timeout_s)
    except KafkaException as error:
        client.poll(0)  # delivers the errors above
        reason = seen[0] if seen else error.args[0].str()
        raise ServicesError(
            f"no Kafka broker answered at {bootstrap} within {timeout_s:g} s: {reason}",
            hint="check that the broker runs and that this address and its advertised listeners can be reached from"
            " here (--kafka host:port); without --kafka a local broker is started",
        ) from error


def admin_client(
    bootstrap: str, security: dict[str, str], *, on_error: Callable[[KafkaError], None] | None = None
) -> AdminClient:
    """An admin client that keeps quiet and reconnects quickly; connection errors reach the caller as exceptions."""
    quiet = logging.getLogger("rlweave.services.kafka")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    config: dict[str, str | int | float] = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        **security,
    }
    return AdminClient(config, logger=quiet, error_cb=on_error or (lambda _: None))


def _name(node: int, layout: Layout) -> str:
    return "kafka" if layout.brokers == 1 else f"kafka-{node}"


def _nodes(layout: Layout) -> range:
    return range(1, layout.brokers + 1)


def _is_led(metadata: ClusterMetadata, *, node: int) -> bool:
    """Right after a restart a broker answers before its partitions are led; a client would then wait for a second."""
    partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    return all(partition.leader >= 0 for partition in partitions if node in partition.replicas)
