"""What the local services are told and what they say: settings, reports and the error of this boundary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.errors import RlweaveError

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
    """

    state_dir: Path
    kafka: str | None = None
    redis: str | None = None


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
    """Both services, plus notes a person should read (for example: a remembered port was taken)."""

    kafka: ServiceInfo
    redis: ServiceInfo
    notes: tuple[str, ...] = ()

    @property
    def kafka_bootstrap(self) -> str:
        """Bootstrap address, `host:port`; empty when Kafka was never started."""
        return self.kafka.address

    @property
    def redis_url(self) -> str:
        """`redis://host:port/db`; empty when Redis was never started."""
        return self.redis.address

    @property
    def running(self) -> bool:
        """True when both services answer."""
        return self.kafka.running and self.redis.running
