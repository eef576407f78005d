"""One host of the benchmark: `python -m ops.bench.weights.node`, orders on stdin, answers on stdout.

Role: a chunk store, a peer server over it and a fetch into it, as a host of a run has them; on the learner's host an
upload beside them.
Data in and out: see `words`. It ends when its input ends, so no node outlives the benchmark.
Invariants: one fetch and one upload at a time; a later order replaces the one before, what that had brought stays.
Failure: what goes wrong is answered as `Failed`.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from ops.bench.weights import words
from pipeline.traffic.classes import TrafficClass
from pipeline.traffic.permit import Permit
from pipeline.traffic.sender import HostSender
from pipeline.uploads.sending import Progress, UploadCut, UploadJob, send_checkpoint
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerInfo
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import FetchOptions, fetch
from pipeline.weights.files import BytesLike
from pipeline.weights.news import Member
from pipeline.weights.peer import PeerServer, PeerSettings
from schemas.codec import decode
from schemas.errors import FetchCancelled, RlweaveError
from schemas.records import ChunkRef, Manifest
from topics.clock import Deadline

_MAX_UPLOADS = 64


_Order = TypeVar("_Order", words.Fetch, words.Upload)


class _Meter:
    """Adds up bytes, and tells once when a mark is passed. Called from several threads."""

    def __init__(self, tell: Callable[[words.Answer], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._mark_bytes = 0
        self.num_bytes = 0

    def mark(self, num_bytes: int) -> None:
        with self._lock:
            self._mark_bytes = num_bytes

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes
            passed = 0 < self._mark_bytes <= self.num_bytes
            if passed:
                self._mark_bytes = 0
        if passed:
            self._tell(words.Reached(num_bytes=self.num_bytes))


class _MeteredStore(ChunkStore):
    """A store that says what is put into it."""

    def __init__(self, root: Path, *, max_bytes: int, meter: _Meter) -> None:
        super().__init__(root, max_bytes=max_bytes)
        self._meter = meter

    def put(self, data: BytesLike, *, expect: str | None = None, owner: str | None = None) -> ChunkRef:
        chunk = super().put(data, expect=expect, owner=owner)
        self._meter.add(chunk.num_bytes)
        return chunk


class _Job(Generic[_Order]):
    """One fetch or upload, on a thread of its own."""

    def __init__(self, order: _Order, *, run: Callable[[_Order, threading.Event], None]) -> None:
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=run, args=(order, self._cancel), name="job", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._cancel.set()
        self._thread.join()


class Node:
    """The orders of one host."""

    def __init__(self, tell: Callable[[words.Answer], None]) -> None:
        self._tell = tell
        self._token = ""
        self._store: ChunkStore | None = None
        self._server: PeerServer | None = None
        self._job: _Job[words.Fetch] | None = None
        self._upload: _Job[words.Upload] | None = None
        self._sender = HostSender(Permit(), managed=False)
        self._progress = Progress()
        self._held_up_s = 0.0
        self._stored = _Meter(tell)
        self._served = _Meter(tell)

    def obey(self, order: words.Order) -> None:
        """Carry out one order; a fetch goes on beside."""
        match order:
            case words.Serve():
                self._serve(order)
            case words.Fetch():
                self._end_job()
                self._stored.mark(order.tell_at_bytes)
                self._job = _Job(order, run=self._fetch)
            case words.Upload():
                self._end_upload()
                self._progress = Progress()
                self._upload = _Job(order, run=self._send)
            case words.Check():
                self._check(order)
            case words.Count():
                self._count()
            case words.Stop():
                self._stop()

    def _serve(self, order: words.Serve) -> None:
        self._stop_serving()
        self._token = order.token
        self._stored, self._served = _Meter(self._tell), _Meter(self._tell)
        self._served.mark(order.tell_at_bytes)
        self._held_up_s = 0.0
        link_bytes_s = None if order.link_bytes_s == 0 else order.link_bytes_s
        self._sender = HostSender(
            Permit(link_bytes_s=link_bytes_s), managed=order.managed, on_held_up=self._note_held_up
        )
        self._store = _MeteredStore(Path(order.root), max_bytes=order.max_bytes, meter=self._stored)
        settings = PeerSettings(
            stores=(self._store,),
            token=order.token,
            host=order.host,
            port=order.port,
            domain=order.domain,
            max_uploads=_MAX_UPLOADS,
            on_served_bytes=self._served.add,
            sender=self._sender,
        )
        self._server = PeerServer(settings)
        self._tell(words.Serving(url=self._server.start()))

    def _fetch(self, order: words.Fetch, cancel: threading.Event) -> None:
        manifest = replace(read_manifest(order.manifest_file), seeds=tuple(order.seeds))
        cancel.wait(max(0.0, order.at_s - time.monotonic()))
        try:
            got = fetch(
                manifest,
                store=self._served_store(),
                client=ClientSettings(token=self._token, rate_bytes_s=order.rate_bytes_s or None),
                deadline=Deadline.after(order.limit_s),
                me=self._member(order),
                extra_peers=[PeerInfo(url=url) for url in order.peers],
                options=FetchOptions() if order.parallel == 0 else FetchOptions(parallel=order.parallel),
                cancel=cancel,
            )
        except FetchCancelled:
            return
        except RlweaveError as error:
            self._tell(words.Failed(message=error.message))
            return
        self._tell(
            words.Done(
                at_s=time.monotonic(),
                bytes_fetched=got.bytes_fetched,
                bytes_local=got.bytes_local,
                notices=list(got.notices),
            )
        )

    def _send(self, order: words.Upload, cancel: threading.Event) -> None:
        job = UploadJob(
            folder=Path(order.folder),
            url=order.url,
            name=order.name,
            part_bytes=order.part_bytes,
            parallel=order.parallel,
        )
        began_s, progress = time.monotonic(), self._progress
        try:
            send_checkpoint(job, sender=self._sender, stop=cancel, progress=progress)
        except UploadCut:
            return
        except RlweaveError as error:
            self._tell(words.Failed(message=error.message))
            return
        self._tell(words.Uploaded(seconds=time.monotonic() - began_s, sent_bytes=progress.sent_bytes))

    def _count(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._tell(
            words.Counted(
                pid=os.getpid(),
                served_bytes=self._served.num_bytes,
                cpu_s=usage.ru_utime + usage.ru_stime,
                uploaded_bytes=self._progress.sent_bytes,
                held_up_s=self._held_up_s,
            )
        )

    def _note_held_up(self, _: TrafficClass, seconds: float) -> None:
        self._held_up_s += seconds

    def _member(self, order: words.Fetch) -> Member | None:
        if not order.swarm or self._server is None:
            return None
        return Member(url=self._server.url, domain=order.domain, swarm=order.swarm)

    def _check(self, order: words.Check) -> None:
        store = self._served_store()
        chunks = {chunk.digest: chunk.num_bytes for chunk in read_manifest(order.manifest_file).chunks}
        found_bytes = sum(num_bytes for digest, num_bytes in chunks.items() if store.verified(digest))
        self._tell(words.Checked(num_bytes=found_bytes))

    def _stop(self) -> None:
        self._end_job()
        self._end_upload()
        self._stop_serving()
        self._tell(words.Stopped())

    def _end_job(self) -> None:
        if self._job is not None:
            self._job.end()
            self._job = None

    def _end_upload(self) -> None:
        if self._upload is not None:
            self._upload.end()
            self._upload = None

    def _stop_serving(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = self._store = None

    def _served_store(self) -> ChunkStore:
        if self._store is None:
            raise words.BenchError("a node was told to fetch or check while it serves no store")
        return self._store


def read_manifest(file: str) -> Manifest:
    """A manifest from a file, as it travels on the topic.

    Raises:
        BenchError: the file holds something else.
    """
    record = decode(Path(file).read_bytes())
    if not isinstance(record, Manifest):
        raise words.BenchError(f"{file} holds a {type(record).__name__}, not a manifest")
    return record


def main() -> None:
    """Obey until the input ends."""
    lock = threading.Lock()

    def tell(answer: words.Answer) -> None:
        with lock:
            sys.stdout.buffer.write(words.encode(answer))
            sys.stdout.buffer.flush()

    node = Node(tell)
    tell(words.Hello(pid=os.getpid()))
    for line in sys.stdin.buffer:
        try:
            node.obey(words.decode_order(line))
        except RlweaveError as error:
            tell(words.Failed(message=error.message))
    os._exit(0)  # the driver is gone: nothing of this is kept


if __name__ == "__main__":
    main()
