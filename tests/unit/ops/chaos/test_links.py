"""The way to the brokers: cut, silent, slow, with addresses in answers replaced. The broker is an echo of frames."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ops.chaos.links import Link, Links, with_ports

LIMIT_S = 10.0
SHORT_S = 0.3


def received(connection: socket.socket, num_bytes: int) -> bytes:
    """So many bytes; fewer when the other side ends."""
    data = b""
    while len(data) < num_bytes and (piece := connection.recv(num_bytes - len(data))):
        data += piece
    return data


class Echo(socketserver.BaseRequestHandler):
    """Sends back each frame: a length of four bytes and so many bytes."""

    def handle(self) -> None:
        while head := received(self.request, 4):
            self.request.sendall(head + received(self.request, int.from_bytes(head, "big")))


@contextmanager
def echo() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def link() -> Iterator[Link]:
    with echo() as broker:
        links = Links(["rollout-0"], brokers=[broker])
        try:
            yield links.by_name["rollout-0"]
        finally:
            links.close()


def connected(link: Link) -> socket.socket:
    host, _, port = link.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


def asked(connection: socket.socket, body: bytes) -> bytes:
    connection.sendall(len(body).to_bytes(4, "big") + body)
    return received(connection, int.from_bytes(received(connection, 4), "big"))


def test_bytes_pass(link: Link) -> None:
    with closing(connected(link)) as connection:
        assert asked(connection, b"x" * 300_000) == b"x" * 300_000


def test_a_cut_ends_connections_and_refuses_new_ones_until_it_is_healed(link: Link) -> None:
    address = link.bootstrap
    with closing(connected(link)) as connection:
        asked(connection, b"one")
        link.cut()
        assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connected(link)
    link.heal()
    assert link.bootstrap == address
    with closing(connected(link)) as connection:
        assert asked(connection, b"two") == b"two"


def test_silence_keeps_the_connection_and_what_was_sent_arrives_afterwards(link: Link) -> None:
    with closing(connected(link)) as connection:
        asked(connection, b"one")
        link.silence()
        connection.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            asked(connection, b"two")
        connection.settimeout(LIMIT_S)
        link.heal()
        assert received(connection, 7)[4:] == b"two"


def test_a_slow_link_carries_what_it_is_allowed_to(link: Link) -> None:
    with closing(connected(link)) as connection:
        link.slow(bytes_s=100_000, delay_s=0.0)
        began_s = time.monotonic()
        asked(connection, bytes(30_000))  # twice: there and back
        assert time.monotonic() - began_s >= 0.5
        link.heal()
        assert asked(connection, b"one") == b"one"


def test_a_broker_that_is_away_closes_the_connection() -> None:
    with echo() as broker:
        pass
    links = Links(["learner"], brokers=[broker])
    try:
        with closing(connected(links.by_name["learner"])) as connection:
            assert connection.recv(1) == b""
    finally:
        links.close()


def test_addresses_in_answers_lead_through_the_link_and_others_stay() -> None:
    frame = b"\x00\x09127.0.0.1" + struct.pack(">i", 9092) + b"..127.0.0.1" + struct.pack(">i", 9999)
    changed = with_ports(frame, {9092: 40001})
    assert changed == b"\x00\x09127.0.0.1" + struct.pack(">i", 40001) + b"..127.0.0.1" + struct.pack(">i", 9999)
