"""All that leaves a host through one process, by class: the peer process is it, as it sends the weights.

Role: the gate, and what it needs to know, for the threads of that process.
Data in: connections while they send weights, pieces of other classes. Data out: waits; bytes by class, and the seconds
that classes stood back, to whoever counts them.
Invariants: safe to use from several threads. Bytes of weights under way are those that the receiver's system has
acknowledged (`TCP_INFO`, Linux), so a body that is sent by the kernel is seen while it goes.
Failure: none; what cannot be measured is unknown.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pipeline.traffic.classes import BACKGROUND, TrafficClass
from pipeline.traffic.flow import IDLE, Flow, FlowWatch
from pipeline.traffic.gate import Gate
from pipeline.traffic.permit import Permit
from topics.clock import Clock, SystemClock

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

Connection: TypeAlias = "socket.socket | TransportSocket"

_TCP_INFO = struct.Struct("=24xI92xQ")  # of struct tcp_info: tcpi_unacked (packets), tcpi_bytes_acked
_HAS_TCP_INFO = sys.platform == "linux"
_LOOK_S = 0.002  # a measurement is that old at most
_MANY_LINKS = 256
_DRAIN_S = 1.0  # what is unacknowledged so long after the last body is for nobody any more


@dataclass
class _Link:
    """A connection that has carried weights."""

    connection: Connection
    first_bytes: int  # acknowledged before the first body
    last_bytes: int


class HostSender:
    """See the module.

    Args:
        permit: in force at first.
        managed: whether background classes stand back at all.
        phase: of this host's learner now.
        on_sent: gets class and bytes of each piece.
        on_held_up: gets class and seconds.
    """

    def __init__(
        self,
        permit: Permit,
        *,
        managed: bool = True,
        phase: Callable[[], str] = lambda: "",
        clock: Clock | None = None,
        on_sent: Callable[[TrafficClass, int], None] = lambda _traffic, _bytes: None,
        on_held_up: Callable[[TrafficClass, float], None] = lambda _traffic, _seconds: None,
    ) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._managed = managed
        self._on_sent = on_sent
        self._on_held_up = on_held_up
        self._lock = threading.Lock()
        self._watch = FlowWatch()
        self._looked: tuple[float, Flow] = (float("-inf"), IDLE)
        self._links: dict[int, _Link] = {}  # by id of the connection
        self._look_at_links = _MANY_LINKS
        self._num_sending = 0
        self._closed_bytes = 0  # of connections that are gone
        self._ended_s = float("-inf")  # the last body
        self._gate = Gate(permit, clock=self._clock, flow=self._flow, phase=phase)
        self._told_s = dict.fromkeys(BACKGROUND, 0.0)

    @property
    def permit(self) -> Permit:
        """In force."""
        return self._gate.permit

    def replace(self, permit: Permit) -> None:
        """Another permission holds from now on."""
        with self._lock:
            self._gate.permit = permit

    def governs(self, traffic: TrafficClass) -> bool:
        """Whether pieces of a class have to ask."""
        return self._managed and (traffic in BACKGROUND or self._gate.permit.is_limited(traffic))

    def ask(self, traffic: TrafficClass, num_bytes: int) -> float:
        """Seconds after which to ask again; 0: the piece is booked, send it."""
        if self.governs(traffic):
            with self._lock:
                wait_s = self._gate.ask(traffic, num_bytes)
                self._tell_held_up()
            return wait_s
        return 0.0

    def sent(self, traffic: TrafficClass, num_bytes: int) -> None:
        """Bytes of a class have left."""
        self._on_sent(traffic, num_bytes)

    def pass_piece(self, traffic: TrafficClass, num_bytes: int, *, stop: threading.Event) -> bool:
        """Wait until a piece may be sent; False: `stop` was set first. For threads."""
        while not stop.is_set():
            wait_s = self.ask(traffic, num_bytes)
            if wait_s == 0:
                return True
            stop.wait(wait_s)
        return False

    @contextmanager
    def sending_weights(self, connection: Connection | None) -> Iterator[None]:
        """The body of a chunk is sent inside."""
        with self._lock:
            self._num_sending += 1
            if len(self._links) >= self._look_at_links:  # nobody may have asked for a long time
                self._look()
                self._look_at_links = max(_MANY_LINKS, 2 * len(self._links))
            if connection is not None and id(connection) not in self._links and (seen := _seen(connection)) is not None:
                self._links[id(connection)] = _Link(connection, first_bytes=seen[0], last_bytes=seen[0])
        try:
            yield
        finally:
            with self._lock:
                self._num_sending -= 1
                self._ended_s = self._clock.monotonic()

    def _flow(self) -> Flow:
        now_s = self._clock.monotonic()
        looked_s, flow = self._looked
        if now_s - looked_s >= _LOOK_S:
            num_bytes, is_draining = self._look()
            flow = self._watch.look(
                now_s,
                num_sending=self._num_sending,
                num_bytes=num_bytes if _HAS_TCP_INFO else None,
                is_draining=is_draining and now_s - self._ended_s < _DRAIN_S,
            )
            self._looked = (now_s, flow)
        return flow

    def _look(self) -> tuple[int, bool]:
        """Bytes acknowledged on all connections, and whether some are under way."""
        total, is_draining = self._closed_bytes, False
        for key, link in list(self._links.items()):
            seen = _seen(link.connection)
            if seen is None:
                self._closed_bytes += link.last_bytes - link.first_bytes
                del self._links[key]
            else:
                link.last_bytes = seen[0]
                is_draining |= seen[1] > 0
            total += link.last_bytes - link.first_bytes
        return total, is_draining

    def _tell_held_up(self) -> None:
        for traffic, seconds in self._gate.held_up_s.items():
            more_s = seconds - self._told_s[traffic]
            if more_s > 0:
                self._told_s[traffic] = seconds
                self._on_held_up(traffic, more_s)


def _seen(connection: Connection) -> tuple[int, int] | None:
    """Bytes that the other side has acknowledged, and packets that it has not; None: closed, or cannot be seen."""
    if not _HAS_TCP_INFO:
        return None
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(told) < _TCP_INFO.size:  # an old kernel
        return None
    unacked, acked = _TCP_INFO.unpack(told)
    return int(acked), int(unacked)
