"""Who waits for which chunks at this host, what is there of them, and who else fetches the same.

Role: the decisions of the news streams, without I/O; `peer_news` feeds it and sends what it gives.
Data in: requests, digests that came, results of looking at the stores. Data out: `News`, line by line.
Invariants: a stream is told each chunk it wants at least once after it came, and again when it came back; members of
its own swarm but itself, from the first line on. Streams that want the same share one memory of it. A host is a member
as long as one stream that names it is open.
Failure: none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from pipeline.weights.news import Member, News, NewsRequest

MAX_LINE_CHUNKS = 50_000  # 3.4 MB: well within what a reader accepts as one line
MAX_KNOWN = 64  # hosts of earlier fetches
_TRIM_CHUNKS = 10_000
_NOBODY: Mapping[str, Member] = MappingProxyType({})


class Interest:
    """What some streams want, and what of it is known to be there."""

    def __init__(self, digests: frozenset[str]) -> None:
        self.digests = digests
        self.known: set[str] = set()
        self.streams: set[NewsStream] = set()
        self._told: list[str] = []  # in order; positions count from the first ever
        self._first = 0

    @property
    def end(self) -> int:
        """The position after the last chunk."""
        return self._first + len(self._told)

    def since(self, position: int) -> list[str]:
        """Chunks from there on."""
        return self._told[position - self._first :]

    def add(self, digests: Iterable[str]) -> None:
        """Chunks that came, wanted or not."""
        new = [digest for digest in digests if digest in self.digests]
        if new:
            self.known.update(new)
            self._remember(new)

    def looked(self, *, before: Set[str], present: Set[str]) -> None:
        """What a look at the stores gave, and what was known when it began."""
        self.known -= before - present
        self.add(present - self.known)

    def _remember(self, digests: Sequence[str]) -> None:
        self._told += digests
        self._trim()
        for stream in self.streams:
            stream.wake()

    def _trim(self) -> None:
        if len(self._told) > _TRIM_CHUNKS:
            low = min((stream.position for stream in self.streams), default=self.end)
            del self._told[: low - self._first]
            self._first = low


class FreshInterest(Interest):
    """Every chunk that comes."""

    def __init__(self) -> None:
        super().__init__(frozenset())

    def add(self, digests: Iterable[str]) -> None:
        """Chunks that came."""
        new = list(digests)
        if new:
            self._remember(new)


class Swarm:
    """The hosts that fetch one thing."""

    def __init__(self) -> None:
        self.members: Mapping[str, Member] = _NOBODY  # by URL; replaced whole, as streams hold what they told
        self.streams: dict[NewsStream, None] = {}  # in the order in which they came

    def update(self) -> None:
        """Work out the members again and wake whom it concerns."""
        members = {stream.member.url: stream.member for stream in self.streams if stream.member is not None}
        if members != self.members:
            self.members = members
            for stream in self.streams:
                stream.wake()


@dataclass(eq=False, kw_only=True)
class NewsStream:
    """One asker, and what it was told."""

    interest: Interest
    swarm: Swarm | None
    member: Member | None
    wake: Callable[[], None]  # called when there is something to take
    known: tuple[Member, ...] = ()  # hosts of earlier fetches, to be told once
    position: int = 0  # in the interest
    _untold: list[str] = field(default_factory=list)
    _members_told: Mapping[str, Member] = field(default_factory=dict)

    @property
    def has_more(self) -> bool:
        """Whether the last line was cut for its length."""
        return bool(self._untold)

    def begin(self) -> None:
        """Tell all that is known, once it is."""
        self.position = self.interest.end
        self._untold = list(self.interest.known)

    def take(self) -> News:
        """What was not told yet; empty when there is nothing."""
        self._untold += self.interest.since(self.position)
        self.position = self.interest.end
        chunks, self._untold = self._untold[:MAX_LINE_CHUNKS], self._untold[MAX_LINE_CHUNKS:]
        joined, left = self._changes()
        known, self.known = self.known, ()
        return News(chunks=tuple(chunks), joined=joined, left=left, known=known)

    def _changes(self) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        told, now = self._members_told, _NOBODY if self.swarm is None else self.swarm.members
        if told is now or self.member is None:
            return (), ()
        self._members_told = now
        own = self.member.url
        joined = tuple(member for url, member in now.items() if told.get(url) != member and url != own)
        return joined, tuple(member for url, member in told.items() if url not in now and url != own)


class Presence:
    """All open streams of a peer server."""

    def __init__(self) -> None:
        self._interests: dict[frozenset[str] | None, Interest] = {}  # None: every chunk that comes
        self._known: OrderedDict[str, Member] = OrderedDict()  # by URL, the latest last
        self._swarms: dict[str, Swarm] = {}
        self.num_wanted = 0  # digests held in memory

    @property
    def interests(self) -> list[Interest]:
        """What is wanted now."""
        return list(self._interests.values())

    def open(self, request: NewsRequest, *, wake: Callable[[], None]) -> NewsStream:
        """A new stream; its member, if it names one, joins."""
        stream = NewsStream(
            interest=self._interest(None if request.fresh else frozenset(request.want)),
            swarm=None if request.member is None else self._swarms.setdefault(request.member.swarm, Swarm()),
            member=request.member,
            wake=wake,
            known=tuple(self._known.values()),
        )
        stream.interest.streams.add(stream)
        stream.position = stream.interest.end
        if stream.swarm is not None:
            stream.swarm.streams[stream] = None
            stream.swarm.update()
        if request.member is not None:
            self._know(request.member)
        return stream

    def close(self, stream: NewsStream) -> None:
        """The stream has ended; its member leaves unless another one names it."""
        interest = stream.interest
        interest.streams.discard(stream)
        if not interest.streams:
            self._interests = {key: kept for key, kept in self._interests.items() if kept is not interest}
            self.num_wanted -= len(interest.digests)
        if stream.swarm is not None and stream.member is not None:
            del stream.swarm.streams[stream]
            stream.swarm.update()
            if not stream.swarm.streams:
                self._swarms.pop(stream.member.swarm, None)

    def add(self, digests: list[str]) -> None:
        """Chunks that came."""
        if digests:
            for interest in self._interests.values():
                interest.add(digests)

    def _know(self, member: Member) -> None:
        """The latest hosts are kept: what they fetched can be had from them, whatever they fetch now."""
        self._known.pop(member.url, None)
        self._known[member.url] = member
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _interest(self, digests: frozenset[str] | None) -> Interest:
        found = self._interests.get(digests)
        if found is None:
            found = self._interests[digests] = FreshInterest() if digests is None else Interest(digests)
            self.num_wanted += len(found.digests)
        return found
