"""The news of a host over HTTP: `POST /v1/news`, a stream of lines for as long as the asker keeps it open.

Role: one resource of the peer server; `news` has the words, `presence` decides what is told.
Data in: requests, and the journals of the stores, looked at every `_POLL_S` while somebody listens. Data out: one JSON
line at a time, `_GAP_S` apart at least, `NEWS_BEAT_S` at most.
Invariants: at most `max_streams` streams and `_MAX_WANTED` digests are held, more get 503. A chunk that the journals
did not tell of is found by looking, `_LOOK_S` later. A host that vanishes without a word is noticed after
`_SILENCE_S`, as is one that does not read.
Failure: a failing stream ends that stream only, and with it the membership.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from aiohttp import web

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.journal import Journals
from pipeline.weights.news import MAX_NEWS_BYTES, NEWS_BEAT_S, NewsRequest, decode_request, encode_news
from pipeline.weights.peer_chunks import Refuse, Stores
from pipeline.weights.presence import Interest, NewsStream, Presence
from schemas.errors import WeightsError

_POLL_S = 0.01
_GAP_S = 0.02
_LOOK_S = 5.0
_LOOK_SHARE = 50  # looking takes at most one part in this of the time
_SILENCE_S = 5.0
_BODY_LIMIT_S = 10.0
_SMALL_BYTES = 64 * 1024  # a longer body is read beside the loop
_MAX_WANTED = 4 * 2**20
_FEW = 500  # more files are looked for by listing their folders


class NewsResource:
    """See the module.

    Args:
        stores: gives the stores to tell of.
        domain: of this host, told in the first line.
        max_streams: open at a time.
        refuse: makes the answer to a request that is refused, from status and text.
    """

    def __init__(self, stores: Stores, *, domain: str, max_streams: int, refuse: Refuse) -> None:
        self._stores = stores
        self._domain = domain
        self._max_streams = max_streams
        self._refuse = refuse
        self._presence = Presence()
        self._journals = self._new_journals()
        self._num_streams = 0
        self._is_open = asyncio.Event()  # somebody listens
        self._is_closing = False
        self._first_looks: dict[Interest, asyncio.Task[None]] = {}
        self._look: asyncio.Task[None] | None = None  # a later one, for all
        self._next_look_s = 0.0

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for news."""
        if self._num_streams >= self._max_streams:
            return self._refuse(503, f"{self._num_streams} streams are open, allowed are {self._max_streams}")
        self._num_streams += 1
        try:
            asked = await self._read(request)
            if isinstance(asked, web.Response):
                return asked
            return await self._serve(request, asked=asked)
        finally:
            self._num_streams -= 1

    async def watch(self) -> None:
        """Tell of what comes into the stores; to be cancelled."""
        must_look = False
        while True:
            await self._is_open.wait()
            digests, is_lost = self._journals.poll()
            self._presence.add(digests)
            must_look |= is_lost
            if (must_look or self._now_s() >= self._next_look_s) and (self._look is None or self._look.done()):
                self._look = asyncio.create_task(self._look_for_all())
                must_look = False
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """End all streams."""
        self._is_closing = True
        for interest in self._presence.interests:
            for stream in interest.streams:
                stream.wake()

    async def _read(self, request: web.Request) -> NewsRequest | web.Response:
        try:
            async with asyncio.timeout(_BODY_LIMIT_S):
                body = await request.read()
            if len(body) <= _SMALL_BYTES:
                return decode_request(body)
            return await asyncio.to_thread(decode_request, body)
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(413, f"a request for news has at most {MAX_NEWS_BYTES} bytes")
        except TimeoutError:
            return self._refuse(408, f"the request did not arrive within {_BODY_LIMIT_S:g} s")
        except WeightsError as error:
            return self._refuse(400, error.message)

    async def _serve(self, request: web.Request, *, asked: NewsRequest) -> web.StreamResponse:
        if self._presence.num_wanted + len(asked.want) > _MAX_WANTED:
            return self._refuse(503, f"more than {_MAX_WANTED} chunks would be waited for")
        if not self._presence.interests:  # what is there by now is found by looking
            self._journals = self._new_journals()
            self._journals.poll()
            self._next_look_s = self._now_s() + _LOOK_S
        woken = asyncio.Event()
        stream = self._presence.open(asked, wake=woken.set)
        self._is_open.set()
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        try:
            await self._first_look(stream.interest)
            _notice_silence(request)
            await response.prepare(request)
            stream.begin()
            await self._tell(response, stream, woken=woken)
        except (ConnectionError, TimeoutError):  # the asker has left, or does not read
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._close(stream)
        return response

    async def _tell(self, response: web.StreamResponse, stream: NewsStream, *, woken: asyncio.Event) -> None:
        domain: str | None = self._domain
        while not self._is_closing:
            woken.clear()
            line = encode_news(replace(stream.take(), domain=domain))
            domain = None
            async with asyncio.timeout(_SILENCE_S):
                await response.write(line)
            await asyncio.sleep(_GAP_S)
            if not stream.has_more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(NEWS_BEAT_S - _GAP_S):
                        await woken.wait()

    async def _first_look(self, interest: Interest) -> None:
        """Streams with the same interest share it, whoever of them stays."""
        if interest not in self._first_looks:
            self._first_looks[interest] = asyncio.create_task(self._look_for(interest))
        await asyncio.shield(self._first_looks[interest])

    async def _look_for_all(self) -> None:
        began_s = self._now_s()
        for interest in self._presence.interests:
            await self._look_for(interest)
        self._next_look_s = self._now_s() + max(_LOOK_S, _LOOK_SHARE * (self._now_s() - began_s))

    async def _look_for(self, interest: Interest) -> None:
        before = frozenset(interest.known)
        present = await asyncio.to_thread(_present, interest.digests, self._stores())
        interest.looked(before=before, present=present)

    def _close(self, stream: NewsStream) -> None:
        self._presence.close(stream)
        if not stream.interest.streams:
            self._first_looks.pop(stream.interest, None)
        if not self._presence.interests:
            self._is_open.clear()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _new_journals(self) -> Journals:
        return Journals(lambda: [store.root for store in self._stores()])


def _present(digests: frozenset[str], stores: Sequence[ChunkStore]) -> set[str]:
    """Those of the digests, which were checked before, that are in a store."""
    roots = [f"{store.root}/chunks" for store in stores]
    if len(digests) <= _FEW:
        return {digest for digest in digests for root in roots if os.path.exists(f"{root}/{digest[:2]}/{digest}")}
    found: set[str] = set()
    prefixes = {digest[:2] for digest in digests}
    for root in roots:
        for prefix in prefixes:
            with suppress(OSError):  # no such folder
                found.update(digests.intersection(os.listdir(f"{root}/{prefix}")))
    return found


def _notice_silence(request: web.Request) -> None:
    """A host that is gone does not acknowledge what it is sent; the system then ends the connection."""
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_SILENCE_S * 1000))
