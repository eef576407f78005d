"""The requests of one fetch that are on their way.

Role: bookkeeping of `swarm`: what is asked for, of whom, for how long, and what that says of requests in general.
Invariants: a chunk is in it while at least one peer is being asked for it; two at most are.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.weights.timings import Timings
from topics.clock import Clock


class _Request:
    def __init__(self, url: str, *, began_s: float, is_near: bool) -> None:
        self.urls = {url}
        self.began_s = began_s
        self.is_near = is_near


class InFlight:
    """See the module. Chunks are named by their digests, peers by their URLs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._timings = Timings()
        self.num_brought = 0  # chunks that came from outside the domain

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, digest: object) -> bool:
        return digest in self._requests

    @property
    def num_outside(self) -> int:
        """Chunks that are being brought from outside the domain."""
        return sum(1 for request in self._requests.values() if not request.is_near)

    @property
    def patience_s(self) -> float:
        """How long others may bring nothing into the domain."""
        return self._timings.patience_s

    def begin(self, digest: str, url: str, *, is_near: bool) -> None:
        """A peer is asked; near: of the own domain."""
        self._requests[digest] = _Request(url, began_s=self._clock.monotonic(), is_near=is_near)

    def begin_again(self, digest: str, url: str) -> None:
        """A second peer is asked."""
        self._requests[digest].urls.add(url)

    def ended(self, digest: str, url: str) -> None:
        """A peer gave nothing."""
        request = self._requests.get(digest)
        if request is not None:
            request.urls.discard(url)
            if not request.urls:
                del self._requests[digest]

    def arrived(self, digest: str, *, again: bool) -> bool:
        """The chunk is there: whether it was brought from outside.

        Args:
            again: by the second request, whose time says nothing.
        """
        request = self._requests.pop(digest, None)
        if request is None:
            return False
        if not again:
            self._timings.took(self._clock.monotonic() - request.began_s, is_near=request.is_near)
        self.num_brought += not request.is_near
        return not request.is_near

    def discard(self, digest: str) -> None:
        """Nobody needs to be asked for it any more."""
        self._requests.pop(digest, None)

    def late(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Chunks of which only one peer was asked, and long ago; with that peer."""
        now_s = self._clock.monotonic()
        for digest, request in list(self._requests.items()):
            if len(request.urls) == 1 and self._timings.is_late(now_s - request.began_s, is_near=request.is_near):
                yield digest, frozenset(request.urls)
