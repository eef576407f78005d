"""What peers tell one another while versions travel: who has which chunk, and who is fetching what.

Role: the words of `POST /v1/news`, shared by `peer` and the fetcher.
Data in and out: a `NewsRequest` is one JSON object; the answer is a stream of JSON lines, each one `News`. The first
line says what is there, later ones what changed; an empty object at least every `NEWS_BEAT_S` says that the peer lives.
Invariants: only chunks that were asked for are told. Somebody is a member of a peer's list for as long as its own
stream from that peer is open. Nothing in it is trusted: chunks are verified on receipt, URLs are checked.
Failure: `WeightsError` for a line that is none, or over its limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from pipeline.weights.chunks import check_digest
from pipeline.weights.manifest import check_peer_url
from schemas.errors import WeightsError

NEWS_BEAT_S = 0.5
MAX_NEWS_BYTES = 16 * 2**20  # of a request, and of a line of the answer
_MAX_LABEL_CHARS = 128
_MAX_URL_CHARS = 512


@dataclass(frozen=True, kw_only=True)
class Member:
    """A host that is fetching a version and serves what it has of it."""

    url: str  # of its peer server
    domain: str
    swarm: str  # what it is fetching: members of one swarm share the work


@dataclass(frozen=True, kw_only=True)
class NewsRequest:
    """What to be told about."""

    want: tuple[str, ...]  # digests
    member: Member | None = None  # the asker, when it serves others; None: it only listens
    fresh: bool = False  # tell of every chunk that comes from now on instead, to be there before its version is


@dataclass(frozen=True, kw_only=True)
class News:
    """One line."""

    domain: str | None = None  # the peer's own, in the first line
    chunks: tuple[str, ...] = ()  # that the peer has, of those asked for
    joined: tuple[Member, ...] = ()
    left: tuple[Member, ...] = ()
    known: tuple[Member, ...] = ()  # hosts that fetched something lately, in the first line: they serve what they have


def encode_request(request: NewsRequest) -> bytes:
    """The request's body."""
    member = None if request.member is None else _plain(request.member)
    return orjson.dumps({"want": list(request.want), "member": member, "fresh": request.fresh})


def decode_request(body: bytes) -> NewsRequest:
    """Read a request's body.

    Raises:
        WeightsError: it is not one.
    """
    content = _object(body)
    member = content.get("member")
    return NewsRequest(
        want=_digests(content.get("want")),
        member=None if member is None else _member(member),
        fresh=content.get("fresh") is True,
    )


def encode_news(news: News) -> bytes:
    """One line, with its end."""
    content: dict[str, object] = {}
    if news.domain is not None:
        content["domain"] = news.domain
    if news.chunks:
        content["chunks"] = list(news.chunks)
    if news.joined:
        content["joined"] = [_plain(member) for member in news.joined]
    if news.left:
        content["left"] = [_plain(member) for member in news.left]
    if news.known:
        content["known"] = [_plain(member) for member in news.known]
    return orjson.dumps(content) + b"\n"


def decode_news(line: bytes) -> News:
    """Read one line.

    Raises:
        WeightsError: it is not one.
    """
    content = _object(line)
    domain = content.get("domain")
    return News(
        domain=None if domain is None else _label(domain),
        chunks=_digests(content.get("chunks", [])),
        joined=_members(content.get("joined", [])),
        left=_members(content.get("left", [])),
        known=_members(content.get("known", [])),
    )


def _object(data: bytes) -> dict[str, object]:
    if len(data) > MAX_NEWS_BYTES:
        raise WeightsError(f"news of {len(data)} bytes, allowed are {MAX_NEWS_BYTES}; they were not read")
    try:
        content: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise WeightsError(f"news that are not JSON ({error}): {data[:80]!r}; they were not read") from error
    if not isinstance(content, dict):
        raise WeightsError(f"news that are no JSON object: {data[:80]!r}; they were not read")
    return content


def _digests(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise WeightsError(f"digests are given as {type(value).__name__}, not as a list")
    return tuple(check_digest(_text(digest)) for digest in value)


def _members(value: object) -> tuple[Member, ...]:
    if not isinstance(value, list):
        raise WeightsError(f"members are given as {type(value).__name__}, not as a list")
    return tuple(_member(member) for member in value)


def _member(value: object) -> Member:
    if not isinstance(value, dict):
        raise WeightsError(f"a member is given as {type(value).__name__}, not as an object")
    domain, swarm = _label(value.get("domain")), _label(value.get("swarm"))
    url = _text(value.get("url"))
    if len(url) > _MAX_URL_CHARS:
        raise WeightsError(f"a peer URL of {len(url)} characters, allowed are {_MAX_URL_CHARS}")
    return Member(url=check_peer_url(url), domain=domain, swarm=swarm)


def _label(value: object) -> str:
    label = _text(value)
    if len(label) > _MAX_LABEL_CHARS:
        raise WeightsError(f"a label of {len(label)} characters, allowed are {_MAX_LABEL_CHARS}")
    return label


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WeightsError(f"{type(value).__name__} where a text belongs")
    return value


def _plain(member: Member) -> dict[str, str]:
    return {"url": member.url, "domain": member.domain, "swarm": member.swarm}
