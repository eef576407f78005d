"""The words of news: they come through as they were, and nothing else is taken."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.weights.news import (
    MAX_NEWS_BYTES,
    Member,
    News,
    NewsRequest,
    decode_news,
    decode_request,
    encode_news,
    encode_request,
)
from schemas.errors import WeightsError

_DIGESTS = st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), max_size=3).map(tuple)
_MEMBERS = st.builds(
    Member,
    url=st.sampled_from(["http://a:1", "https://[::1]:2", "http://b"]),
    domain=st.text(max_size=128),
    swarm=st.text(max_size=128),
)
_NEWS = st.builds(
    News,
    domain=st.none() | st.text(max_size=128),
    chunks=_DIGESTS,
    joined=st.lists(_MEMBERS, max_size=2).map(tuple),
    left=st.lists(_MEMBERS, max_size=2).map(tuple),
)


@given(_NEWS)
def test_news_come_through_as_one_line(news: News) -> None:
    line = encode_news(news)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_news(line) == news


def test_nothing_new_is_an_empty_object() -> None:
    assert encode_news(News()) == b"{}\n"


@given(st.builds(NewsRequest, want=_DIGESTS, member=st.none() | _MEMBERS))
def test_a_request_comes_through(request: NewsRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    """What is read means something: it goes out as it came in."""
    with suppress(WeightsError):
        news = decode_news(data)
        assert decode_news(encode_news(news)) == news
    with suppress(WeightsError):
        request = decode_request(data)
        assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not JSON"),
        (b"null", "no JSON object"),
        (b'{"chunks": "x"}', "digests are given as str"),
        (b'{"chunks": ["x"]}', "64 lower-case hex digits"),
        (b'{"joined": {}}', "members are given as dict"),
        (b'{"left": ["x"]}', "a member is given as str"),
        (b'{"left": [{"url": "ftp://a", "domain": "", "swarm": ""}]}', "peer URL"),
        (b'{"left": [{"url": "http://u:p@a", "domain": "", "swarm": ""}]}', "peer URL"),
        (b'{"left": [{"url": "http://a", "swarm": ""}]}', "NoneType where a text belongs"),
        (b'{"domain": 1}', "int where a text belongs"),
        (b'{"domain": "' + b"d" * 129 + b'"}', "allowed are 128"),
        (b'{"left": [{"url": "http://' + b"a" * 600 + b'", "domain": "", "swarm": ""}]}', "allowed are 512"),
        (b" " * (MAX_NEWS_BYTES + 1), f"allowed are {MAX_NEWS_BYTES}"),
    ],
)
def test_a_line_that_is_none_is_refused_and_says_why(line: bytes, says: str) -> None:
    with pytest.raises(WeightsError) as caught:
        decode_news(line)
    assert says in caught.value.message
