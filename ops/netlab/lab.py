"""Makes a laboratory network and takes it away again.

Role: `with open_lab(plan) as lab:` gives hosts that processes can be started on, whose links are shaped and counted.
Invariants: whatever ends the block (its end, an error, Ctrl-C, SIGTERM) ends the processes that were started through
the lab, by their ids, and removes its namespaces and folder; what a killed process left is removed by the next one.
Failure: `NetlabError` saying what is missing on this machine.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ops.netlab import leftovers, plan
from ops.netlab.counters import LinkBytes, sent_bytes
from ops.netlab.tools import NetlabError, batch, require_tools

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the lab's own folder is made in it
_END_LIMIT_S = 5.0
_SPARE = 1.25  # of the room that is asked for


class Lab:
    """A network that is there. Made by `open_lab`."""

    def __init__(self, lab_plan: plan.LabPlan, *, name: str, folder: Path) -> None:
        self.plan = lab_plan
        self.folder = folder
        self.namespaces = plan.namespace_names(lab_plan, prefix=name)
        self._processes: list[subprocess.Popen[bytes]] = []

    def build(self) -> None:
        """Make it.

        Raises:
            NetlabError: a command failed.
        """
        batch("ip", None, lines=[f"netns add {namespace}" for namespace in self.namespaces.values()])
        batch("ip", self._hub, lines=plan.hub_lines(self.plan, namespaces=self.namespaces))
        batch("tc", self._hub, lines=plan.hub_shapes(self.plan))
        for host in self.plan.hosts:
            namespace = self.namespaces[host.name]
            batch("ip", namespace, lines=plan.host_lines(self.plan, host.name))
            batch("tc", namespace, lines=[plan.shape_line(plan.HOST_DEVICE, rate_mbit=self.plan.rate_mbit)])

    def start(self, host: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process on a host, with pipes to its input and output; the lab ends it at the latest.

        Raises:
            NetlabError: there is no such host.
        """
        self.plan.index(host)
        process = subprocess.Popen(
            plan.exec_argv(self.namespaces[host], argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,  # Ctrl-C is the lab's to handle
        )
        self._processes.append(process)
        return process

    def shape(self, host: str, *, rate_mbit: float) -> None:
        """Change the rate of a host's link, both ways.

        Raises:
            NetlabError: there is no such host, or `tc` failed.
        """
        batch("tc", self._hub, lines=[plan.shape_line(self.plan.port(host), rate_mbit=rate_mbit)])
        batch("tc", self.namespaces[host], lines=[plan.shape_line(plan.HOST_DEVICE, rate_mbit=rate_mbit)])

    def shape_between(self, *, rate_mbit: float) -> None:
        """Change the rate of the link between two domains, both ways.

        Raises:
            NetlabError: `tc` failed.
        """
        batch("tc", self._hub, lines=plan.between_shapes(rate_mbit=rate_mbit))

    def plug(self, host: str, *, domain: str) -> None:
        """Put a host's cable into the bridge of a domain.

        Raises:
            NetlabError: there is no such host, or `ip` failed.
        """
        batch("ip", self._hub, lines=[f"link set {self.plan.port(host)} master {self.plan.bridge(domain)}"])

    def cut(self, host: str) -> None:
        """Take a host's cable out; `plug` puts it back.

        Raises:
            NetlabError: there is no such host, or `ip` failed.
        """
        batch("ip", self._hub, lines=[f"link set {self.plan.port(host)} nomaster"])

    def counters(self) -> LinkBytes:
        """What went over each link so far.

        Raises:
            NetlabError: `tc` failed.
        """
        hub = sent_bytes(self._hub)
        names = [host.name for host in self.plan.hosts]
        return LinkBytes(
            up={name: self.sent(name) for name in names},
            down={name: hub[self.plan.port(name)] for name in names},
            crossed={domain: hub.get(plan.between(at), 0) for at, domain in enumerate(self.plan.domains)},
        )

    def sent(self, host: str) -> int:
        """Bytes a host sent so far; cheaper than all counters.

        Raises:
            NetlabError: `tc` failed.
        """
        return sent_bytes(self.namespaces[host])[plan.HOST_DEVICE]

    def crossed(self, domain: str) -> int:
        """Bytes that left a domain for the other one so far.

        Raises:
            NetlabError: `tc` failed.
        """
        return sent_bytes(self._hub)[plan.between(self.plan.domains.index(domain))]

    def end_processes(self) -> None:
        """End every process that was started, and wait until it is gone."""
        for process in self._processes:
            process.kill()  # does nothing to one that has ended
        for process in self._processes:
            process.wait(_END_LIMIT_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()

    @property
    def _hub(self) -> str:
        return self.namespaces["hub"]


@contextmanager
def open_lab(lab_plan: plan.LabPlan, *, room_bytes: int = 0) -> Iterator[Lab]:
    """Make a network, and take it away at the end of the block.

    Args:
        room_bytes: how much its folder has to hold; it is in memory when there is room, else on disk.

    Raises:
        NetlabError: this machine cannot do it, or the plan cannot be made.
    """
    lab_plan.check()
    require_tools()
    parent = _parent(room_bytes)
    for place in {parent, Path(tempfile.gettempdir())}:
        leftovers.remove_leftovers(place)
    name = leftovers.new_name()
    lab = Lab(lab_plan, name=name, folder=parent / name)
    with _sigterm_raises():
        try:
            lab.folder.mkdir(mode=0o700)
            lab.build()
            yield lab
        finally:
            with _undisturbed():
                lab.end_processes()
                leftovers.remove_named(name)
                shutil.rmtree(lab.folder, ignore_errors=True)


def _parent(room_bytes: int) -> Path:
    """Memory, when there is room; else the disk."""
    wanted_bytes = round(room_bytes * _SPARE)
    if _SHARED_MEMORY.is_dir() and min(shutil.disk_usage(_SHARED_MEMORY).free, _memory_bytes()) >= wanted_bytes:
        return _SHARED_MEMORY
    disk = Path(tempfile.gettempdir())
    free_bytes = shutil.disk_usage(disk).free
    if free_bytes < wanted_bytes:
        raise NetlabError(
            f"{wanted_bytes} bytes are needed in {_SHARED_MEMORY} or {disk}, {disk} has {free_bytes}; nothing was made",
            hint="free some space, or set TMPDIR",
        )
    return disk


def _memory_bytes() -> int:
    """Memory that is available: what tmpfs may hold is no promise that it is there."""
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C does. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let nothing interrupt the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
