"""Fetching a version's chunks into the local store: staging only, nothing is loaded (promise 10).

Role: between a manifest and `decode_state`. Runs beside generation.
Data in and out: a manifest and peers; chunks in the store, and an account of what it took.
Invariants: a chunk enters the store only with the right digest, so what was fetched is kept whatever happens next;
after success every chunk of the manifest was in the store and verified. Chunks that are there already are verified, not
fetched. The manifest is checked before anything is asked for. Processes that share the store never fetch a chunk twice
at once.
Failure: bad, slow and dead peers are left for others until the deadline, then `DeadlineExceeded` names the chunks and
the peers; a full store or a contradictory manifest is `WeightsError` at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerInfo
from pipeline.weights.download import ClientSettings, PeerClient
from pipeline.weights.followers import Followers
from pipeline.weights.manifest import check_manifest
from pipeline.weights.news import Member
from pipeline.weights.peer_board import Fault, PeerBoard, Problem, where_to_look
from pipeline.weights.scopes import scope_of
from pipeline.weights.swarm import Ask, Swarm
from schemas.errors import ChunkMismatch, DeadlineExceeded, FetchCancelled, WeightsError
from schemas.records import ChunkRef, Manifest
from topics.clock import Deadline

_WATCH_S = 0.05  # how soon a cancel or the deadline is noticed
_MAX_NAMED_CHUNKS = 3
_ELSEWHERE_S = 0.05  # between two looks at a chunk that another process of this host fetches


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Limits of one fetch."""

    parallel: int = 16  # chunks in flight, each held in memory
    chunk_limit_s: float = 30.0  # a peer that takes longer for one chunk is left
    backoff_s: float = 0.1
    max_backoff_s: float = 2.0
    max_peers: int = 32  # followed at a time, besides the seeds
    join_s: float = 0.1  # longest wait for the first word of who else is fetching
    here: PeerInfo | None = None  # this host, where `me` is None: tells how far bytes came
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
    client: ClientSettings,
    deadline: Deadline,
    me: Member | None = None,
    extra_peers: Sequence[PeerInfo] = (),
    options: FetchOptions | None = None,
    cancel: threading.Event | None = None,
) -> FetchResult:
    """Bring every chunk of `manifest` into `store`, verified. Call it from a thread without an event loop.

    Args:
        me: this host, when a peer server serves `store`: it then shares the work with other members of its swarm.
        extra_peers: known besides the manifest's seeds.
        cancel: when set, the fetch is given up; what it has stays in the store.

    Raises:
        WeightsError: the manifest contradicts itself, the store is full, or no peer accepts the token.
        DeadlineExceeded: chunks are still missing.
        FetchCancelled: `cancel` was set.
    """
    check_manifest(manifest)
    _check_room(manifest, store=store)
    return fetch_chunks(
        FetchWork(
            name=f"version {manifest.version}",
            chunks=manifest.chunks,
            seeds=manifest.seeds,
            store=store,
            client=client,
            deadline=deadline,
            me=me,
            peers=extra_peers,
            options=options if options is not None else FetchOptions(),
        ),
        cancel=cancel,
    )


@dataclass(frozen=True, kw_only=True)
class FetchWork:
    """Chunks to fetch, from whom, and within which limits; see `fetch`."""

    name: str  # for messages
    chunks: Sequence[ChunkRef]  # where `num_bytes` is 0 the length is not known; it is bounded
    seeds: Sequence[str]
    store: ChunkStore
    client: ClientSettings
    deadline: Deadline
    me: Member | None = None
    peers: Sequence[PeerInfo] = ()
    options: FetchOptions = field(default_factory=FetchOptions)


def fetch_chunks(work: FetchWork, *, cancel: threading.Event | None = None) -> FetchResult:
    """`fetch` without a manifest; raises the same."""
    options = work.options
    if options.parallel < 1:
        raise WeightsError(f"parallel is {options.parallel}, it must be 1 or more; nothing was fetched")
    if options.owner is not None:
        work.store.pin(options.owner, {chunk.digest for chunk in work.chunks})
    return asyncio.run(_watched(_Fetch(work), cancel=cancel))


@dataclass
class _Account:
    bytes_fetched: int = 0
    bytes_local: int = 0


