"""Fetching over real HTTP on the loopback interface, with every fault of a chunk on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerInfo
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import FetchOptions, FetchResult, fetch
from pipeline.weights.state import decode_arrays
from schemas.errors import DeadlineExceeded, FetchCancelled, WeightsError
from schemas.records import Manifest
from tests.unit.pipeline.weights.clocks import Ahead
from tests.unit.pipeline.weights.helpers import TOKEN, Answer, faulty_peer, honest_peer, new_store, small_version
from topics.clock import Clock, Deadline

_CLIENT = ClientSettings(token=TOKEN)
_FAST = FetchOptions(backoff_s=0.01, max_backoff_s=0.05, chunk_limit_s=5.0)


class Fixture:
    """A source with one version, and an empty store that wants it."""

    def __init__(self, root: Path) -> None:
        self.source = new_store(root / "source")
        self.manifest = small_version(self.source)
        self.store = new_store(root / "store")

    def chunk(self, digest: str) -> bytes:
        return self.source.get(digest)

    def fetch(
        self,
        *peers: str,
        options: FetchOptions = _FAST,
        manifest: Manifest | None = None,
        parallel: int = 2,
        clock: Clock | None = None,
    ) -> FetchResult:
        chosen = replace(self.manifest if manifest is None else manifest, seeds=peers)
        return fetch(
            chosen,
            store=self.store,
            client=_CLIENT,
            deadline=Deadline.after(60.0, clock=clock),
            options=replace(options, parallel=parallel),
        )

    def check(self) -> None:
        """The store has the true state."""
        ours, true = decode_arrays(self.manifest, self.store), decode_arrays(self.manifest, self.source)
        assert all((ours[name] == true[name]).all() for name in true)


@pytest.fixture
def setup(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_a_version_is_fetched_once_and_then_found_locally(setup: Fixture) -> None:
    with honest_peer(setup.source) as peer:
        first, second = setup.fetch(peer), setup.fetch(peer)
    setup.check()
    assert (first.bytes_fetched, first.bytes_local) == (40_012, 0)
    assert (second.bytes_fetched, second.bytes_local) == (0, 40_012)
    assert (first.bad_peers, first.notices) == ((), ())


def test_only_missing_chunks_are_fetched(setup: Fixture) -> None:
    setup.store.put(setup.chunk(setup.manifest.chunks[3].digest))
    with honest_peer(setup.source) as peer:
        result = setup.fetch(peer)
    assert (result.bytes_fetched, result.bytes_local) == (40_012 - 4096, 4096)


def test_nothing_is_asked_when_everything_is_there(setup: Fixture) -> None:
    setup.store = setup.source
    assert setup.fetch().bytes_local == 40_012


def test_a_chunk_altered_in_the_local_cache_is_fetched_again(setup: Fixture) -> None:
    """Case 41."""
    with honest_peer(setup.source) as peer:
        setup.fetch(peer)
        path = setup.store.path_of(setup.manifest.chunks[2].digest)
        path.write_bytes(b"\0" * 4096)
        result = setup.fetch(peer)
    assert result.bytes_fetched == 4096
    setup.check()


def _flipped(setup: Fixture, digest: str) -> Answer:
    data = bytearray(setup.chunk(digest))
    data[len(data) // 2] ^= 1
    return Answer(bytes(data))


def _truncated(setup: Fixture, digest: str) -> Answer:
    return Answer(setup.chunk(digest)[:-1])


def _too_long(setup: Fixture, digest: str) -> Answer:
    return Answer(setup.chunk(digest) + b"x")


def _exchanged(setup: Fixture, digest: str) -> Answer:
    whole = [chunk.digest for chunk in setup.manifest.chunks[:-1]]
    other = whole[(whole.index(digest) + 1) % len(whole)] if digest in whole else whole[0]
    return Answer(setup.chunk(other))


def _cut(setup: Fixture, digest: str) -> Answer:
    return Answer(setup.chunk(digest)[:-1], length=len(setup.chunk(digest)))


def _missing(setup: Fixture, digest: str) -> Answer:
    return Answer(b"", status=404)


def _broken(setup: Fixture, digest: str) -> Answer:
    return Answer(b"", status=500)


def _moved(setup: Fixture, digest: str) -> Answer:
    return Answer(b"", status=302, headers={"Location": "http://127.0.0.1:1/"})


def _busy(setup: Fixture, digest: str) -> Answer:
    return Answer(b"", status=503, headers={"Retry-After": "1"})


def _refused(setup: Fixture, digest: str) -> Answer:
    return Answer(b"", status=401)


@pytest.mark.parametrize(
    ("fault", "word", "is_bad"),
    [
        (_flipped, "bad: 4096 bytes have digest", True),
        (_truncated, "bad: offered 4095 bytes", True),
        (_too_long, "bad: offered 4097 bytes", True),
        (_exchanged, "bad: 4096 bytes have digest", True),
        (_cut, "dead: chunk", False),
        (_missing, "absent: chunk", False),
        (_broken, "dead: status 500", False),
        (_moved, "dead: status 302", False),
        (_busy, "busy: all upload slots", False),
        (_refused, "refused: the token", False),
    ],
)
def test_a_faulty_peer_is_named_and_another_one_used(
    setup: Fixture, fault: Callable[[Fixture, str], Answer], word: str, is_bad: bool
) -> None:
    """Case 41."""
    with faulty_peer(lambda digest: fault(setup, digest)) as bad, honest_peer(setup.source) as good:
        result = setup.fetch(bad, good, parallel=1)
    setup.check()
    assert result.bad_peers == ((bad,) if is_bad else ())
    assert any(notice.startswith(f"peer {bad} was {word}") for notice in result.notices), result.notices
    assert not any(good in notice for notice in result.notices)


@pytest.mark.parametrize("fault", [_flipped, _truncated, _exchanged, _missing, _cut])
def test_with_only_a_faulty_peer_the_deadline_names_chunks_and_peer(
    setup: Fixture, fault: Callable[[Fixture, str], Answer]
) -> None:
    """Case 41."""
    clock, asked = Ahead(), list[str]()

    def respond(digest: str) -> Answer:
        asked.append(digest)
        if len(asked) == 5:
            clock.by_s = 60.0
        return fault(setup, digest)

    with faulty_peer(respond) as bad, pytest.raises(DeadlineExceeded, match="10 of 10 chunks") as caught:
        setup.fetch(bad, clock=clock)
    assert bad in caught.value.message
    assert setup.store.num_bytes() == 0


def test_a_bit_flipped_on_the_way_once_is_mended_by_the_same_peer(setup: Fixture) -> None:
    seen: set[str] = set()

    def respond(digest: str) -> Answer:
        if seen:
            return Answer(setup.chunk(digest))
        seen.add(digest)
        return _flipped(setup, digest)

    with faulty_peer(respond) as peer:
        assert setup.fetch(peer, parallel=1).bad_peers == (peer,)
    setup.check()


def test_a_bad_peer_is_avoided_after_its_first_bad_chunk(setup: Fixture) -> None:
    asked: list[str] = []

    def respond(digest: str) -> Answer:
        asked.append(digest)
        return _flipped(setup, digest)

    with faulty_peer(respond) as bad, honest_peer(setup.source) as good:
        setup.fetch(bad, good, parallel=1)
    assert len(asked) == 1


def test_a_slow_peer_is_left_after_the_limit_for_one_chunk(setup: Fixture) -> None:
    release = threading.Event()

    def respond(digest: str) -> Answer:
        release.wait(20)
        return Answer(setup.chunk(digest))

    with ExitStack() as stack:
        slow = stack.enter_context(faulty_peer(respond))
        stack.callback(release.set)
        good = stack.enter_context(honest_peer(setup.source))
        result = setup.fetch(slow, good, options=replace(_FAST, chunk_limit_s=0.2))
    setup.check()
    assert any(notice.startswith(f"peer {slow} was slow") for notice in result.notices)


def test_a_dead_peer_is_left(setup: Fixture) -> None:
    with honest_peer(setup.source) as dead:
        pass
    with honest_peer(setup.source) as good:
        result = setup.fetch(dead, good)
    setup.check()
    assert any(notice.startswith(f"peer {dead} was dead") for notice in result.notices)


def test_a_peer_gets_a_chunk_later_and_is_asked_again(setup: Fixture) -> None:
    late = setup.manifest.chunks[-1].digest
    num_asked = 0

    def respond(digest: str) -> Answer:
        nonlocal num_asked
        num_asked += digest == late
        return Answer(b"", status=404) if digest == late and num_asked < 4 else Answer(setup.chunk(digest))

    with faulty_peer(respond) as peer:
        setup.fetch(peer, parallel=1)
    setup.check()
    assert num_asked == 4


def test_chunks_on_different_peers_come_together(setup: Fixture, tmp_path: Path) -> None:
    halves = new_store(tmp_path / "even"), new_store(tmp_path / "odd")
    for number, chunk in enumerate(setup.manifest.chunks):
        halves[number % 2].put(setup.chunk(chunk.digest))
    with honest_peer(halves[0]) as even, honest_peer(halves[1]) as odd:
        result = fetch(
            replace(setup.manifest, seeds=(even,)),
            store=setup.store,
            client=_CLIENT,
            deadline=Deadline.after(20),
            extra_peers=[PeerInfo(url=odd)],
            options=_FAST,
        )
    setup.check()
    assert result.bytes_fetched == 40_012


def test_a_wrong_token_ends_at_once_and_says_so(setup: Fixture) -> None:
    with honest_peer(setup.source) as peer, pytest.raises(WeightsError, match=r"no peer is left .* token") as caught:
        fetch(
            replace(setup.manifest, seeds=(peer,)),
            store=setup.store,
            client=ClientSettings(token="another-token"),
            deadline=Deadline.after(20),
        )
    assert TOKEN not in str(caught.value)


def test_without_any_peer_the_fetch_ends_at_once(setup: Fixture) -> None:
    with pytest.raises(WeightsError, match="no peers are known"):
        setup.fetch()


def test_a_manifest_cut_short_is_refused_before_anything_is_asked(setup: Fixture) -> None:
    """Case 41."""
    asked: list[str] = []

    def respond(digest: str) -> Answer:
        asked.append(digest)
        return Answer(setup.chunk(digest))

    cut = replace(setup.manifest, chunks=setup.manifest.chunks[:-1])
    with faulty_peer(respond) as peer, pytest.raises(WeightsError, match="9 chunks add up to 36864 bytes"):
        setup.fetch(peer, manifest=cut)
    assert asked == []


def test_a_version_larger_than_the_store_is_refused(setup: Fixture, tmp_path: Path) -> None:
    setup.store = new_store(tmp_path / "tiny", max_bytes=40_000)
    with pytest.raises(WeightsError, match=r"40012 bytes of chunks, the store .* may hold 40000"):
        setup.fetch("http://127.0.0.1:1")


def test_a_store_that_cannot_be_written_ends_the_fetch_and_blames_no_peer(setup: Fixture) -> None:
    class FullStore(ChunkStore):
        def put(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
            raise WeightsError("no space left")

    setup.store = FullStore(setup.store.root, max_bytes=2**30)
    with honest_peer(setup.source) as peer, pytest.raises(WeightsError, match="no space left"):
        setup.fetch(peer)


def test_a_cancelled_fetch_ends_and_keeps_what_it_has(setup: Fixture) -> None:
    asked: list[str] = []
    cancel, release = threading.Event(), threading.Event()

    def respond(digest: str) -> Answer:
        asked.append(digest)
        if len(asked) == 10:
            cancel.set()
            release.wait(20)
        return Answer(setup.chunk(digest))

    with ExitStack() as stack:
        peer = stack.enter_context(faulty_peer(respond))
        stack.callback(release.set)
        with pytest.raises(FetchCancelled, match="1 of 10 chunks") as caught:
            fetch(
                replace(setup.manifest, seeds=(peer,)),
                store=setup.store,
                client=_CLIENT,
                deadline=Deadline.after(20),
                options=FetchOptions(parallel=1),
                cancel=cancel,
            )
    assert f"({asked[-1]}) were missing" in caught.value.message
    assert setup.store.num_bytes() == sum(
        chunk.num_bytes for chunk in setup.manifest.chunks if chunk.digest != asked[-1]
    )


def test_the_owner_pins_the_version_from_the_start(setup: Fixture) -> None:
    with honest_peer(setup.source) as peer:
        setup.fetch(peer, options=replace(_FAST, owner="rollout-1.next"))
    assert setup.store.pins()["rollout-1.next"] == {chunk.digest for chunk in setup.manifest.chunks}
