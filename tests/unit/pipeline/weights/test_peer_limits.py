"""Traffic classes: rates that hold over all uploads of a class, and what is not limited."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.rates import TokenBucket
from schemas.errors import WeightsError
from tests.unit.pipeline.weights.helpers import TOKEN, new_store
from topics.clock import ManualClock

_DATA = bytes(range(256)) * 16


def test_a_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    clock = ManualClock()
    bucket = TokenBucket(rate=10.0, burst=20.0, clock=clock)
    assert [bucket.take(10.0) for _ in range(4)] == [0.0, 0.0, 1.0, 2.0]
    clock.advance(2.5)
    assert bucket.take(5.0) == 0.0
    clock.advance(1000.0)
    assert [bucket.take(20.0), bucket.take(1.0)] == [0.0, 0.1]


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.1, 50.0)), min_size=1, max_size=40))
def test_no_span_sees_more_than_rate_and_burst(steps: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    bucket = TokenBucket(rate=10.0, burst=20.0, clock=clock)
    sent: list[tuple[float, float]] = []
    for pause_s, amount in steps:
        clock.advance(pause_s)
        sent.append((clock.monotonic() + bucket.take(amount), amount))
    assert [at_s for at_s, _ in sent] == sorted(at_s for at_s, _ in sent)
    for first in range(len(sent)):
        total = 0.0
        for at_s, amount in sent[first:]:
            total += amount
            assert total <= 10.0 * (at_s - sent[first][0]) + max(20.0, sent[first][1]) + 1e-6


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("inf"), 1.0)])
def test_a_rate_that_cannot_be_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(WeightsError, match="must be above 0"):
        TokenBucket(rate=rate, burst=burst)


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


@contextmanager
def _limited(store: ChunkStore, rates: Mapping[str, float], *, served: list[int] | None = None) -> Iterator[str]:
    sizes = served if served is not None else []
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, upload_bytes_s=rates, on_served_bytes=sizes.append))
    try:
        yield server.start()
    finally:
        server.stop()


def _get(
    url: str, digest: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        sent = {"Authorization": f"Bearer {TOKEN}"} | dict(headers if headers is not None else {})
        connection.request(method, f"/v1/chunks/{digest}", headers=sent)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)
    finally:
        connection.close()


def _seconds_of(url: str, digests: list[str], *, traffic_class: str) -> float:
    """All at once."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(digests)) as pool:
        got = list(pool.map(lambda digest: _get(url, digest, headers={"Rlweave-Class": traffic_class})[0], digests))
    assert got == [200] * len(digests)
    return time.monotonic() - began_s


def test_the_rate_of_a_class_holds_over_all_its_uploads(store: ChunkStore) -> None:
    """A second's worth. A busy machine may make it slower, so the best of a few tries counts for that side."""
    digests = [store.put(bytes([n]) * 2**20).digest for n in range(8)]
    with _limited(store, {"background": 8.0 * 2**20}) as url:
        took_s = [_seconds_of(url, digests, traffic_class="background")]
        while took_s[-1] > 3.0 and len(took_s) < 5:
            took_s.append(_seconds_of(url, digests, traffic_class="background"))
    assert min(took_s) > 0.8
    assert min(took_s) < 3.0, "8 s where they take turns"


def test_a_class_without_a_rate_is_not_held_up_by_one_that_has(store: ChunkStore) -> None:
    """What is held up would take a quarter of an hour."""
    slow, fast = store.put(bytes(2**20)).digest, store.put(b"fast" * 2**18).digest
    with _limited(store, {"background": 1000.0}) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        headers = {"Authorization": f"Bearer {TOKEN}", "Rlweave-Class": "background"}
        connection.request("GET", f"/v1/chunks/{slow}", headers=headers)
        held_up = connection.getresponse()
        assert held_up.status == 200
        assert _get(url, fast)[:2] == (200, b"fast" * 2**18)
        held_up.close()
        connection.close()


def test_an_upload_at_a_rate_is_whole_in_part_and_counted(store: ChunkStore) -> None:
    digest = store.put(_DATA).digest
    served: list[int] = []
    with _limited(store, {"weights": 2.0**30}, served=served) as url:
        status, body, headers = _get(url, digest)
        assert (status, body, headers["Content-Length"]) == (200, _DATA, "4096")
        status, body, headers = _get(url, digest, headers={"Range": "bytes=10-1009"})
        assert (status, body, headers["Content-Range"]) == (206, _DATA[10:1010], "bytes 10-1009/4096")
        assert _get(url, digest, headers={"Range": "bytes=-6"})[:2] == (206, _DATA[-6:])
        assert _get(url, digest, headers={"Range": "bytes=4000-"})[:2] == (206, _DATA[4000:])
        status, body, headers = _get(url, digest, method="HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", "4096")
    assert served == [4096, 1000, 6, 96]


@pytest.mark.parametrize("wanted", ["bytes=4096-", "bytes=9-3", "bytes=-", "lines=1-2"])
def test_a_range_that_is_none_is_416(store: ChunkStore, wanted: str) -> None:
    digest = store.put(_DATA).digest
    with _limited(store, {"weights": 2.0**30}) as url:
        status, _, headers = _get(url, digest, headers={"Range": wanted})
    assert (status, headers["Content-Range"]) == (416, "bytes */4096")


@pytest.mark.parametrize("traffic_class", ["", "UPPER", "a b", "x" * 33, "a1"])
def test_a_class_that_is_none_is_refused(store: ChunkStore, traffic_class: str) -> None:
    digest = store.put(_DATA).digest
    with _limited(store, {}) as url:
        assert _get(url, digest, headers={"Rlweave-Class": traffic_class})[0] == 400


@pytest.mark.parametrize("rates", [{"weights": 0.0}, {"Weights": 1.0}])
def test_settings_that_cannot_be_end_the_start(store: ChunkStore, rates: Mapping[str, float]) -> None:
    with pytest.raises(WeightsError, match=r"above 0|traffic class"):
        PeerServer(PeerSettings(stores=[store], token=TOKEN, upload_bytes_s=rates)).start()


def test_an_upload_whose_client_leaves_gives_its_slot_back(store: ChunkStore) -> None:
    large, small = store.put(bytes(2**20)).digest, store.put(b"abc").digest
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, max_uploads=1, upload_bytes_s={"background": 1000.0}))
    url = server.start()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    headers = {"Authorization": f"Bearer {TOKEN}", "Rlweave-Class": "background"}
    connection.request("GET", f"/v1/chunks/{large}", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    assert _get(url, small)[0] == 503
    answer.close()
    connection.close()
    end_s = time.monotonic() + 10
    while _get(url, small)[0] != 200:
        assert time.monotonic() < end_s
    server.stop()
