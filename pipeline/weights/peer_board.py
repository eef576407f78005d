"""How every peer behaved during one fetch, and whether it may be asked again.

Role: memory of faults for `swarm`, which decides whom to ask; holds no connection.
Data in and out: what became of each request; whether a peer is ready, how loaded it is, what to tell people.
Invariants: a fault makes its peer wait, longer each time in a row; an absent chunk only makes that chunk wait. A peer
that sent wrong bytes is asked only when no other is ready, since the fault may lie on the way; one that refused the
token is not asked again.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from topics.clock import Clock

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def where_to_look(seeds: Iterable[str]) -> str:
    """What a person looks at when no peer gave a chunk, as a hint."""
    local = [seed for seed in seeds if urlsplit(seed).hostname in _LOOPBACK]
    if local:
        return (
            f"{local[0]} is reached on the learner's machine only: on several hosts set weights.host, port and, where "
            "others see another address, advertised_url there; otherwise see that its peer process runs"
        )
    return (
        "see that the peer process runs there, that its port is open from here, and that every host has the same token "
        "(weights.token_file)"
    )


class Fault(StrEnum):
    """What can be wrong with an answer."""

    BAD = "bad"  # other bytes than asked for: altered, exchanged, too short, too long
    ABSENT = "absent"  # it does not have the chunk (yet)
    BUSY = "busy"
    REFUSED = "refused"  # it does not accept the token
    SLOW = "slow"  # over the limit for one chunk, or silent for too long
    DEAD = "dead"  # no connection, a cut one, or a server error


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a request gave no chunk."""

    fault: Fault
    detail: str
    retry_after_s: float = 0.0  # the peer's own wish


@dataclass
class _Peer:
    url: str
    order: int
    bad: bool = False
    refused: bool = False
    in_flight: int = 0
    num_faults: int = 0  # in a row
    not_before_s: float = 0.0
    last: str = "not asked"
    absent: dict[str, tuple[int, float]] = field(default_factory=dict)  # digest -> times in a row, not before

    def ready_s(self, digest: str) -> float:
        return max(self.not_before_s, self.absent.get(digest, (0, 0.0))[1])


class PeerBoard:
    """All peers of one fetch.

    Args:
        backoff_s: pause after a first fault; doubles with each further one, up to `max_backoff_s`.
    """

    def __init__(self, *, clock: Clock, backoff_s: float, max_backoff_s: float) -> None:
        self._peers: dict[str, _Peer] = {}
        self._clock = clock
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._num_picks = 0
        self._notices: dict[tuple[str, Fault], str] = {}

    def add(self, url: str) -> None:
        """A peer that may be asked; known ones keep their history."""
        self._peers.setdefault(url, _Peer(url=url, order=len(self._peers)))

    def pick(self, urls: Iterable[str], *, digest: str, max_in_flight: int) -> str | None:
        """The least loaded of these that is ready for this chunk, in rotation; None: none is. It counts as asked."""
        now_s = self._clock.monotonic()
        ready = [peer for peer in self._usable(urls) if peer.ready_s(digest) <= now_s]
        free = [peer for peer in ready if peer.in_flight < max_in_flight]
        if not free:
            return None
        chosen = min(free, key=self._preference)
        chosen.in_flight += 1
        self._num_picks += 1
        return chosen.url

    def wait_s(self, urls: Iterable[str], *, digest: str) -> float | None:
        """Time until one of these is ready for this chunk; None: none ever is."""
        ready_s = [peer.ready_s(digest) for peer in self._usable(urls)]
        return max(0.0, min(ready_s) - self._clock.monotonic()) if ready_s else None

    def report(self, url: str, digest: str, *, problem: Problem | None) -> None:
        """Say what became of a picked request."""
        peer = self._peers[url]
        peer.in_flight -= 1
        if problem is None:
            peer.num_faults, peer.last = 0, "served"
            return
        self._note(peer, problem)
        now_s = self._clock.monotonic()
        if problem.fault is Fault.ABSENT:
            num_times = peer.absent.get(digest, (0, 0.0))[0] + 1
            peer.absent[digest] = (num_times, now_s + self._pause_s(num_times))
            return
        peer.num_faults += 1
        peer.bad = peer.bad or problem.fault is Fault.BAD
        peer.refused = problem.fault is Fault.REFUSED
        own_s = self._max_backoff_s if problem.fault is Fault.BAD else self._pause_s(peer.num_faults)
        peer.not_before_s = now_s + max(own_s, min(problem.retry_after_s, self._max_backoff_s))

    def withdrawn(self, url: str) -> None:
        """A picked request was not made after all."""
        self._peers[url].in_flight -= 1

    def lost(self, url: str, problem: Problem) -> None:
        """Its news stopped: it is left alone for a while."""
        peer = self._peers[url]
        self._note(peer, problem)
        peer.not_before_s = max(peer.not_before_s, self._clock.monotonic() + self._backoff_s)

    @property
    def bad_peers(self) -> tuple[str, ...]:
        """Peers that sent wrong bytes."""
        return tuple(peer.url for peer in self._peers.values() if peer.bad)

    @property
    def notices(self) -> tuple[str, ...]:
        """The first fault of each kind of each peer."""
        return tuple(f"peer {url} was {fault}: {detail}" for (url, fault), detail in self._notices.items())

    def summary(self) -> str:
        """Every peer with its latest answer."""
        return "; ".join(f"{peer.url} ({peer.last})" for peer in self._peers.values()) or "no peers are known"

    def _usable(self, urls: Iterable[str]) -> list[_Peer]:
        return [peer for peer in map(self._peers.__getitem__, urls) if not peer.refused]

    def _note(self, peer: _Peer, problem: Problem) -> None:
        peer.last = f"{problem.fault}: {problem.detail}"
        self._notices.setdefault((peer.url, problem.fault), problem.detail)

    def _preference(self, peer: _Peer) -> tuple[bool, int, int]:
        return peer.bad, peer.in_flight, (peer.order - self._num_picks) % len(self._peers)

    def _pause_s(self, num_faults: int) -> float:
        return min(self._max_backoff_s, self._backoff_s * 2.0 ** min(num_faults - 1, 30))
