"""What the local services are told and what they say: settings, reports and the error of this boundary."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from schemas.errors import RlweaveError


def _new_cluster_id() -> str:
    """16 random bytes in 22 characters; a leading "-" would be read as an option."""
    return "r" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


ServiceKind = Literal["local", "external"]


class ServicesError(RlweaveError):
    """A local service could not be started, stopped or reached."""


@dataclass(frozen=True)
class ServicesSettings:
    """Where the local services keep their files, and which services are someone else's.

    Attributes:
        state_dir: holds `services.json`, data and logs; two directories are two independent sets of services.
        kafka: bootstrap address (`host:port[,host:port]`) of a broker that is already there; None starts one.
        redis: URL (`redis://host:port/db`) of a server that is already there; None starts one.
        brokers: local Kafka brokers; None: as many as before, one at first.
        secure: with TLS, passwords and access rules; None: as before, without at first.
    """

    state_dir: Path
    kafka: str | None = None
    redis: str | None = None
    brokers: int | None = None
    secure: bool | None = None


@dataclass(frozen=True)
class Layout:
    """What the local services of a state directory are made of; fixed by the first start.

    Attributes:
        brokers: Kafka brokers, each a controller too.
        secure: TLS and passwords for clients, access rules that deny by default.
        cluster_id: what the brokers' data directories are formatted with.
    """

    brokers: int = 1
    secure: bool = False
    cluster_id: str = field(default_factory=_new_cluster_id)


@dataclass(frozen=True)
class ServicesAccess:
    """What a client of secure local services needs.

    Attributes:
        ca_file: PEM certificate that the servers' certificates are checked against.
        credentials_dir: `<role>.user` and `<role>.password` per role, for Kafka.
        redis_password_file: the password of Redis.
    """

    ca_file: Path
    credentials_dir: Path
    redis_password_file: Path


@dataclass(frozen=True)
class ServiceInfo:
    """One service as observed now.

    Attributes:
        name: `kafka` or `redis`.
        kind: `local` when this state directory owns the process, `external` when only the address is known.
        address: bootstrap address or URL; empty when the service was never started.
        running: it answered (external), or its process lives and answers (local).
        pid: process id of a running local service.
        version: server version where it can be told, else None.
        log: file or directory to read when it misbehaves; None for an external service.
    """

    name: str
    kind: ServiceKind
    address: str
    running: bool
    pid: int | None = None
    version: str | None = None
    log: Path | None = None


@dataclass(frozen=True)
class ServicesInfo:
    """Both services, plus notes a person should read (for example: a remembered port was taken).

    Attributes:
        kafka: the cluster as a whole; it runs when every broker does.
        redis: the server.
        notes: for people.
        brokers: each broker, when there are several.
        access: what clients need; None: nothing.
    """

    kafka: ServiceInfo
    redis: ServiceInfo
    notes: tuple[str, ...] = ()
    brokers: tuple[ServiceInfo, ...] = ()
    access: ServicesAccess | None = None

    @property
    def kafka_bootstrap(self) -> str:
        """Bootstrap address, `host:port[,host:port]`; empty when Kafka was never started."""
        return self.kafka.address

    @property
    def redis_url(self) -> str:
        """`redis://host:port/db` (`rediss://` when secure); empty when Redis was never started."""
        return self.redis.address

    @property
    def running(self) -> bool:
        """True when both services answer."""
        return self.kafka.running and self.redis.running
