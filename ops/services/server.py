"""The life of local server processes: start with remembered ports, wait until they answer, stop by pid.

What differs between Kafka and Redis is behind `Server`; servers that need each other (the brokers of a cluster) are
started together. The order of steps is the same for all and is numbered in `_start`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ops.services.model import ServiceInfo, ServicesError
from ops.services.process import ProcessId, is_running, stop_all, tail, wait_until
from ops.services.state import ServiceState, StateFile, free_ports, taken_ports

_START_S = 60.0  # 1.5 s on two idle cores; the rest is for a busy machine and for log recovery
_ANSWER_S = 5.0
_NUM_TRIES = 3  # a port can be taken between choosing it and binding it


class Server(Protocol):
    """A kind of server that can be run on this machine."""

    @property
    def name(self) -> str:
        """Key in the state file, and the word used in messages."""
        ...

    @property
    def num_ports(self) -> int:
        """How many loopback ports one server needs."""
        ...

    @property
    def logs(self) -> tuple[Path, ...]:
        """Log files, the one to read first in front."""
        ...

    def prepare(self) -> None:
        """Make what must be there before the first start; called with the ports of all servers remembered."""
        ...

    def spawn(self, ports: tuple[int, ...]) -> ProcessId:
        """Write the configuration and start the process, without waiting for it."""
        ...

    def address(self, ports: tuple[int, ...]) -> str:
        """What clients connect to."""
        ...

    def version(self) -> str | None:
        """Version of the server that would be started here; None when nothing is installed."""
        ...

    def probe(self, state: ServiceState) -> Callable[[], bool]:
        """Return a check, of at most a second, that the server answers and is this one, not another on its port."""
        ...


def ensure_started(servers: Sequence[Server], state_file: StateFile, *, may_move: bool = True) -> list[str]:
    """Start those of the servers that do not run; return notes for the user. The caller holds the lock.

    Args:
        may_move: a port that is taken by now may be replaced, if none of the servers runs.

    Raises:
        ServicesError: one does not start, ends early or does not answer; the message quotes its log.
    """
    alive = [server for server in servers if _is_alive(state_file.read(server.name))]
    down = [server for server in servers if server not in alive]
    notes = _start(down, state_file, may_move=may_move and not alive) if down else []
    for server in alive:
        state = state_file.read(server.name)
        if not _wait_for_answer(server, state, timeout_s=_START_S):
            pid = state.process.pid if state.process is not None else "gone"
            message = f"{server.name} (pid {pid}) runs but does not answer at {server.address(state.ports)}"
            raise ServicesError(f"{message}; {tail(server.logs)}", hint="`rlweave services down`, then up again")
    return notes


def ensure_stopped(servers: Sequence[Server], state_file: StateFile) -> None:
    """Stop those of the servers that run and remember that they do not. The caller holds the lock.

    Raises:
        ServicesError: a process cannot be ended.
    """
    processes = [state_file.read(server.name).process for server in servers]
    stop_all([process for process in processes if process is not None])
    for server in servers:
        state_file.forget_process(server.name)


def observe(server: Server, state: ServiceState) -> ServiceInfo:
    """Report a local server as it is now; waits at most 5 s for an answer."""
    process = state.process if _is_alive(state) else None
    return ServiceInfo(
        name=server.name,
        kind="local",
        address=server.address(state.ports) if state.ports else "",
        running=process is not None and _wait_for_answer(server, state, timeout_s=_ANSWER_S),
        pid=process.pid if process is not None else None,
        version=server.version(),
        log=server.logs[0],
    )


def _start(servers: Sequence[Server], state_file: StateFile, *, may_move: bool) -> list[str]:
    """1. choose ports, 2. prepare, 3. spawn and remember, 4. wait for answers; again when a port was taken.

    Args:
        may_move: ports may change; not while a server that knows them is at work.
    """
    notes: list[str] = []
    for _ in range(_NUM_TRIES):
        notes += _choose_ports(servers, state_file, may_move=may_move)
        for server in servers:
            server.prepare()
        for server in servers:
            state = state_file.read(server.name)
            state_file.write(server.name, ServiceState(ports=state.ports, process=server.spawn(state.ports)))
        silent = [
            server
            for server in servers
            if not _wait_for_answer(server, state_file.read(server.name), timeout_s=_START_S)
        ]
        if not silent:
            return notes
        ensure_stopped(servers, state_file)
        if not may_move or not any(taken_ports(state_file.read(server.name).ports) for server in silent):
            break
    raise ServicesError(_why_not_started(silent[0]), hint="`rlweave doctor` shows what this machine lacks")


def _choose_ports(servers: Sequence[Server], state_file: StateFile, *, may_move: bool) -> list[str]:
    """Remember free ports for each server: the old ones where nobody else has them by now."""
    notes: list[str] = []
    moving: list[Server] = []
    for server in servers:
        ports = state_file.read(server.name).ports
        taken = taken_ports(ports)
        if taken and not may_move:
            raise ServicesError(
                f"{server.name}: port {taken[0]} is used by another process, and the other servers know it",
                hint="end that process, or `rlweave services down`, then up again",
            )
        if taken:
            notes.append(f"{server.name}: port {taken[0]} is used by another process, the address changes")
        if taken or len(ports) != server.num_ports:
            moving.append(server)
    found = list(free_ports(sum(server.num_ports for server in moving)))
    for server in moving:
        ports, found = tuple(found[: server.num_ports]), found[server.num_ports :]
        state_file.write(server.name, replace(state_file.read(server.name), ports=ports))
    return notes


def _is_alive(state: ServiceState) -> bool:
    return state.process is not None and is_running(state.process)


def _wait_for_answer(server: Server, state: ServiceState, *, timeout_s: float) -> bool:
    """Wait until the server answers (True), its process ends or the time is over (False)."""
    answers = server.probe(state)
    ended = False

    def settled() -> bool:
        nonlocal ended
        ended = not _is_alive(state)
        return ended or answers()

    return wait_until(settled, timeout_s=timeout_s) and not ended


def _why_not_started(server: Server) -> str:
    return f"{server.name} did not start (it ended, or did not answer for {_START_S:g} s); {tail(server.logs)}"