class _Fetch:
    """One fetch: workers that ask, and one follower for each peer's news."""

    def __init__(self, work: FetchWork) -> None:
        self.work = work
        options, clock = work.options, work.deadline.clock
        self.board = PeerBoard(clock=clock, backoff_s=options.backoff_s, max_backoff_s=options.max_backoff_s)
        self._account = _Account()
        self._chunks = list({chunk.digest: chunk for chunk in work.chunks}.values())
        self._seeds = [seed.rstrip("/") for seed in work.seeds]
        self._start_s = clock.monotonic()
        me = work.me
        self._here = work.options.here if me is None else PeerInfo(url=me.url, domain=me.domain)
        self._changed = asyncio.Event()
        self._choosing = asyncio.Lock()
        self._heard = asyncio.Event()  # somebody told who else is there
        self._swarm: Swarm | None = None

    async def run(self) -> FetchResult:
        missing = await asyncio.to_thread(self._look_at_store)
        self._swarm = swarm = self._make_swarm(missing)
        if missing:
            try:
                async with PeerClient(self.work.client) as client, asyncio.TaskGroup() as group:
                    await self._work_together(swarm, client=client, group=group)
            except ExceptionGroup as group_error:  # the first one ended the others
                raise group_error.exceptions[0] from group_error
        return FetchResult(
            bytes_fetched=self._account.bytes_fetched,
            bytes_local=self._account.bytes_local,
            seconds=self.work.deadline.clock.monotonic() - self._start_s,
            bad_peers=self.board.bad_peers,
            notices=self.board.notices,
        )

    def missing(self) -> str:
        """The chunks still missing, for a message."""
        digests = sorted(self._swarm.missing) if self._swarm is not None else [c.digest for c in self._chunks]
        named = ", ".join(digests[:_MAX_NAMED_CHUNKS])
        more = ", ..." if len(digests) > _MAX_NAMED_CHUNKS else ""
        return f"{len(digests)} of {len(self._chunks)} chunks ({named}{more})"

    def _look_at_store(self) -> list[ChunkRef]:
        missing = [chunk for chunk in self._chunks if not self.work.store.verified(chunk.digest)]
        self._account.bytes_local = sum(c.num_bytes for c in self._chunks) - sum(c.num_bytes for c in missing)
        return missing

    def _make_swarm(self, missing: Sequence[ChunkRef]) -> Swarm:
        work = self.work
        return Swarm(
            missing,
            me=work.me,
            seeds=self._seeds,
            board=self.board,
            clock=work.deadline.clock,
            parallel=work.options.parallel,
            rng=Random(None if work.me is None else work.me.url),  # noqa: S311 - spreads load, guards nothing
        )

    async def _work_together(self, swarm: Swarm, *, client: PeerClient, group: asyncio.TaskGroup) -> None:
        work = self.work
        followers = Followers(
            swarm, client=client, group=group, me=work.me, max_peers=work.options.max_peers, told=self._told
        )
        own = [] if work.me is None else [PeerInfo(url=work.me.url, domain=work.me.domain)]
        followers.begin(self._seeds, peers=[*own, *work.peers])
        if work.me is not None and not swarm.sole:
            await _wait(self._heard, work.options.join_s)
        workers = [group.create_task(self._work(swarm, client=client)) for _ in range(work.options.parallel)]
        await asyncio.wait(workers)
        followers.end()

    def _told(self, first: bool) -> None:
        if first:
            self._heard.set()
        self._changed.set()

    async def _work(self, swarm: Swarm, *, client: PeerClient) -> None:
        while (ask := await self._next(swarm)) is not None:
            await self._obtain(ask, swarm=swarm, client=client)
            self._changed.set()

    async def _next(self, swarm: Swarm) -> Ask | None:
        """What to ask next; None: nothing is missing. One worker at a time looks: what it cannot ask, nobody can."""
        async with self._choosing:
            while swarm.num_missing:
                ask = swarm.next()
                if ask is not None:
                    return ask
                self._changed.clear()
                await _wait(self._changed, swarm.wait_s())
        return None

    async def _obtain(self, ask: Ask, *, swarm: Swarm, client: PeerClient) -> None:
        """Ask, unless the chunk is there by now or another process of this host is at it."""
        digest, store = ask.chunk.digest, self.work.store
        if ask.again:
            swarm.report(ask, problem=await self._ask(ask, client=client))
            return
        with store.claim(digest) as is_ours:
            if store.has(digest) and await asyncio.to_thread(store.verified, digest):
                self._account.bytes_local += ask.chunk.num_bytes
                swarm.put_off(ask)
                swarm.obtained(digest)
                return
            if is_ours:
                swarm.report(ask, problem=await self._ask(ask, client=client))
                return
        await asyncio.sleep(_ELSEWHERE_S)
        swarm.put_off(ask)

    async def _ask(self, ask: Ask, *, client: PeerClient) -> Problem | None:
        limit_s = min(self.work.options.chunk_limit_s, self.work.deadline.remaining_s())
        answer = await client.download(ask.url, chunk=ask.chunk, limit_s=limit_s)
        if isinstance(answer, Problem):
            return answer
        try:
            await asyncio.to_thread(self.work.store.put, answer, expect=ask.chunk.digest)
        except ChunkMismatch as error:
            return Problem(fault=Fault.BAD, detail=error.message)
        self._account.bytes_fetched += len(answer)
        domain = "" if self._swarm is None else self._swarm.domain_of(ask.url)
        self.work.client.on_received(scope_of(ask.url, domain=domain, here=self._here), len(answer))
        return None


async def _watched(job: _Fetch, *, cancel: threading.Event | None) -> FetchResult:
    """Run the job under its deadline and the caller's cancel."""
    name, deadline = job.work.name, job.work.deadline
    work = asyncio.create_task(job.run())
    try:
        while not (await asyncio.wait({work}, timeout=_WATCH_S))[0]:
            if cancel is not None and cancel.is_set():
                raise FetchCancelled(f"the fetch of {name} was given up, {job.missing()} were missing")
            if deadline.expired:
                raise DeadlineExceeded(
                    f"waited {deadline.limit_s:g} s for {job.missing()} of {name}; it is not loaded. "
                    f"Peers: {job.board.summary()}",
                    hint=where_to_look(job.work.seeds),
                )
        return work.result()
    finally:
        work.cancel()
        await asyncio.wait({work})


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _check_room(manifest: Manifest, *, store: ChunkStore) -> None:
    num_bytes = sum({chunk.digest: chunk.num_bytes for chunk in manifest.chunks}.values())
    if num_bytes > store.max_bytes:
        raise WeightsError(
            f"version {manifest.version} has {num_bytes} bytes of chunks, the store {store.root} may hold "
            f"{store.max_bytes}; it is not fetched",
            hint="raise the store's max_bytes",
        )
