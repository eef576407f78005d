"""The network between one stage and the brokers: cut, silent or slow.

Role: a TCP proxy of its own for each process that a fault is meant for. The process is given the proxy's addresses as
its brokers. A broker tells clients where all brokers are, so answers are read frame by frame and each broker's port in
them is replaced by the port that stands for it here: host and port are next to each other in every answer of the
protocol that names a broker (Metadata, FindCoordinator, DescribeCluster, the leaders in Produce and Fetch), and a port
is as long as another.
Data in and out: bytes. Requests pass as they are.
Invariants: a cut closes connections and refuses new ones; silence keeps them open and carries nothing, as a lost route
does; a slow link carries at most so many bytes a second each way. Brokers must speak without TLS.
Failure: a broker that is away closes the client's connection.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ops.services.state import LOOPBACK

_CHUNK_BYTES = 64 * 1024
_SLOW_CHUNK_BYTES = 4 * 1024
_CALL_S = 10.0


@dataclass
class _Weather:
    """What a link does with bytes now."""

    open: asyncio.Event  # carries bytes
    bytes_s: float | None = None
    delay_s: float = 0.0


class Link:
    """One process's way to the brokers. Its methods may be called from any thread.

    Args:
        loop: runs in a thread of its own (`Links`).
        brokers: `host:port` of each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, brokers: Sequence[str]) -> None:
        self._loop = loop
        self._brokers = [int(address.rpartition(":")[2]) for address in brokers]
        self._ports: dict[int, int] = {}  # broker's port -> ours
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._weather = _Weather(open=asyncio.Event())
        self._weather.open.set()

    @property
    def bootstrap(self) -> str:
        """What the process is given as its brokers."""
        return ",".join(f"{LOOPBACK}:{self._ports[port]}" for port in self._brokers)

    def open(self) -> None:
        """Listen; the ports stay the same from the first time on."""
        self._call(self._listen())

    def cut(self) -> None:
        """Close everything and refuse what comes."""
        self._call(self._close())

    def silence(self) -> None:
        """Carry nothing, with every connection left open."""
        self._loop.call_soon_threadsafe(self._weather.open.clear)

    def slow(self, *, bytes_s: float, delay_s: float) -> None:
        """Carry at most so many bytes a second each way, each piece that much later."""
        self._weather.bytes_s, self._weather.delay_s = bytes_s, delay_s

    def heal(self) -> None:
        """As new. What was silent is cut first, as after a route came back."""
        self._weather.bytes_s, self._weather.delay_s = None, 0.0
        self._loop.call_soon_threadsafe(self._weather.open.set)
        if not self._servers:
            self.open()

    def _call(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    async def _listen(self) -> None:
        for port in self._brokers:
            accept = partial(self._accept, broker=port)
            server = await asyncio.start_server(accept, LOOPBACK, self._ports.get(port, 0), reuse_address=True)
            self._ports[port] = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, broker: int) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer, broker=broker))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _close(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, broker: int) -> None:
        to_broker: asyncio.StreamWriter | None = None
        pumps: list[asyncio.Task[None]] = []
        try:
            await self._weather.open.wait()
            from_broker, to_broker = await asyncio.open_connection(LOOPBACK, broker)
            pumps = [
                asyncio.ensure_future(self._requests(reader, to_broker)),
                asyncio.ensure_future(self._answers(from_broker, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            return  # the broker is away
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for each in (writer, to_broker):
                if each is not None:
                    each.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._send(writer, data)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(head, "big"))
                await self._send(writer, head + with_ports(frame, self._ports))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        weather = self._weather
        step = len(data) if weather.bytes_s is None else _SLOW_CHUNK_BYTES
        for begin in range(0, len(data), max(1, step)):
            piece = data[begin : begin + step]
            await weather.open.wait()
            if weather.bytes_s is not None:
                await asyncio.sleep(weather.delay_s + len(piece) / weather.bytes_s)
            writer.write(piece)
            await writer.drain()


class Links:
    """Links by program name, and the thread they live in.

    Args:
        names: programs that get one.
        brokers: `host:port` of each broker.
    """

    def __init__(self, names: Sequence[str], *, brokers: Sequence[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self.by_name: Mapping[str, Link] = {name: Link(self._loop, brokers=brokers) for name in names}
        for link in self.by_name.values():
            link.open()

    def close(self) -> None:
        """Cut all and end the thread."""
        for link in self.by_name.values():
            link.heal()
            link.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_CALL_S)
        self._loop.close()


def with_ports(frame: bytes, ports: Mapping[int, int]) -> bytes:
    """An answer with each broker's address replaced by the one that stands for it."""
    host = LOOPBACK.encode()
    for broker, own in ports.items():
        frame = frame.replace(host + struct.pack(">i", broker), host + struct.pack(">i", own))
    return frame
