"""Several hosts fetch one version together, over real HTTP on the loopback interface."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import FetchOptions, FetchResult, fetch
from pipeline.weights.manifest import build_manifest
from pipeline.weights.news import Member
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.prefetch import Prefetch, PrefetchSetup
from pipeline.weights.state import encode_state
from schemas.records import Manifest, Version
from tests.unit.pipeline.weights.helpers import TOKEN, new_store
from topics.clock import Deadline

_NUM_CHUNKS = 64
_CHUNK_BYTES = 16 * 1024
_OPTIONS = FetchOptions(backoff_s=0.02, max_backoff_s=0.1)


@dataclass
class Host:
    """A store with a peer server over it."""

    store: ChunkStore
    domain: str = ""
    rate_bytes_s: float | None = None
    url: str = ""
    sent_bytes: int = 0
    server: PeerServer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        rates = {} if self.rate_bytes_s is None else {"weights": self.rate_bytes_s}
        settings = PeerSettings(
            stores=[self.store],
            token=TOKEN,
            domain=self.domain,
            upload_bytes_s=rates,
            on_served_bytes=self._count,
        )
        self.server = PeerServer(settings)
        self.url = self.server.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def fetch(self, manifest: Manifest) -> FetchResult:
        return fetch(
            manifest,
            store=self.store,
            client=ClientSettings(token=TOKEN),
            deadline=Deadline.after(30),
            me=Member(url=self.url, domain=self.domain, swarm=str(manifest.version)),
            options=_OPTIONS,
        )

    def _count(self, num_bytes: int) -> None:
        with self.lock:
            self.sent_bytes += num_bytes


@dataclass
class Net:
    """A source with one version, and hosts that want it."""

    source: Host
    hosts: list[Host]
    manifest: Manifest

    def fetch_all(self) -> list[Future[FetchResult]]:
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            return [pool.submit(host.fetch, self.manifest) for host in self.hosts]

    @property
    def source_copies(self) -> float:
        return self.source.sent_bytes / self.manifest.num_bytes


@contextmanager
def _net(root: Path, *, domains: str, source_rate_bytes_s: float | None = None) -> Iterator[Net]:
    """One host for each letter of `domains`; the source is in domain a."""
    source = Host(store=new_store(root / "source"), domain="a", rate_bytes_s=source_rate_bytes_s)
    tensors = {"w": np.random.default_rng(1).integers(0, 256, _NUM_CHUNKS * _CHUNK_BYTES, np.uint8).view(np.float32)}
    state = encode_state(tensors, ties={}, wire_dtype=None, chunk_bytes=_CHUNK_BYTES, store=source.store)
    hosts = [Host(store=new_store(root / f"host{number}"), domain=name) for number, name in enumerate(domains)]
    with ExitStack() as stack:
        for host in (source, *hosts):
            host.start()
            stack.callback(host.stop)
        version = Version(lineage=1, step=1)
        manifest = build_manifest(state, run="r", version=version, seeds=(source.url,), created_unix_ms=0)
        yield Net(source=source, hosts=hosts, manifest=manifest)


def _check_has_all(net: Net) -> None:
    for host in net.hosts:
        assert all(host.store.verified(chunk.digest) for chunk in net.manifest.chunks)


def test_hosts_share_the_work_and_the_source_sends_about_one_copy(tmp_path: Path) -> None:
    with _net(tmp_path, domains="aaaa", source_rate_bytes_s=_NUM_CHUNKS * _CHUNK_BYTES / 1.5) as net:
        results = [future.result() for future in net.fetch_all()]
        _check_has_all(net)
        assert net.source_copies <= 1.3
        assert all(host.sent_bytes > 0 for host in net.hosts)
        assert sum(result.bytes_fetched for result in results) >= 4 * net.manifest.num_bytes


def test_a_host_that_joins_late_is_served_by_the_others(tmp_path: Path) -> None:
    with _net(tmp_path, domains="aaa", source_rate_bytes_s=_NUM_CHUNKS * _CHUNK_BYTES / 1.0) as net:
        late = net.hosts.pop()
        for future in net.fetch_all():
            future.result()
        before = net.source.sent_bytes
        late.fetch(net.manifest)
        net.hosts.append(late)
        _check_has_all(net)
        assert net.source.sent_bytes - before <= net.manifest.num_bytes / 2


def test_chunks_are_there_before_their_version_is(tmp_path: Path) -> None:
    with _net(tmp_path, domains="a") as net:
        host = net.hosts[0]
        early = Prefetch(
            PrefetchSetup(
                store=host.store,
                client=ClientSettings(token=TOKEN),
                options=_OPTIONS,
                url=lambda: host.url,
                domain="a",
                peers=lambda: (),
            )
        )
        early.follow((net.source.url,))
        try:
            store, numbers = net.source.store, itertools.count()
            _stage_until(lambda: host.store.num_bytes() > 0, store=store, numbers=numbers)
            wanted = [store.put(bytes([value]) * 3000).digest for value in range(8)]
            # the last few that were told of wait for others to be fetched with
            _stage_until(lambda: all(host.store.has(digest) for digest in wanted), store=store, numbers=numbers)
        finally:
            early.close()
        assert all(host.store.verified(digest) for digest in wanted)


def _stage_until(there: Callable[[], bool], *, store: ChunkStore, numbers: Iterator[int]) -> None:
    """Stage one chunk after another until `there`."""
    deadline = Deadline.after(20)
    while not there():
        deadline.check("the chunks to be fetched early")
        store.put(next(numbers).to_bytes(4, "little") * 1000)
        deadline.clock.wait(0.02)


def test_without_its_source_a_swarm_ends_with_what_it_has_among_itself(tmp_path: Path) -> None:
    with _net(tmp_path, domains="aa") as net:
        one, two = net.hosts
        for number, chunk in enumerate(net.manifest.chunks):
            (one, two)[number % 2].store.put(net.source.store.get(chunk.digest))
        dead = net.source.url
        net.source.stop()
        net.manifest = replace(net.manifest, seeds=(dead, one.url))
        result = two.fetch(net.manifest)
        assert result.bytes_fetched == net.manifest.num_bytes // 2
        assert any(dead in notice for notice in result.notices)


def test_what_another_store_of_this_host_has_is_taken_from_there(tmp_path: Path) -> None:
    """The learner's peer was started again on another port: manifests name the old one."""
    with _net(tmp_path, domains="a") as net:
        host, dead = net.hosts[0], net.source.url
        net.source.stop()
        server = PeerServer(PeerSettings(stores=[net.source.store, host.store], token=TOKEN, domain="a"))
        host.url = server.start()
        try:
            assert dead in net.manifest.seeds
            result = host.fetch(net.manifest)
        finally:
            server.stop()
        assert result.bytes_fetched == net.manifest.num_bytes


