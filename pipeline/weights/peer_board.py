"""Which peer to ask next: the state of every peer during one fetch.

Role: pure decisions for the fetcher; holds no connection. Better orders (same domain, rarest first) replace `pick`.
Data in and out: chunk digests and what became of each request; a peer to ask, or a time to wait.
Invariants: the load is spread over the peers that are ready. A peer that sent wrong bytes is asked only when no other
is ready, since the fault may lie on the way; one that refused the token is not asked again.
Failure: `WeightsError` when no peer is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.weights.directory import PeerInfo
from schemas.errors import WeightsError
from topics.clock import Clock


class Fault(StrEnum):
    """What can be wrong with an answer."""

    BAD = "bad"  # other bytes than asked for: altered, exchanged, too short, too long
    ABSENT = "absent"  # it does not have the chunk (yet)
    BUSY = "busy"
    REFUSED = "refused"  # it does not accept the token
    SLOW = "slow"  # over the limit for one chunk
    DEAD = "dead"  # no connection, a cut one, or a server error


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a request gave no chunk."""

    fault: Fault
    detail: str
    retry_after_s: float = 0.0  # the peer's own wish


@dataclass(frozen=True, kw_only=True)
class Pick:
    """Ask `url`, or, when it is None, wait and pick again."""

    url: str | None
    wait_s: float = 0.0


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

    def __init__(self, peers: Sequence[PeerInfo], *, clock: Clock, backoff_s: float, max_backoff_s: float) -> None:
        urls = dict.fromkeys(peer.url.rstrip("/") for peer in peers)
        self._peers = {url: _Peer(url=url, order=order) for order, url in enumerate(urls)}
        self._clock = clock
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._num_picks = 0
        self._notices: dict[tuple[str, Fault], str] = {}

    def pick(self, digest: str) -> Pick:
        """The peer to ask for a chunk: the least loaded that is ready, in rotation.

        Raises:
            WeightsError: there is no peer, or each has refused the token.
        """
        usable = [peer for peer in self._peers.values() if not peer.refused]
        if not usable:
            raise WeightsError(
                f"no peer is left to ask for chunk {digest}: {self.summary()}; the version is not loaded",
                hint="see that a peer server runs and that all processes use the token of this run",
            )
        now_s = self._clock.monotonic()
        ready = [peer for peer in usable if peer.ready_s(digest) <= now_s]
        if not ready:
            return Pick(url=None, wait_s=min(peer.ready_s(digest) for peer in usable) - now_s)
        chosen = min(ready, key=self._preference)
        chosen.in_flight += 1
        self._num_picks += 1
        return Pick(url=chosen.url)

    def report(self, url: str, digest: str, *, problem: Problem | None) -> None:
        """Say what became of a picked request."""
        peer = self._peers[url]
        peer.in_flight -= 1
        if problem is None:
            peer.num_faults, peer.last = 0, "served"
            return
        peer.last = f"{problem.fault}: {problem.detail}"
        self._notices.setdefault((url, problem.fault), problem.detail)
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

    def _preference(self, peer: _Peer) -> tuple[bool, int, int]:
        return peer.bad, peer.in_flight, (peer.order - self._num_picks) % len(self._peers)

    def _pause_s(self, num_faults: int) -> float:
        return min(self._max_backoff_s, self._backoff_s * 2.0 ** min(num_faults - 1, 30))
