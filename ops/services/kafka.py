"""A single-node Kafka broker (KRaft, broker and controller in one Java process), and the check of any broker.

Files under `<state dir>/kafka`: `data` (formatted once), `logs`, `server.properties` (rewritten at every start).
It listens on 127.0.0.1 only, without authentication: it is for one user on one machine.
"""

from __future__ import annotations

import base64
import logging
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from ops.services.jars import find_jars, jars_dir, jars_version
from ops.services.model import ServicesError
from ops.services.process import ProcessId, spawn_detached
from ops.services.programs import find_java
from ops.services.state import LOOPBACK, ServiceState

_LOG4J = Path(__file__).with_name("log4j2.properties")
_FORMAT_S = 60.0
_PROBE_S = 1.0
_MAX_RECORD_BYTES = 32 * 2**20 + 2**20  # a record may be 32 MiB; the rest is for key, headers and batch framing

# TieredStopAtLevel=1: ready in 1.4 s instead of 1.9-2.9 s, 3 s of processor time instead of 5 s for the same 60,000
# records of 8 kB, at the same produce rate.
_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData")

_PROPERTIES = f"""\
process.roles=broker,controller
node.id=1
listeners=BROKER://{LOOPBACK}:{{broker_port}},CONTROLLER://{LOOPBACK}:{{controller_port}}
advertised.listeners=BROKER://{LOOPBACK}:{{broker_port}}
controller.quorum.voters=1@{LOOPBACK}:{{controller_port}}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={{data}}
# One node: every internal topic has one replica, and few partitions so that it starts quickly.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# Topics are made by the catalog only, and keep what they hold unless the catalog says otherwise.
auto.create.topics.enable=false
log.retention.ms=-1
offsets.retention.minutes=525600
message.max.bytes={_MAX_RECORD_BYTES}
replica.fetch.max.bytes={_MAX_RECORD_BYTES}
# Groups settle at once, and clients may ask for short sessions.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=500
# After a kill, a new broker waits until the session of the old one has ended: 4 s instead of 9 s.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
# Small: the defaults take 128 MiB of heap for the cleaner alone.
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""


class KafkaServer:
    """The broker of one state directory (see `ops.services.server.Server`)."""

    name = "kafka"
    num_ports = 2  # broker, controller

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "kafka"
        self._data, self._log_dir = self._root / "data", self._root / "logs"
        self.logs = (self._log_dir / "server.log", self._log_dir / "output.log")

    def spawn(self, ports: tuple[int, ...]) -> ProcessId:
        """Format the data directory on first use, then start the broker.

        Raises:
            ServicesError: Java or the jars are missing, or formatting failed.
        """
        java, jars = find_java(), find_jars()
        self._log_dir.mkdir(parents=True, exist_ok=True)
        properties = self._root / "server.properties"
        broker_port, controller_port = ports
        properties.write_text(
            _PROPERTIES.format(broker_port=broker_port, controller_port=controller_port, data=self._data)
        )
        system = (f"-Dlog4j2.configurationFile={_LOG4J}", f"-Drlweave.kafka.logs={self._log_dir}")
        command = [java, *_JVM, f"-XX:ErrorFile={self._log_dir}/jvm-%p.log", *system, "-cp", f"{jars}/*"]
        if self._cluster_id() is None:
            self._format([*command, "kafka.tools.StorageTool"], properties)
        self.logs[-1].unlink(missing_ok=True)
        return spawn_detached([*command, "kafka.Kafka", str(properties)], output=self.logs[-1])

    def address(self, ports: tuple[int, ...]) -> str:
        """Bootstrap address."""
        return f"{LOOPBACK}:{ports[0]}"

    def version(self) -> str | None:
        """Version of the jars in use; None before the first start."""
        return jars_version(jars_dir())

    def probe(self, state: ServiceState) -> Callable[[], bool]:
        """Check that a broker with this directory's cluster id answers, and that it leads all partitions."""
        client, expected = _admin(self.address(state.ports)), self._cluster_id()

        def answers() -> bool:
            try:
                metadata = client.list_topics(timeout=_PROBE_S)
            except KafkaException:
                return False
            # Right after a restart the broker answers before it leads; a client would then wait for a second.
            partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
            leads = all(partition.leader >= 0 for partition in partitions)
            return leads and bool(metadata.brokers) and metadata.cluster_id == expected

        return answers

    def _format(self, storage_tool: list[str], properties: Path) -> None:
        # A leading "-" would be read as an option.
        cluster_id = "r" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        command = [*storage_tool, "format", "--ignore-formatted", "-t", cluster_id, "-c", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FORMAT_S)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-1000:]
            raise ServicesError(f"Kafka could not format {self._data}: {said}", hint="is the disk full or read-only?")

    def _cluster_id(self) -> str | None:
        """Read the cluster id of the formatted data directory; None when it is not formatted."""
        try:
            lines = (self._data / "meta.properties").read_text().splitlines()
        except FileNotFoundError:
            return None
        return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")).get("cluster.id")


def check_kafka(bootstrap: str, *, timeout_s: float) -> None:
    """Prove that a broker answers at `bootstrap` within `timeout_s` seconds.

    Raises:
        ServicesError: none does, or the address has no `host:port` form.
    """
    seen: list[str] = []  # what the client met on the way: "connection refused", "failed to resolve"
    client = _admin(bootstrap, on_error=lambda error: seen.append(error.str()))
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


def _admin(bootstrap: str, *, on_error: Callable[[KafkaError], None] | None = None) -> AdminClient:
    """An admin client that keeps quiet and reconnects quickly; connection errors reach the caller as exceptions."""
    quiet = logging.getLogger("rlweave.services.kafka")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    config: dict[str, str | int | float] = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
    }
    return AdminClient(config, logger=quiet, error_cb=on_error or (lambda _: None))
