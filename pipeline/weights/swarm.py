"""Which chunk to ask whom for next: the decisions of one fetch, among others that fetch the same.

    seeds, other domains --(each chunk once, by its owner)--> hosts of a domain --(rarest first)--> each other

Role: pure state and decisions for `fetcher`; holds no connection.
Data in: chunks, peers, their news, what became of each request. Data out: the next `Ask`, or how long to wait.
Invariants: a chunk that a peer of the own domain has is taken there, the rarest first, from the least loaded. What is
not in the domain yet is brought by one member of it, by rendezvous hashing; seeds are asked as if they were outside, so
that a source sends about one copy. Work of others is done only after a while without anything else to do, from the end
its owner comes to last. Nothing waits for one peer: what takes much longer than usual is asked for once more elsewhere.
Failure: `WeightsError` when no peer is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from pipeline.weights.directory import PeerInfo
from pipeline.weights.in_flight import InFlight
from pipeline.weights.members import Members
from pipeline.weights.news import Member, News
from pipeline.weights.peer_board import Fault, PeerBoard, Problem, where_to_look
from pipeline.weights.pool import Pool
from schemas.errors import WeightsError
from schemas.records import ChunkRef
from topics.clock import Clock

_MIN_PER_PEER = 2  # requests in flight at one peer: one is on its way while the other one is verified
_NUM_SAMPLED = 32  # chunks compared for the rarest
_NUM_TRIED = 8  # own chunks looked at for one that can be asked for now
_LOOK_S = 0.2  # between looks for members that stand still: all that is missing is gone through
_FIRST_OUTSIDE = 2  # requests of a host that knows of no other: more with each chunk, as others may be about to come
_MANY = 4  # other members


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Ask `url` for a chunk."""

    chunk: ChunkRef
    url: str
    again: bool = False  # it is on its way from somebody else already, and late


