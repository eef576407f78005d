"""How far bytes go: within a host, within a domain of fast links, or between domains.

Role: the words that the metric `network_bytes` uses (`pipeline.metric_catalog.SCOPES`).
Data in: addresses and domains of both ends. Data out: a scope.
Invariants: a host without a domain is in one domain with all others that have none, as in the swarm.
Failure: none; what cannot be told apart is the nearer one.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pipeline.weights.directory import PeerInfo

SAME_HOST = "same_host"
SAME_DOMAIN = "same_domain"
ACROSS_DOMAINS = "across_domains"
_LOOPBACK = ("127.", "::1", "localhost")


def scope_of(url: str, *, domain: str, here: PeerInfo | None) -> str:
    """How far bytes come from the peer at `url`, which is in `domain`, to the host `here` (None: nothing is known)."""
    host = urlsplit(url).hostname
    own = "" if here is None else urlsplit(here.url).hostname
    if host is not None and (host == own or host.startswith(_LOOPBACK)):
        return SAME_HOST
    return SAME_DOMAIN if domain == ("" if here is None else here.domain) else ACROSS_DOMAINS
