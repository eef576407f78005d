"""Small states, and a peer that misbehaves on purpose, over real HTTP on the loopback interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.manifest import build_manifest
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.state import encode_state
from schemas.records import Manifest, Version

TOKEN = "token-of-the-tests"
GIB = 2**30


@dataclass
class Answer:
    """What a faulty peer sends for one request."""

    body: bytes
    status: int = 200
    length: int | None = None  # Content-Length when it is not that of the body
    headers: dict[str, str] = field(default_factory=dict)


Respond = Callable[[str], Answer]


def new_store(root: Path, *, max_bytes: int = GIB) -> ChunkStore:
    return ChunkStore(root, max_bytes=max_bytes)


def small_version(store: ChunkStore, *, seeds: tuple[str, ...] = ()) -> Manifest:
    """A state of 40,012 bytes in ten chunks."""
    rng = np.random.default_rng(0)
    tensors = {"a": rng.standard_normal(10_000, np.float32), "b": np.arange(3, dtype=np.float32)}
    state = encode_state(tensors, ties={}, wire_dtype=None, chunk_bytes=4096, store=store)
    return build_manifest(state, run="r", version=Version(lineage=1, step=2), seeds=seeds, created_unix_ms=0)


@contextmanager
def honest_peer(store: ChunkStore, *, max_uploads: int = 16) -> Iterator[str]:
    """A real peer server over `store`; gives its URL."""
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, max_uploads=max_uploads))
    url = server.start()
    try:
        yield url
    finally:
        server.stop()


@contextmanager
def faulty_peer(respond: Respond) -> Iterator[str]:
    """A server that answers each digest with what `respond` gives; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = respond(self.path.rsplit("/", 1)[-1])
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            self.send_header("Connection", "close")
            for name, value in answer.headers.items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # a client may leave a slow or too long answer
                self.end_headers()
                self.wfile.write(answer.body)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)
