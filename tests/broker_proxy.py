"""A proxy between Kafka clients and one broker that loses answers, or cuts every connection.

It listens at a port of its own and rewrites the addresses that the broker tells, so that clients never go around it.
Frames: a length of four bytes, then API key, version and correlation id; a told address is its host and then four
bytes of port (Kafka protocol guide).
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

HOST = "127.0.0.1"
PRODUCE, METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 0, 3, 10, 60
_TELL_ADDRESSES = (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER)
_CONNECT_S = 5.0


@dataclass(eq=False)
class _Pair:
    """One client's connection and ours to the broker."""

    client: socket.socket
    broker: socket.socket
    asked: dict[int, int] = field(default_factory=dict)  # correlation id -> API key

    def end(self) -> None:
        for side in (self.client, self.broker):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class BrokerProxy:
    """See the module.

    Args:
        bootstrap: of a broker on 127.0.0.1.
    """

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(":")
        assert host == HOST, f"the broker is at {bootstrap}, this proxy stands in front of {HOST} only"
        self._broker = int(port)
        self._listener = socket.create_server((HOST, 0))
        self._port = int(self._listener.getsockname()[1])
        self.bootstrap = f"{HOST}:{self._port}"
        self.swallow: Callable[[], bool] = lambda: False  # asked per answer to a write; True: it is lost
        self.num_swallowed = 0
        self._is_cut = False
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut(self) -> None:
        """End all connections and take no more."""
        self._is_cut = True
        self._end_pairs()

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False

    def close(self) -> None:
        """End it."""
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="broker-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _end_pairs(self) -> None:
        for pair in list(self._pairs):
            pair.end()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                client.close()
                continue
            broker = socket.create_connection((HOST, self._broker), timeout=_CONNECT_S)
            broker.settimeout(None)
            self._begin(partial(self._serve, _Pair(client, broker)))

    def _serve(self, pair: _Pair) -> None:
        self._pairs.add(pair)
        answers = threading.Thread(target=self._pass, args=(pair, pair.broker, pair.client), daemon=True)
        answers.start()
        self._pass(pair, pair.client, pair.broker)
        answers.join(10)
        self._pairs.discard(pair)
        pair.client.close()
        pair.broker.close()

    def _pass(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while not self._is_cut and (frame := _frame(source)) is not None:
                if source is pair.client:
                    key, _, correlation = struct.unpack_from(">hhi", frame)
                    pair.asked[correlation] = key
                else:
                    key = pair.asked.pop(struct.unpack_from(">i", frame)[0], -1)
                    if key == PRODUCE and self.swallow():
                        self.num_swallowed += 1
                        break
                    if key in _TELL_ADDRESSES:
                        frame = frame.replace(_told(self._broker), _told(self._port))
                target.sendall(struct.pack(">i", len(frame)) + frame)
        pair.end()


def _told(port: int) -> bytes:
    return HOST.encode() + struct.pack(">i", port)


def _frame(source: socket.socket) -> bytes | None:
    head = _exactly(source, 4)
    return None if head is None else _exactly(source, struct.unpack(">i", head)[0])


def _exactly(source: socket.socket, num_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    while num_bytes > 0:
        part = source.recv(min(num_bytes, 2**20))
        if not part:
            return None
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
