"""Fetching a version's chunks into the local store: staging only, nothing is loaded (promise 10).

Role: between a manifest and `decode_state`. Runs beside generation.
Data in and out: a manifest and peers; chunks in the store, and an account of what it took.
Invariants: a chunk enters the store only with the right digest, so what was fetched is kept whatever happens next;
after success every chunk of the manifest was in the store and verified. Chunks that are there already are verified, not
fetched. The manifest is checked before anything is asked for.
Failure: bad, slow and dead peers are left for others until the deadline, then `DeadlineExceeded` names the chunks and
the peers; a full store or a contradictory manifest is `WeightsError` at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerInfo
from pipeline.weights.download import download, open_session
from pipeline.weights.manifest import check_manifest
from pipeline.weights.peer_board import Fault, PeerBoard, Problem
from schemas.errors import ChunkMismatch, DeadlineExceeded, FetchCancelled, WeightsError
from schemas.records import ChunkRef, Manifest
from topics.clock import Deadline

_WATCH_S = 0.05  # how soon a cancel or the deadline is noticed
_MAX_NAMED_CHUNKS = 3


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Limits of one fetch."""

    chunk_limit_s: float = 30.0  # a peer that takes longer for one chunk is left
    connect_limit_s: float = 3.0
    backoff_s: float = 0.1
    max_backoff_s: float = 2.0
    owner: str | None = None  # lease that pins every chunk of the manifest, from before the first is fetched


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """What a fetch took."""

    bytes_fetched: int
    bytes_local: int  # were in the store
    seconds: float
    bad_peers: tuple[str, ...]  # sent wrong bytes
    notices: tuple[str, ...]  # the first fault of each kind of each peer


def fetch(
    manifest: Manifest,
    *,
    store: ChunkStore,
    token: str,
    deadline: Deadline,
    extra_peers: Sequence[PeerInfo] = (),
    parallel: int = 4,
    options: FetchOptions | None = None,
    cancel: threading.Event | None = None,
) -> FetchResult:
    """Bring every chunk of `manifest` into `store`, verified. Call it from a thread without an event loop.

    Args:
        extra_peers: asked besides the manifest's seeds.
        parallel: chunks in flight, each held in memory.
        cancel: when set, the fetch is given up; what it has stays in the store.

    Raises:
        WeightsError: the manifest contradicts itself, the store is full, or no peer accepts the token.
        DeadlineExceeded: chunks are still missing.
        FetchCancelled: `cancel` was set.
    """
    if parallel < 1:
        raise WeightsError(f"parallel is {parallel}, it must be 1 or more; nothing was fetched")
    check_manifest(manifest)
    chunks = list({chunk.digest: chunk for chunk in manifest.chunks}.values())
    _check_room(manifest, chunks=chunks, store=store)
    chosen = options if options is not None else FetchOptions()
    if chosen.owner is not None:
        store.pin(chosen.owner, {chunk.digest for chunk in chunks})
    peers = [*extra_peers, *(PeerInfo(url=seed) for seed in manifest.seeds)]
    board = PeerBoard(peers, clock=deadline.clock, backoff_s=chosen.backoff_s, max_backoff_s=chosen.max_backoff_s)
    job = _Fetch(chunks, store=store, board=board, deadline=deadline, options=chosen)
    return asyncio.run(_watched(job, name=f"version {manifest.version}", token=token, parallel=parallel, cancel=cancel))


class _Fetch:
    """The work of one fetch: workers that take chunks from one queue."""

    def __init__(
        self,
        chunks: Sequence[ChunkRef],
        *,
        store: ChunkStore,
        board: PeerBoard,
        deadline: Deadline,
        options: FetchOptions,
    ) -> None:
        self.board = board
        self.deadline = deadline
        self.options = options
        self._store = store
        self._queue = deque(chunks)
        self._missing = {chunk.digest for chunk in chunks}
        self._num_chunks = len(chunks)
        self._bytes_fetched = 0
        self._bytes_local = 0
        self._start_s = deadline.clock.monotonic()

    async def run(self, *, token: str, parallel: int) -> FetchResult:
        session = open_session(token=token, parallel=parallel, connect_limit_s=self.options.connect_limit_s)
        try:
            async with session, asyncio.TaskGroup() as group:
                for _ in range(parallel):
                    group.create_task(self._work(session))
        except ExceptionGroup as group_error:  # the first one ended the others
            raise group_error.exceptions[0] from group_error
        return FetchResult(
            bytes_fetched=self._bytes_fetched,
            bytes_local=self._bytes_local,
            seconds=self.deadline.clock.monotonic() - self._start_s,
            bad_peers=self.board.bad_peers,
            notices=self.board.notices,
        )

    def missing(self) -> str:
        """The chunks still missing, for a message."""
        named = ", ".join(sorted(self._missing)[:_MAX_NAMED_CHUNKS])
        more = ", ..." if len(self._missing) > _MAX_NAMED_CHUNKS else ""
        return f"{len(self._missing)} of {self._num_chunks} chunks ({named}{more})"

    async def _work(self, session: aiohttp.ClientSession) -> None:
        while self._queue:
            chunk = self._queue.popleft()
            await self._obtain(chunk, session=session)
            self._missing.discard(chunk.digest)

    async def _obtain(self, chunk: ChunkRef, *, session: aiohttp.ClientSession) -> None:
        while True:
            if await asyncio.to_thread(self._store.verified, chunk.digest):  # there, or another process brought it
                self._bytes_local += chunk.num_bytes
                return
            pick = self.board.pick(chunk.digest)
            if pick.url is None:
                await asyncio.sleep(pick.wait_s)
                continue
            problem = await self._ask(pick.url, chunk=chunk, session=session)
            self.board.report(pick.url, chunk.digest, problem=problem)
            if problem is None:
                self._bytes_fetched += chunk.num_bytes
                return

    async def _ask(self, url: str, *, chunk: ChunkRef, session: aiohttp.ClientSession) -> Problem | None:
        limit_s = min(self.options.chunk_limit_s, self.deadline.remaining_s())
        answer = await download(session, url, chunk=chunk, limit_s=limit_s)
        if isinstance(answer, Problem):
            return answer
        try:
            await asyncio.to_thread(self._store.put, answer, expect=chunk.digest)
        except ChunkMismatch as error:
            return Problem(fault=Fault.BAD, detail=error.message)
        return None


async def _watched(job: _Fetch, *, name: str, token: str, parallel: int, cancel: threading.Event | None) -> FetchResult:
    """Run the job under its deadline and the caller's cancel."""
    work = asyncio.create_task(job.run(token=token, parallel=parallel))
    try:
        while not (await asyncio.wait({work}, timeout=_WATCH_S))[0]:
            if cancel is not None and cancel.is_set():
                raise FetchCancelled(f"the fetch of {name} was given up, {job.missing()} were missing")
            if job.deadline.expired:
                raise DeadlineExceeded(
                    f"waited {job.deadline.limit_s:g} s for {job.missing()} of {name}; it is not loaded. "
                    f"Peers: {job.board.summary()}"
                )
        return work.result()
    finally:
        work.cancel()
        await asyncio.wait({work})


def _check_room(manifest: Manifest, *, chunks: Sequence[ChunkRef], store: ChunkStore) -> None:
    num_bytes = sum(chunk.num_bytes for chunk in chunks)
    if num_bytes > store.max_bytes:
        raise WeightsError(
            f"version {manifest.version} has {num_bytes} bytes of chunks, the store {store.root} may hold "
            f"{store.max_bytes}; it is not fetched",
            hint="raise the store's max_bytes",
        )
