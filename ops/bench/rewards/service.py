"""The remote scorer: a service over HTTP that can be away for a while.

Data in: the protocol of `consumers.rewards.remote`. Data out: a number per sample, or 503.
Invariants: a sample that was answered is counted, so that none is scored twice unnoticed.
Failure: none; a body that cannot be read ends that connection.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

import orjson


class Service:
    """Listens on a free port of this machine until closed."""

    def __init__(self) -> None:
        self.num_refused = 0
        self.answered: Counter[tuple[int, int]] = Counter()  # by (group, member)
        self._away = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="remote-scorer", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def be_away(self, away: bool) -> None:
        """Answer 503 from now on, or no more."""
        (self._away.set if away else self._away.clear)()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: Mapping[str, object]) -> tuple[int, bytes]:
        """Status and content for a request."""
        samples = cast("list[dict[str, int]]", body["samples"])
        with self._lock:
            if self._away.is_set():
                self.num_refused += 1
                return 503, b"{}"
            self.answered.update((sample["group"], sample["member"]) for sample in samples)
        return 200, orjson.dumps({"rewards": [1.0 + (sample["group"] % 97) / 97 for sample in samples]})


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class _Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, content = service.answer(orjson.loads(body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002 - the library's names
            return

    return _Handler
