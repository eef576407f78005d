"""The life of one local server process: start with remembered ports, wait until it answers, stop by pid.

What differs between Kafka and Redis is behind `Server`; the order of steps is the same and is numbered in `start`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ops.services.model import ServiceInfo, ServicesError
from ops.services.process import ProcessId, is_running, stop, tail, wait_until
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


def ensure_started(server: Server, state_file: StateFile) -> list[str]:
    """Start the server unless it runs; return notes for the user. The caller holds the lock.

    Raises:
        ServicesError: it does not start, ends early or does not answer; the message quotes its log.
    """
    state = state_file.read(server.name)
    if state.process is not None and is_running(state.process):
        if _wait_for_answer(server, state, timeout_s=_START_S):
            return []
        message = f"{server.name} (pid {state.process.pid}) runs but does not answer at {server.address(state.ports)}"
        raise ServicesError(f"{message}; {tail(server.logs)}", hint="`rlweave services down`, then up again")
    return _start(server, state_file, remembered=state.ports)


def ensure_stopped(server: Server, state_file: StateFile) -> None:
    """Stop the server if it runs and remember that it does not. The caller holds the lock.

    Raises:
        ServicesError: the process cannot be ended.
    """
    state = state_file.read(server.name)
    if state.process is not None:
        stop(state.process)
    state_file.forget_process(server.name)


def observe(server: Server, state: ServiceState) -> ServiceInfo:
    """Report a local server as it is now; waits at most 5 s for an answer."""
    process = state.process if state.process is not None and is_running(state.process) else None
    return ServiceInfo(
        name=server.name,
        kind="local",
        address=server.address(state.ports) if state.ports else "",
        running=process is not None and _wait_for_answer(server, state, timeout_s=_ANSWER_S),
        pid=process.pid if process is not None else None,
        version=server.version(),
        log=server.logs[0],
    )


def _start(server: Server, state_file: StateFile, *, remembered: tuple[int, ...]) -> list[str]:
    """1. choose ports, 2. spawn, 3. remember the process, 4. wait for an answer; again when a port was taken."""
    notes: list[str] = []
    ports = remembered
    for _ in range(_NUM_TRIES):
        if taken := taken_ports(ports):
            notes.append(f"{server.name}: port {taken[0]} is used by another process, the address changes")
        if taken or len(ports) != server.num_ports:
            ports = free_ports(server.num_ports)
        state = ServiceState(ports=ports, process=server.spawn(ports))
        state_file.write(server.name, state)
        if _wait_for_answer(server, state, timeout_s=_START_S):
            return notes
        ensure_stopped(server, state_file)
        if not taken_ports(ports):
            break
    raise ServicesError(_why_not_started(server), hint="`rlweave doctor` shows what this machine lacks")


def _wait_for_answer(server: Server, state: ServiceState, *, timeout_s: float) -> bool:
    """Wait until the server answers (True), its process ends or the time is over (False)."""
    answers, process = server.probe(state), state.process
    ended = False

    def settled() -> bool:
        nonlocal ended
        ended = process is None or not is_running(process)
        return ended or answers()

    return wait_until(settled, timeout_s=timeout_s) and not ended


def _why_not_started(server: Server) -> str:
    return f"{server.name} did not start (it ended, or did not answer for {_START_S:g} s); {tail(server.logs)}"