def test_a_peer_that_sends_wrong_bytes_is_named_and_the_version_is_whole(tmp_path: Path) -> None:
    with _net(tmp_path, domains="aa") as net:
        liar, honest = net.hosts
        for chunk in net.manifest.chunks:
            path = liar.store.path_of(chunk.digest)
            liar.store.put(net.source.store.get(chunk.digest))
            path.write_bytes(bytes(chunk.num_bytes))
        net.manifest = replace(net.manifest, seeds=(net.source.url, liar.url))
        result = honest.fetch(net.manifest)
        assert result.bad_peers == (liar.url,)
        assert all(honest.store.verified(chunk.digest) for chunk in net.manifest.chunks)


def test_processes_that_share_a_store_fetch_each_chunk_once(tmp_path: Path) -> None:
    with _net(tmp_path, domains="a", source_rate_bytes_s=_NUM_CHUNKS * _CHUNK_BYTES / 1.0) as net:
        host = net.hosts[0]
        with ThreadPoolExecutor(2) as pool:
            results = [future.result() for future in [pool.submit(host.fetch, net.manifest) for _ in range(2)]]
        assert sum(result.bytes_fetched for result in results) == net.manifest.num_bytes
        assert all(r.bytes_fetched + r.bytes_local == net.manifest.num_bytes for r in results)


@pytest.mark.parametrize("domains", ["aabb", "abbb"])
def test_about_one_copy_crosses_into_another_domain(tmp_path: Path, domains: str) -> None:
    with _net(tmp_path, domains=domains, source_rate_bytes_s=_NUM_CHUNKS * _CHUNK_BYTES / 1.5) as net:
        for future in net.fetch_all():
            future.result()
        _check_has_all(net)
        assert net.source_copies <= 2.3
