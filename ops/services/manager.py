"""Start, stop and report the services of one state directory: the entry points of `rlweave services`.

Each call holds the lock of the state directory, so two concurrent `services_up` start one set and return the same
addresses. A service given as an address is never started or stopped, only asked whether it answers.
"""

from __future__ import annotations

from dataclasses import replace

from ops.services.kafka import KafkaServer, check_kafka
from ops.services.model import ServiceInfo, ServicesError, ServicesInfo, ServicesSettings
from ops.services.process import is_running
from ops.services.server import Server, ensure_started, ensure_stopped, observe
from ops.services.state import ServiceState, StateFile
from ops.services.valkey import ValkeyServer, check_redis

_EXTERNAL_S = 4.0  # per service, so that both together fail within 10 s


def services_up(settings: ServicesSettings) -> ServicesInfo:
    """Start what does not run yet, wait until it answers, and return the addresses. Idempotent.

    Ports and data of an earlier start are used again; a note says so when a port had to change. The first start of a
    machine resolves the broker's jars (seconds to minutes).

    Raises:
        ServicesError: something is missing, does not start, or does not answer; the message quotes the log.
    """
    state_file, (kafka, redis) = _open(settings)
    with state_file.locked():
        notes = [
            *_up(kafka, state_file, external=settings.kafka),
            *_up(redis, state_file, external=settings.redis),
        ]
        info = _observe_all(settings)
    return replace(info, notes=tuple(notes))


def services_down(settings: ServicesSettings) -> ServicesInfo:
    """Stop the local services of this state directory; data and ports are kept. Idempotent.

    Raises:
        ServicesError: a process could not be ended.
    """
    state_file, servers = _open(settings)
    with state_file.locked():
        for server in servers:
            ensure_stopped(server, state_file)
        return _observe_all(settings)


def services_status(settings: ServicesSettings) -> ServicesInfo:
    """Report both services as they are now; starts nothing, raises nothing about a service that does not answer.

    Raises:
        ServicesError: the state file is damaged.
    """
    return _observe_all(settings)


def _open(settings: ServicesSettings) -> tuple[StateFile, tuple[Server, Server]]:
    state_dir = settings.state_dir.expanduser().absolute()
    return StateFile(state_dir), (KafkaServer(state_dir), ValkeyServer(state_dir))


def _up(server: Server, state_file: StateFile, *, external: str | None) -> list[str]:
    state = state_file.read(server.name)
    if external is None:
        return ensure_started(server, state_file)
    if state.process is not None and is_running(state.process):
        message = f"a local {server.name} (pid {state.process.pid}) already runs in {state_file.directory}"
        raise ServicesError(f"{message}, {external} was given", hint="`rlweave services down` first")
    _check_external(server.name, external)
    state_file.write(server.name, replace(state, process=None, external=external))
    return []


def _check_external(name: str, address: str) -> str | None:
    """Raise ServicesError when the server does not answer; return its version where it can be told."""
    if name == "redis":
        return check_redis(address, timeout_s=_EXTERNAL_S)
    check_kafka(address, timeout_s=_EXTERNAL_S)
    return None


def _observe_all(settings: ServicesSettings) -> ServicesInfo:
    state_file, (kafka, redis) = _open(settings)
    return ServicesInfo(
        kafka=_observe(kafka, state_file.read(kafka.name), external=settings.kafka),
        redis=_observe(redis, state_file.read(redis.name), external=settings.redis),
    )


def _observe(server: Server, state: ServiceState, *, external: str | None) -> ServiceInfo:
    address = external if external is not None else state.external
    if address is None:
        return observe(server, state)
    try:
        version = _check_external(server.name, address)
    except ServicesError:
        return ServiceInfo(name=server.name, kind="external", address=address, running=False)
    return ServiceInfo(name=server.name, kind="external", address=address, running=True, version=version)
