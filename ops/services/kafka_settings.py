"""What is written into the `server.properties` of a local broker, with the reason for what is not Kafka's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.services.model import Layout
from ops.services.secure import SERVER_NAME, SecureFiles
from ops.services.state import LOOPBACK
from topics.access import ADMIN

_MAX_RECORD_BYTES = 32 * 2**20 + 2**20  # a record may be 32 MiB; the rest is for key, headers and batch framing

_COMMON = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
log.dirs={data}
# Few partitions of the internal topics, so that a broker starts quickly.
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=8
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=4
# Topics are made by the catalog only, and keep what they hold unless the catalog says otherwise.
auto.create.topics.enable=false
log.retention.ms=-1
offsets.retention.minutes=525600
message.max.bytes={max_record_bytes}
replica.fetch.max.bytes={max_record_bytes}
# Groups settle at once, and clients may ask for short sessions.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=500
# After a kill, a new broker waits until the session of the old one has ended, and the others take over its partitions
# as late as that: 4 s instead of 9 s.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
# A replica that is away blocks writes that want all in-sync ones only as long as this.
replica.lag.time.max.ms=10000
# Small: the defaults take 128 MiB of heap for the cleaner alone.
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""

_PLAIN = """\
listeners=BROKER://{host}:{client_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=BROKER://{host}:{client_port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
"""

# Clients show a password inside TLS; servers show each other a certificate, so no password of theirs is in this file.
_SECURE = """\
listeners=CLIENT://{host}:{client_port},BROKER://{host}:{broker_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=CLIENT://{host}:{client_port},BROKER://{host}:{broker_port}
listener.security.protocol.map=CLIENT:SASL_SSL,BROKER:SSL,CONTROLLER:SSL
inter.broker.listener.name=BROKER
listener.name.broker.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.client.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
# Nothing is allowed that no rule allows.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:CN={server_name};User:{admin}
"""


@dataclass(frozen=True, kw_only=True)
class BrokerPlace:
    """One broker among those of its cluster.

    Attributes:
        node: its number, from 1.
        ports: clients, (other brokers, when secure,) controllers.
        controllers: controller port of every node.
    """

    node: int
    ports: tuple[int, ...]
    controllers: Mapping[int, int]


def broker_properties(place: BrokerPlace, *, layout: Layout, data: Path, files: SecureFiles) -> str:
    """The text of `server.properties`. It holds no secret."""
    copies = min(3, layout.brokers)
    common = _COMMON.format(
        node=place.node,
        voters=",".join(f"{node}@{LOOPBACK}:{port}" for node, port in sorted(place.controllers.items())),
        data=data,
        copies=copies,
        in_sync=copies // 2 + 1,
        max_record_bytes=_MAX_RECORD_BYTES,
    )
    if not layout.secure:
        client_port, controller_port = place.ports
        return _PLAIN.format(host=LOOPBACK, client_port=client_port, controller_port=controller_port) + common
    client_port, broker_port, controller_port = place.ports
    return common + _SECURE.format(
        host=LOOPBACK,
        client_port=client_port,
        broker_port=broker_port,
        controller_port=controller_port,
        keystore=files.server,
        truststore=files.ca,
        server_name=SERVER_NAME,
        admin=ADMIN,
    )