class Swarm:
    """See the module.

    Args:
        chunks: all that is missing; each digest once.
        me: this host as a member; None: it serves nobody, and leaves bringing chunks to members where there are any.
        seeds: peers that have every chunk.
        parallel: most requests in flight.
        rng: of this host, so that hosts do not all ask for the same.
    """

    def __init__(
        self,
        chunks: Sequence[ChunkRef],
        *,
        me: Member | None,
        seeds: Sequence[str],
        board: PeerBoard,
        clock: Clock,
        parallel: int,
        rng: Random,
    ) -> None:
        self._missing = {chunk.digest: chunk for chunk in chunks}
        self._me = me
        self._board = board
        self._clock = clock
        self._parallel = parallel
        self._rng = rng
        self._seeds = tuple(dict.fromkeys(seeds))
        self._domains: dict[str, str] = {}  # of peers that are no seeds
        self._holders: dict[str, set[str]] = {}  # digest -> peers that say they have it
        self._members = Members(list(self._missing), me="" if me is None else me.url, clock=clock)
        self._near = Pool()  # missing, not asked for, and at a peer of the own domain
        self._far = Pool(self._mine())  # missing, not asked for, not near, and ours to bring
        self._requests = InFlight(clock)
        self._look_at_s = self._relieve_at_s = 0.0  # for members that stand still; for those that are slower
        self._seed_domains: dict[str, str] = {}
        self.domain_of: Callable[[str], str] = lambda url: self._domains.get(url, self._seed_domains.get(url, ""))
        for seed in self._seeds:
            board.add(seed)

    @property
    def num_missing(self) -> int:
        """Chunks that are not there yet."""
        return len(self._missing)

    @property
    def missing(self) -> Iterable[str]:
        """Their digests."""
        return self._missing.keys()

    @property
    def sole(self) -> bool:
        """Whether this host sits beside a seed: then there is nothing to share."""
        return self._me is not None and self._me.url in self._seeds

    def add_peer(self, peer: PeerInfo) -> bool:
        """A peer to follow; False when it is a seed or known. This host's own may have chunks in another store."""
        if peer.url in self._seeds or peer.url in self._domains:
            return False
        self._domains[peer.url] = peer.domain
        self._board.add(peer.url)
        return True

    def heard(self, url: str, news: News) -> list[PeerInfo]:
        """Take in what a peer told. Gives the peers that are new by it."""
        changed = False
        if url in self._seeds:
            self._seed_domains.update({} if news.domain is None else {url: news.domain})
        elif news.chunks:
            changed = self._progressed(url, news.chunks)
            for digest in news.chunks:
                self._holds(url, digest)
        for member in news.left:
            changed = self._members.left(member.url, teller=url) or changed
        found = [PeerInfo(url=member.url, domain=member.domain) for member in (*news.joined, *news.known)]
        new = [peer for peer in found if self.add_peer(peer)]
        for member in news.joined:
            if self._is_other(member) and member.domain == self._domain and member.url not in self._seeds:
                changed = self._members.joined(member.url, teller=url) or changed
        if changed:
            self._split()
        return new

    def lost(self, url: str, problem: Problem) -> None:
        """A peer's news have stopped: it is no member, and what it has cannot be counted on."""
        self._board.lost(url, problem)
        changed = self._members.silent(url)
        for digest, holders in self._holders.items():
            if url in holders:
                holders.discard(url)
                self._place(digest)
        if changed:
            self._split()

    def next(self) -> Ask | None:
        """The next request; None: nothing can be asked for now.

        Raises:
            WeightsError: there is no peer, or each has refused the token.
        """
        if len(self._requests) >= self._parallel:
            return None
        return (
            self._bring()
            or self._take_near()
            or self._take_over()
            or self._relieve()
            or self._help()
            or self._ask_again()
        )

    def wait_s(self) -> float:
        """How long to wait at most before `next` may know more.

        Raises:
            WeightsError: there is no peer, or each has refused the token.
        """
        peers = [*self._seeds, *self._domains]
        digest = next(iter(self._far), next(iter(self._missing), ""))
        pause_s = self._board.wait_s(peers, digest=digest)
        if pause_s is None:
            raise WeightsError(
                f"no peer is left to ask for chunk {digest}: {self._board.summary()}; the version is not loaded",
                hint=where_to_look(self._seeds),
            )
        return min(max(pause_s, 0.01), 0.25)

    def put_off(self, ask: Ask) -> None:
        """The request was not made: another process of this host is at it."""
        self._board.withdrawn(ask.url)
        self._ended(ask)

    def report(self, ask: Ask, *, problem: Problem | None) -> None:
        """Say what became of a request."""
        self._board.report(ask.url, ask.chunk.digest, problem=problem)
        if problem is None:
            if self._requests.arrived(ask.chunk.digest, again=ask.again):
                self._members.brought_here()
            self.obtained(ask.chunk.digest)
            return
        if problem.fault in (Fault.ABSENT, Fault.BAD):
            self._holders.get(ask.chunk.digest, set()).discard(ask.url)
        self._ended(ask)

    def obtained(self, digest: str) -> None:
        """The chunk is there, from wherever."""
        self._missing.pop(digest, None)
        self._holders.pop(digest, None)
        self._requests.discard(digest)
        self._near.discard(digest)
        self._far.discard(digest)

    def _bring(self) -> Ask | None:
        """A chunk of ours, from outside the domain."""
        if self._requests.num_outside >= self._max_outside:
            return None
        for digest in self._far.first(_NUM_TRIED):
            ask = self._ask_outside(digest)
            if ask is not None:
                return ask
            self._far.rotate(digest)
        return None

    def _take_near(self) -> Ask | None:
        """The rarest of some chunks that peers of the own domain have."""
        digests = self._near.sample(_NUM_SAMPLED, rng=self._rng)
        for digest in sorted(digests, key=lambda digest: len(self._holders[digest])):
            url = self._pick(self._near_holders(digest), digest)
            if url is not None:
                return self._begin(digest, url, is_near=True)
        return None

    def _take_over(self) -> Ask | None:
        """What a member should have brought that has stood still while others got on."""
        now_s = self._clock.monotonic()
        if now_s < self._look_at_s:
            return None
        self._look_at_s = now_s + _LOOK_S
        if not self._members.set_aside(self._unclaimed(), patience_s=self._requests.patience_s):
            return None
        self._split()
        return self._bring()

    def _relieve(self) -> Ask | None:
        """One chunk of a member that is slower, when all of ours are here."""
        now_s = self._clock.monotonic()
        if self._far or not self._leads or now_s < self._relieve_at_s or self._requests.num_outside > 0:
            return None
        digest = self._members.shares.spare(self._unclaimed(), num_kept=self._max_outside + 1)
        ask = None if digest is None else self._ask_outside(digest)
        if ask is None:
            self._relieve_at_s = now_s + _LOOK_S
        return ask

    def _help(self) -> Ask | None:
        """After a while in which nobody brought anything: one chunk that somebody else should have brought."""
        if self._requests or self._clock.monotonic() < self._members.newest_s + self._requests.patience_s:
            return None
        left = self._unclaimed()
        return self._ask_outside(self._members.shares.next_to_help(left)) if left else None

    def _unclaimed(self) -> list[str]:
        """Missing chunks that others are to bring and have not brought yet."""
        return [
            digest
            for digest in self._missing
            if digest not in self._near and digest not in self._far and digest not in self._requests
        ]

    def _ask_again(self) -> Ask | None:
        """A request that is late, once more, at another peer."""
        for digest, urls in self._requests.late():
            for sources in (self._near_holders(digest), self._own_seeds, self._far_holders(digest), self._seeds):
                url = self._pick([url for url in sources if url not in urls], digest)
                if url is not None:
                    self._requests.begin_again(digest, url)
                    return Ask(chunk=self._missing[digest], url=url, again=True)
        return None

    def _ask_outside(self, digest: str) -> Ask | None:
        for sources in (self._own_seeds, self._far_holders(digest), self._seeds):
            url = self._pick(sources, digest)
            if url is not None:
                return self._begin(digest, url, is_near=False)
        return None

    def _pick(self, urls: Iterable[str], digest: str) -> str | None:
        return self._board.pick(urls, digest=digest, max_in_flight=self._max_per_peer)

    def _begin(self, digest: str, url: str, *, is_near: bool) -> Ask:
        ask = Ask(chunk=self._missing[digest], url=url)
        self._requests.begin(digest, url, is_near=is_near)
        self._near.discard(digest)
        self._far.discard(digest)
        return ask

    def _ended(self, ask: Ask) -> None:
        """A request gave nothing: unless another one is on its way, the chunk may be asked for again."""
        self._requests.ended(ask.chunk.digest, ask.url)
        self._place(ask.chunk.digest)

    @property
    def _domain(self) -> str:
        return "" if self._me is None else self._me.domain

    @property
    def _leads(self) -> bool:
        """Whether this host brings chunks into its domain."""
        return self._me is not None or self._members.shares.alone

    @property
    def _max_per_peer(self) -> int:
        return max(_MIN_PER_PEER, self._parallel // max(1, len(self._seeds) + len(self._domains)))

    @property
    def _max_outside(self) -> int:
        """Few at a time while others do the same: the sooner a chunk is here whole, the sooner it goes round."""
        if self.sole:
            return self._parallel
        if self._members.shares.alone:
            return min(self._parallel, _FIRST_OUTSIDE + self._requests.num_brought)
        return 2 if len(self._members.shares.others) < _MANY else 1

    @property
    def _own_seeds(self) -> list[str]:
        return [url for url in self._seeds if self._seed_domains.get(url) == self._domain]

    def _is_other(self, member: Member) -> bool:
        return self._me is None or (member.url != self._me.url and member.swarm == self._me.swarm)

    def _near_holders(self, digest: str) -> list[str]:
        return [url for url in self._holders.get(digest, ()) if self._domains[url] == self._domain]

    def _far_holders(self, digest: str) -> list[str]:
        return [url for url in self._holders.get(digest, ()) if self._domains[url] != self._domain]

    def _holds(self, url: str, digest: str) -> None:
        if digest in self._missing:
            self._holders.setdefault(digest, set()).add(url)
            self._place(digest)

    def _place(self, digest: str) -> None:
        """Put a chunk where it belongs after something changed."""
        is_open = digest in self._missing and digest not in self._requests
        is_near = is_open and bool(self._near_holders(digest))
        self._near.put(digest, present=is_near)
        self._far.put(digest, present=is_open and not is_near and digest in self._own)

    def _mine(self) -> list[str]:
        self._own = dict.fromkeys(self._missing if self.sole else self._members.shares.mine() if self._leads else ())
        return list(self._own)

    def _split(self) -> None:
        """Members came or went."""
        mine = self._mine()
        self._far = Pool(d for d in mine if d in self._missing and d not in self._requests and d not in self._near)

    def _progressed(self, url: str, digests: Sequence[str]) -> bool:
        """A peer has chunks: whether that makes it a member again."""
        fresh = [digest for digest in digests if digest in self._missing and not self._near_holders(digest)]
        if not fresh or self._domains.get(url) != self._domain:
            return False
        return self._members.brought(url)
