"""The state file of one set of services, the lock around it, and free ports.

`services.json` is the only record of what runs: it is replaced atomically, right after each process is spawned, so
that a starter that dies leaves a file from which the process can be stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from ops.services.model import Layout, ServicesError
from ops.services.process import ProcessId

LOOPBACK = "127.0.0.1"
_FIRST_PORT = 10_000  # below are well-known ones
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LAYOUT = "layout"  # beside the services' names in the file
_LOCK_POLL_S = 0.05
_LOCK_S = 180.0  # longer than the first start on a slow machine, jars included in most networks


@dataclass(frozen=True)
class ServiceState:
    """What is remembered of one service between calls.

    Attributes:
        ports: loopback ports of the local service, in the order that service uses them; kept across restarts.
        process: the local process, None when it was stopped.
        external: address of someone else's server; None for a local service.
    """

    ports: tuple[int, ...] = ()
    process: ProcessId | None = None
    external: str | None = None

    @classmethod
    def from_json(cls, fields: dict[str, object]) -> Self:
        """Read one service's part of the file.

        Raises:
            TypeError, ValueError, KeyError: the content is not of this form.
        """
        ports, process, external = fields["ports"], fields["process"], fields["external"]
        if not isinstance(ports, list) or not isinstance(process, dict | None):
            raise TypeError("ports must be a list and process an object or null")
        return cls(
            ports=tuple(int(port) for port in ports),
            process=ProcessId(pid=int(process["pid"]), started=str(process["started"])) if process else None,
            external=None if external is None else str(external),
        )


class StateFile:
    """Reads and writes `services.json`; use inside `locked()` when a change follows from what was read."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir
        self._path = state_dir / "services.json"

    def read(self, name: str) -> ServiceState:
        """Return what is remembered of service `name`; an empty state when nothing is.

        Raises:
            ServicesError: the file is damaged.
        """
        fields = self._read_all().get(name)
        if fields is None:
            return ServiceState()
        try:
            return ServiceState.from_json(fields)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def write(self, name: str, state: ServiceState) -> None:
        """Remember `state` for service `name`, replacing the file atomically."""
        self._write_all({**self._read_all(), name: asdict(state)})

    def _write_all(self, content: dict[str, dict[str, object]]) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(self._path)

    def read_layout(self) -> Layout | None:
        """What the services here are made of; None before the first start.

        Raises:
            ServicesError: the file is damaged.
        """
        content = self._read_all()
        fields = content.get(_LAYOUT)
        if fields is None:
            return Layout() if content else None  # a file of a version that knew one layout only
        try:
            return Layout(
                brokers=int(str(fields["brokers"])),
                secure=fields["secure"] is True,
                cluster_id=str(fields["cluster_id"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def write_layout(self, layout: Layout) -> None:
        """Remember what the services are made of."""
        self._write_all({**self._read_all(), _LAYOUT: asdict(layout)})

    def forget_process(self, name: str) -> None:
        """Remember that service `name` does not run; its ports stay, an external address does not."""
        self.write(name, replace(self.read(name), process=None, external=None))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this state directory, creating the directory first.

        Raises:
            ServicesError: another process holds the lock for too long, or a file below cannot be read or written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with file_lock(self.directory / "services.lock", timeout_s=_LOCK_S):
                yield
        except OSError as error:
            raise ServicesError(
                f"cannot use {error.filename or self.directory}: {error.strerror}",
                hint="is the disk full or read-only? another directory can be chosen with --state-dir",
            ) from error

    def _read_all(self) -> dict[str, dict[str, object]]:
        try:
            content = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ServicesError(
                f"cannot read {self._path}: {error.strerror}", hint="choose another directory with --state-dir"
            ) from error
        except ValueError as error:
            raise self._damaged(error) from error
        return content if isinstance(content, dict) else {}

    def _damaged(self, error: Exception) -> ServicesError:
        return ServicesError(
            f"{self._path} is damaged: {error!r}", hint="stop the services by their pids, then delete the file"
        )


@contextmanager
def file_lock(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path` between processes; the kernel drops it when the holder dies.

    Raises:
        ServicesError: someone else held it for `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ServicesError(
                        f"{path} has been locked by another process for {timeout_s:g} s",
                        hint="another `rlweave services` call is at work here; wait for it or stop it",
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield


def free_ports(num_ports: int) -> tuple[int, ...]:
    """Return distinct loopback ports that nobody listened on a moment ago.

    Below the system's range for outgoing connections where there are as many: a port in that range may be taken by
    anybody's connection while its server is being restarted.
    """
    choice = range(_FIRST_PORT, _first_outgoing_port())
    found: list[int] = []
    for port in random.SystemRandom().sample(choice, k=len(choice)):
        if len(found) == num_ports:
            break
        if _can_bind(port):
            found.append(port)
    return (*found, *_any_ports(num_ports - len(found)))


def _any_ports(num_ports: int) -> tuple[int, ...]:
    """Those that the system chooses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return tuple(int(each.getsockname()[1]) for each in sockets)


def _first_outgoing_port() -> int:
    """Lowest local port that the system gives to outgoing connections; where it cannot be read, nothing is below it."""
    try:
        return int(_OUTGOING_PORTS.read_text().split()[0])
    except OSError:
        return _FIRST_PORT


def taken_ports(ports: Sequence[int]) -> tuple[int, ...]:
    """Return those of `ports` that something on this machine listens on."""
    return tuple(port for port in ports if not _can_bind(port))


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # Without this, connections of a server that just ended (TIME_WAIT) would look like a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
