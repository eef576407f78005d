"""The sender of a host over real connections: weights that are under way hold others up, and are measured."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipeline.traffic.classes import TrafficClass
from pipeline.traffic.flow import IDLE
from pipeline.traffic.permit import Permit
from pipeline.traffic.sender import HostSender
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.tokens import bearer
from tests.unit.pipeline.weights.helpers import TOKEN, new_store
from topics.clock import Deadline

LARGE = bytes(32 * 2**20)  # more than all buffers between the two ends
SMALL = b"evaluated" * 100
CHECKPOINTS = TrafficClass.CHECKPOINTS


@dataclass
class Served:
    """A peer server with a sender, and what was counted."""

    store: ChunkStore
    sender: HostSender
    url: str
    sent: Counter[TrafficClass] = field(default_factory=Counter)
    held_up_s: Counter[TrafficClass] = field(default_factory=Counter)

    def ask(self, digest: str, *, traffic: str) -> http.client.HTTPConnection:
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=20)
        connection.request(
            "GET",
            f"/v1/chunks/{digest}",
            headers={"Authorization": bearer(TOKEN, url=self.url), "Rlweave-Class": traffic},
        )
        return connection


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(new_store(tmp_path), HostSender(Permit()), "")

    def count(traffic: TrafficClass, num_bytes: int) -> None:
        found.sent[traffic] += num_bytes

    def held_up(traffic: TrafficClass, seconds: float) -> None:
        found.held_up_s[traffic] += seconds  # type: ignore[assignment] # a Counter adds whatever it is given

    found.sender = HostSender(Permit(), on_sent=count, on_held_up=held_up)
    server = PeerServer(PeerSettings(stores=[found.store], token=TOKEN, sender=found.sender))
    found.url = server.start()
    yield found
    server.stop()


def until(reached: object, *, what: str) -> None:
    deadline = Deadline.after(10.0)
    assert callable(reached)
    while not reached():
        deadline.check(what)
        threading.Event().wait(0.002)


class Reader:
    """Takes a body slowly until it is told to hurry."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._hurry = threading.Event()
        self._num_bytes = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def hurry(self) -> int:
        self._hurry.set()
        self._thread.join(20.0)
        self._connection.close()
        return self._num_bytes

    def _read(self) -> None:
        response = self._connection.getresponse()
        while piece := response.read(64 * 1024):
            self._num_bytes += len(piece)
            self._hurry.wait(0.02)


def test_background_stands_back_while_a_receiver_takes_weights(served: Served) -> None:
    weights, other = served.store.put(LARGE), served.store.put(SMALL)
    assert served.sender.ask(CHECKPOINTS, 1000) == 0
    engine = Reader(served.ask(weights.digest, traffic="weights"))
    evaluator = None
    try:
        until(lambda: served.sender.ask(CHECKPOINTS, 1000) > 0, what="the weights to be under way")
        evaluator = served.ask(other.digest, traffic="evaluation")
        until(lambda: served.held_up_s[TrafficClass.EVALUATION] > 0.05, what="the time to be counted")
        assert served.sender.ask(CHECKPOINTS, 1000) > 0
        assert not served.sent
    finally:
        assert engine.hurry() == len(LARGE)
    assert evaluator.getresponse().read() == SMALL
    evaluator.close()
    until(lambda: served.sender.ask(CHECKPOINTS, 1000) == 0, what="the publish to be over")
    wanted = {TrafficClass.WEIGHTS: len(LARGE), TrafficClass.EVALUATION: len(SMALL)}
    until(lambda: served.sent == wanted, what="both to be counted")
    assert served.held_up_s[CHECKPOINTS] > 0.03


def test_what_receivers_have_taken_is_seen_before_a_body_is_through() -> None:
    sender = HostSender(Permit())
    near, far = socket.create_server(("127.0.0.1", 0)), socket.socket()
    far.connect(near.getsockname())
    end, _ = near.accept()
    with near, far, end, sender.sending_weights(end):
        end.sendall(bytes(50_000))
        until(lambda: sender._look()[0] == 50_000, what="the bytes to be acknowledged")
        assert sender._flow().is_active
    assert sender._look()[0] == 50_000, "a closed connection keeps what it carried"
    until(lambda: sender._flow() == IDLE, what="the burst to be over")


def test_connections_that_are_gone_are_not_kept_though_nobody_asks() -> None:
    sender = HostSender(Permit())
    near = socket.create_server(("127.0.0.1", 0))
    with near:
        for _ in range(600):
            far, end = socket.create_connection(near.getsockname()), near.accept()[0]
            with far, end, sender.sending_weights(end):
                end.sendall(b"1")
    assert len(sender._links) <= 256


def test_unmanaged_classes_never_wait(served: Served) -> None:
    sender = HostSender(Permit(rates={(CHECKPOINTS, ""): 0.0}), managed=False)
    with sender.sending_weights(None):
        assert sender.ask(CHECKPOINTS, 10**9) == 0


def test_weights_are_held_to_a_rate_that_they_were_given(served: Served) -> None:
    served.sender.replace(Permit(rates={(TrafficClass.WEIGHTS, ""): 400_000.0}))
    chunk = served.store.put(bytes(200_000))
    began_s = Deadline.after(100.0)
    connection = served.ask(chunk.digest, traffic="weights")
    assert len(connection.getresponse().read()) == 200_000
    connection.close()
    assert 100.0 - began_s.remaining_s() > 0.2
