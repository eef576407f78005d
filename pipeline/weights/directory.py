"""The peer directory: which hosts have a peer server, in Redis, with expiry.

Role: a fetch asks it for peers besides the manifest's seeds; a peer announces itself and repeats that before its entry
expires.
Data in and out: `rlweave:<run>:peers` is the set of instances, `rlweave:<run>:peers:<instance>` a small JSON that
expires.
Invariants: it only adds peers; content is verified by digest whoever sends it. What it holds is not trusted: a
malformed entry is left out.
Failure: never an exception; without Redis it is empty and says so in a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from pipeline.redis_client import RedisClient
from pipeline.weights.manifest import check_peer_url
from schemas.errors import RedisUnavailable, WeightsError

_INDEX_TTLS = 20  # the index outlives a pause of this many entry lifetimes


@dataclass(frozen=True, kw_only=True)
class PeerInfo:
    """A peer server that can be asked for chunks."""

    url: str  # base URL
    domain: str = ""  # hosts of one domain share a fast link; empty: unknown


@dataclass(frozen=True, kw_only=True)
class PeerList:
    """What the directory knew."""

    peers: tuple[PeerInfo, ...]
    warning: str = ""  # set when Redis could not be asked


class PeerDirectory:
    """The directory of one run. Constructing it does no I/O.

    Args:
        client: None for a run without Redis.
        ttl_s: an entry that is not announced again disappears after this.
    """

    def __init__(self, client: RedisClient | None, *, run: str, ttl_s: float = 30.0) -> None:
        self._client = client
        self._key = f"rlweave:{run}:peers"
        self._ttl_s = ttl_s

    def announce(self, instance: str, peer: PeerInfo) -> str:
        """Enter, or prolong, a peer. Gives a warning, empty when it was entered."""
        if self._client is None:
            return ""
        value = orjson.dumps({"url": peer.url, "domain": peer.domain}).decode()
        try:
            self._client.set(self._entry_key(instance), value, ttl_s=self._ttl_s)
            self._client.add_to_set(self._key, instance, ttl_s=self._ttl_s * _INDEX_TTLS)
        except RedisUnavailable as error:
            return f"{error.message}; peer {peer.url} is not in the directory, others use the manifest's seeds"
        return ""

    def withdraw(self, instance: str) -> str:
        """Take a peer out. Gives a warning; its entry then ends by itself."""
        if self._client is None:
            return ""
        try:
            self._client.delete(self._entry_key(instance))
            self._client.remove_from_set(self._key, [instance])
        except RedisUnavailable as error:
            return error.message
        return ""

    def peers(self) -> PeerList:
        """All live peers, in order of their instances; empty with a warning when Redis does not answer."""
        if self._client is None:
            return PeerList(peers=())
        try:
            instances = self._client.members(self._key)
            values = self._client.get_many([self._entry_key(instance) for instance in instances])
            expired = [name for name, value in zip(instances, values, strict=True) if value is None]
            self._client.remove_from_set(self._key, expired)
        except RedisUnavailable as error:
            return PeerList(peers=(), warning=f"{error.message}; only the manifest's seeds are asked")
        found = [_peer_of(value) for value in values if value is not None]
        return PeerList(peers=tuple(peer for peer in found if peer is not None))

    def _entry_key(self, instance: str) -> str:
        return f"{self._key}:{instance}"


def _peer_of(value: str) -> PeerInfo | None:
    try:
        content: object = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(content, dict):
        return None
    url, domain = content.get("url"), content.get("domain", "")
    if not isinstance(url, str) or not isinstance(domain, str):
        return None
    try:
        return PeerInfo(url=check_peer_url(url), domain=domain)
    except WeightsError:
        return None
