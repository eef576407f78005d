"""The peer server and its token, over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import multiprocessing
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings, PeerClient
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.peer_board import Fault, Problem
from pipeline.weights.peer_file import PEER_FILE, read_peer_file
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import WeightsError
from schemas.records import ChunkRef
from tests.unit.pipeline.weights.helpers import TOKEN, honest_peer, new_store

_ABSENT = "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


@pytest.fixture
def url(store: ChunkStore) -> Iterator[str]:
    with honest_peer(store) as url:
        yield url


def _request(
    url: str, path: str, *, method: str = "GET", token: str | None = TOKEN, headers: dict[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        sent = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request(method, path, headers=sent | (headers if headers is not None else {}))
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def test_a_chunk_is_served_whole_in_part_and_as_a_head(store: ChunkStore, url: str) -> None:
    path = f"/v1/chunks/{store.put(b'0123456789').digest}"
    assert _request(url, path)[:2] == (200, b"0123456789")
    assert _request(url, path, headers={"Range": "bytes=2-4"})[:2] == (206, b"234")
    status, body, headers = _request(url, path, method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "10")


def test_an_absent_chunk_is_404_and_health_answers(url: str) -> None:
    assert _request(url, f"/v1/chunks/{_ABSENT}")[0] == 404
    assert _request(url, "/v1/health")[0] == 200


@pytest.mark.parametrize("token", [None, "", "another-token-of-the-tests", TOKEN + "x", "t\xf6ken"])
@pytest.mark.parametrize("path", [f"/v1/chunks/{_ABSENT}", "/v1/health", "/nowhere"])
def test_without_the_token_everything_is_refused(url: str, path: str, token: str | None) -> None:
    status, _, headers = _request(url, path, token=token)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("name", ["..%2F..%2Fsecret", "%2e%2e%2fsecret", "..", "../secret", "A" * 64, "%00" * 64])
def test_a_path_out_of_the_store_is_refused(store: ChunkStore, url: str, name: str) -> None:
    (store.root.parent / "secret").write_bytes(b"secret")
    status, body, _ = _request(url, f"/v1/chunks/{name}")
    assert status in (400, 404)
    assert body != b"secret"


def test_uploads_over_the_bound_get_503_with_retry_after(store: ChunkStore) -> None:
    digest = store.put(b"abc").digest
    with honest_peer(store, max_uploads=0) as url:
        status, _, headers = _request(url, f"/v1/chunks/{digest}")
    assert (status, headers["Retry-After"]) == (503, "1")


def test_the_hooks_count_bytes_and_refusals(store: ChunkStore) -> None:
    digest = store.put(bytes(100)).digest
    served: list[int] = []
    refused: list[int] = []
    settings = PeerSettings(stores=[store], token=TOKEN, on_served_bytes=served.append, on_refused=refused.append)
    server = PeerServer(settings)
    url = server.start()
    _request(url, f"/v1/chunks/{digest}")
    _request(url, f"/v1/chunks/{digest}", headers={"Range": "bytes=0-9"})
    _request(url, f"/v1/chunks/{digest}", method="HEAD")
    _request(url, f"/v1/chunks/{_ABSENT}")
    _request(url, f"/v1/chunks/{digest}", token="wrong")
    server.stop()
    assert (served, refused) == ([100, 10], [401])


def test_an_upload_that_takes_too_long_is_cut(store: ChunkStore) -> None:
    digest = store.put(bytes(32 * 2**20)).digest
    refused: list[int] = []
    cut = threading.Event()

    def on_refused(status: int) -> None:
        refused.append(status)
        cut.set()

    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, upload_limit_s=0.2, on_refused=on_refused))
    connection = http.client.HTTPConnection(urlsplit(server.start()).netloc, timeout=10)
    connection.request("GET", f"/v1/chunks/{digest}", headers={"Authorization": f"Bearer {TOKEN}"})
    assert cut.wait(10)  # the body is not read, so the socket's buffers fill
    response = connection.getresponse()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    connection.close()
    server.stop()
    assert refused == [408]


def test_the_peer_file_says_where_while_it_runs(store: ChunkStore, tmp_path: Path) -> None:
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, folder=tmp_path / "run"))
    url = server.start()
    assert read_peer_file(tmp_path / "run") == {"url": url, "pid": os.getpid()}
    server.stop()
    assert list((tmp_path / "run").iterdir()) == []


def test_the_peer_file_of_a_successor_is_left_alone(store: ChunkStore, tmp_path: Path) -> None:
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, folder=tmp_path))
    server.start()
    (tmp_path / PEER_FILE).write_bytes(b'{"url": "http://127.0.0.1:1", "pid": 1}')
    server.stop()
    assert read_peer_file(tmp_path) == {"url": "http://127.0.0.1:1", "pid": 1}


def test_a_port_in_use_is_a_clear_error(store: ChunkStore, url: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    with pytest.raises(WeightsError, match=f"cannot listen on 127.0.0.1:{port}"):
        PeerServer(PeerSettings(stores=[store], token=TOKEN, port=port)).start()


def test_what_one_peer_is_shown_opens_no_other_one(store: ChunkStore) -> None:
    """A false manifest, or Redis, names a listener of somebody else: what it is shown is worth nothing elsewhere."""
    shown: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Listener) as false, honest_peer(store) as url:
        thread = threading.Thread(target=false.serve_forever)
        thread.start()
        asked = asyncio.run(_ask(f"http://127.0.0.1:{false.server_port}"))
        false.shutdown()
        thread.join()
        assert isinstance(asked, Problem)
        assert asked.fault is Fault.ABSENT
        assert shown
        assert TOKEN not in shown[0]
        assert _request(url, "/v1/health", token=None, headers={"Authorization": shown[0]})[0] == 401
        answered = asyncio.run(_ask(url))
        assert isinstance(answered, Problem)
        assert answered.fault is Fault.ABSENT, "the honest one lets the same client in"


async def _ask(url: str) -> bytearray | Problem:
    async with PeerClient(ClientSettings(token=TOKEN)) as client:
        return await client.download(url, chunk=ChunkRef(digest=_ABSENT, num_bytes=0), limit_s=5)


def test_the_token_is_not_in_the_settings_text(store: ChunkStore) -> None:
    assert TOKEN not in repr(PeerSettings(stores=[store], token=TOKEN))


def test_a_token_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    token = load_or_create_token(path)
    assert len(token) >= 43
    assert load_or_create_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


def test_a_file_that_holds_no_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("two words\n")
    with pytest.raises(WeightsError, match="does not hold a token"):
        load_or_create_token(path)


def _token_of(path: Path, barrier: multiprocessing.synchronize.Barrier, results: multiprocessing.Queue[str]) -> None:
    barrier.wait(120)
    results.put(load_or_create_token(path))


def test_processes_that_start_together_agree_on_the_token(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_token_of, args=(tmp_path / "token", barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    tokens = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join(30)
    assert len(tokens) == 1
