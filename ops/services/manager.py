"""Start, stop and report the services of one state directory: the entry points of `rlweave services`.

Each call holds the lock of the state directory, so two concurrent `services_up` start one set and return the same
addresses. A service given as an address is never started or stopped, only asked whether it answers. How many brokers
there are, and whether they are secure, is fixed by the first start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ops.services.kafka import brokers, check_kafka
from ops.services.model import Layout, ServiceInfo, ServicesError, ServicesInfo, ServicesSettings
from ops.services.process import is_running
from ops.services.secure import ensure_secure_files, secure_files
from ops.services.server import Server, ensure_started, ensure_stopped, observe
from ops.services.state import StateFile
from ops.services.valkey import check_redis, redis_servers
from pipeline.secrets import check_no_password
from schemas.errors import SettingsError

MAX_BROKERS = 9
_EXTERNAL_S = 4.0  # per service, so that both together fail within 10 s


def services_up(settings: ServicesSettings) -> ServicesInfo:
    """Start what does not run yet, wait until it answers, and return the addresses. Idempotent.

    Ports and data of an earlier start are used again; a note says so when a port had to change. The first start of a
    machine resolves the broker's jars (seconds to minutes).

    Raises:
        ServicesError: something is missing, does not start, or does not answer; the message quotes the log.
    """
    state_file = _state_file(settings)
    with state_file.locked():
        layout = _layout(settings, state_file)
        if state_file.read_layout() is None:
            state_file.write_layout(layout)
        if layout.secure:
            ensure_secure_files(state_file.directory)
        notes = [
            *_up("kafka", brokers(state_file, layout), state_file=state_file, external=settings.kafka),
            *_up("redis", redis_servers(state_file, layout), state_file=state_file, external=settings.redis),
        ]
        info = _observe_all(settings)
    return replace(info, notes=tuple(notes))


def services_down(settings: ServicesSettings) -> ServicesInfo:
    """Stop the local services of this state directory; data and ports are kept. Idempotent.

    Raises:
        ServicesError: a process could not be ended.
    """
    state_file = _state_file(settings)
    with state_file.locked():
        layout = _layout(settings, state_file)
        for servers in (brokers(state_file, layout), redis_servers(state_file, layout)):
            ensure_stopped(servers, state_file)
        return _observe_all(settings)


def services_status(settings: ServicesSettings) -> ServicesInfo:
    """Report both services as they are now; starts nothing, raises nothing about a service that does not answer.

    Raises:
        ServicesError: the state file is damaged, or a setting is wrong.
    """
    return _observe_all(settings)


def _state_file(settings: ServicesSettings) -> StateFile:
    """The state of these services.

    Raises:
        ServicesError: the address of Redis holds a password, which would get into the state and into reports.
    """
    try:
        check_no_password(settings.redis or "")
    except SettingsError as error:
        raise ServicesError(error.message, hint="take it out, and set RLWEAVE_REDIS_PASSWORD") from None
    return StateFile(settings.state_dir.expanduser().absolute())


def _layout(settings: ServicesSettings, state_file: StateFile) -> Layout:
    """What is there, or will be.

    Raises:
        ServicesError: something else is asked for than what is there, or than what can be.
    """
    known = state_file.read_layout()
    if settings.brokers is not None and not 1 <= settings.brokers <= MAX_BROKERS:
        raise ServicesError(f"{settings.brokers} brokers cannot be started here; allowed are 1 to {MAX_BROKERS}")
    if known is None:
        return Layout(brokers=1 if settings.brokers is None else settings.brokers, secure=settings.secure is True)
    differs = settings.brokers not in (None, known.brokers) or settings.secure not in (None, known.secure)
    if differs:
        what = f"{known.brokers} broker(s), {'secure' if known.secure else 'not secure'}"
        raise ServicesError(
            f"the services in {state_file.directory} were made with {what}, which cannot change",
            hint="choose another --state-dir, or delete this directory after `rlweave services down --state-dir ...`",
        )
    return known


def _up(name: str, servers: Sequence[Server], *, state_file: StateFile, external: str | None) -> list[str]:
    if external is None:
        return ensure_started(servers, state_file)
    for server in servers:
        process = state_file.read(server.name).process
        if process is not None and is_running(process):
            message = f"a local {server.name} (pid {process.pid}) already runs in {state_file.directory}"
            raise ServicesError(f"{message}, {external} was given", hint=_down_first(state_file.directory))
    _check_external(name, external)
    state_file.write(name, replace(state_file.read(name), process=None, external=external))
    return []


def _down_first(directory: Path) -> str:
    return f"`rlweave services down --state-dir {directory}` first, or choose another --state-dir"


def _check_external(name: str, address: str) -> str | None:
    """Raise ServicesError when the server does not answer; return its version where it can be told."""
    if name == "redis":
        return check_redis(address, timeout_s=_EXTERNAL_S)
    check_kafka(address, timeout_s=_EXTERNAL_S)
    return None


def _observe_all(settings: ServicesSettings) -> ServicesInfo:
    state_file = _state_file(settings)
    layout = _layout(settings, state_file)
    kafka, each = _observe("kafka", brokers(state_file, layout), state_file=state_file, external=settings.kafka)
    redis, _ = _observe("redis", redis_servers(state_file, layout), state_file=state_file, external=settings.redis)
    local = "local" in (kafka.kind, redis.kind)
    return ServicesInfo(
        kafka=kafka,
        redis=redis,
        brokers=each if len(each) > 1 else (),
        access=secure_files(state_file.directory).access if layout.secure and local else None,
    )


def _observe(
    name: str, servers: Sequence[Server], *, state_file: StateFile, external: str | None
) -> tuple[ServiceInfo, tuple[ServiceInfo, ...]]:
    """The service as a whole, and each of its servers."""
    known = state_file.read(name).external if external is None else external
    if known is not None:
        return _observe_external(name, known), ()
    each = tuple(observe(server, state_file.read(server.name)) for server in servers)
    if name == "kafka" and len(each) > 1:
        pids = {info.pid for info in each}
        whole = replace(
            each[0],
            name=name,
            address=",".join(info.address for info in each if info.address),
            running=all(info.running for info in each),
            pid=None if None in pids else each[0].pid,
        )
        return whole, each
    return replace(each[-1], name=name, running=all(info.running for info in each), pid=each[0].pid), ()


def _observe_external(name: str, address: str) -> ServiceInfo:
    try:
        version = _check_external(name, address)
    except ServicesError:
        return ServiceInfo(name=name, kind="external", address=address, running=False)
    return ServiceInfo(name=name, kind="external", address=address, running=True, version=version)
