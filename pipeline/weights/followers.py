"""The news of every peer, followed for the length of one fetch.

Role: between `download.PeerClient.follow` and `swarm`: one task for each seed and peer.
Data in: lines of news. Data out: calls of the swarm, and `told` after each, so that workers look again.
Invariants: the seeds and at most `max_peers` others are followed, those of the own domain first; a peer whose news
ended is no member and no holder until they come again. Beside a seed there is nothing to share: the news are asked for
only when the fetch takes long.
Failure: none; a peer without news is one less to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pipeline.weights.directory import PeerInfo
from pipeline.weights.download import PeerClient
from pipeline.weights.news import Member, News, NewsRequest
from pipeline.weights.peer_board import Fault
from pipeline.weights.swarm import Swarm

_ALONE_S = 0.25  # a host beside a seed does without the others for so long
_RETRY_S = 0.5
_MAX_RETRY_S = 4.0


class Followers:
    """See the module.

    Args:
        told: called after every line; whether it was the first one of its peer.
    """

    def __init__(
        self,
        swarm: Swarm,
        *,
        client: PeerClient,
        group: asyncio.TaskGroup,
        me: Member | None,
        max_peers: int,
        told: Callable[[bool], None],
    ) -> None:
        self._swarm = swarm
        self._client = client
        self._group = group
        self._me = me
        self._max_peers = max_peers
        self._told = told
        self._num_peers = 0
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, seeds: Sequence[str], *, peers: Sequence[PeerInfo]) -> None:
        """Follow the seeds and these peers."""
        for seed in dict.fromkeys(seeds):
            self._start(seed)
        domain = "" if self._me is None else self._me.domain
        self._follow_more([peer for peer in peers if self._swarm.add_peer(peer)], domain=domain)

    def end(self) -> None:
        """Follow nobody any more."""
        for task in self._tasks:
            task.cancel()

    def _follow_more(self, peers: Sequence[PeerInfo], *, domain: str) -> None:
        for peer in sorted(peers, key=lambda peer: peer.domain != domain):
            if self._num_peers < self._max_peers:
                self._num_peers += 1
                self._start(peer.url)

    def _start(self, url: str) -> None:
        self._tasks.append(self._group.create_task(self._follow(url)))

    async def _follow(self, url: str) -> None:
        if self._swarm.sole:
            await asyncio.sleep(_ALONE_S)
        retry_s, first = _RETRY_S, True

        def hear(news: News) -> None:
            nonlocal retry_s, first
            new = self._swarm.heard(url, news)
            self._follow_more(new, domain="" if self._me is None else self._me.domain)
            self._told(first)
            retry_s, first = _RETRY_S, False

        while True:
            request = NewsRequest(want=tuple(self._swarm.missing), member=self._me)
            problem = await self._client.follow(url, request=request, hear=hear)
            if problem is None or problem.fault is Fault.REFUSED:
                return
            self._swarm.lost(url, problem)
            self._told(False)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)
