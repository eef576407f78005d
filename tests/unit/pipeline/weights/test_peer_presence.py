"""What news streams are told, without a server."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pipeline.weights.news import Member, News, NewsRequest
from pipeline.weights.presence import MAX_LINE_CHUNKS, NewsStream, Presence


def _member(name: str, *, swarm: str = "s", domain: str = "d") -> Member:
    return Member(url=f"http://{name}", domain=domain, swarm=swarm)


class Rig:
    """Streams of one server, with how often each was woken."""

    def __init__(self) -> None:
        self.presence = Presence()
        self.num_wakes: dict[NewsStream, int] = {}

    def open(self, want: Sequence[str] = (), *, member: Member | None = None) -> NewsStream:
        """A stream that begins at once."""

        def wake() -> None:
            if stream is not None:
                self.num_wakes[stream] = self.num_wakes.get(stream, 0) + 1

        stream: NewsStream | None = None
        stream = self.presence.open(NewsRequest(want=tuple(want), member=member), wake=wake)
        stream.begin()
        return stream


def test_only_those_are_woken_and_told_who_want_the_chunk() -> None:
    rig = Rig()
    wants, does_not = rig.open(["x", "y"]), rig.open(["y"])
    rig.presence.add(["x", "z"])
    assert (wants.take(), does_not.take()) == (News(chunks=("x",)), News())
    assert rig.num_wakes == {wants: 1}


def test_a_stream_that_comes_later_is_told_what_is_known_already() -> None:
    rig = Rig()
    first = rig.open(["x", "y"])
    rig.presence.add(["x"])
    second = rig.open(["y", "x"])
    assert second.interest is first.interest
    assert second.take() == News(chunks=("x",))
    rig.presence.add(["y"])
    assert (first.take().chunks, second.take().chunks) == (("x", "y"), ("y",))


def test_a_look_tells_what_came_and_forgets_what_went() -> None:
    rig = Rig()
    stream = rig.open(["came", "went", "during"])
    rig.presence.add(["went"])
    before = frozenset(stream.interest.known)
    rig.presence.add(["during"])  # while looking, after it was looked for
    stream.interest.looked(before=before, present={"came"})
    assert stream.take().chunks == ("went", "during", "came")
    assert rig.open(["came", "went", "during"]).interest.known == {"came", "during"}


def test_a_line_is_cut_at_its_bound_and_the_rest_follows() -> None:
    rig = Rig()
    want = [str(n) for n in range(MAX_LINE_CHUNKS + 5)]
    stream = rig.open(want)
    rig.presence.add(want)
    assert (len(stream.take().chunks), stream.has_more) == (MAX_LINE_CHUNKS, True)
    assert (len(stream.take().chunks), stream.has_more) == (5, False)


def test_what_everybody_was_told_is_forgotten() -> None:
    rig = Rig()
    fast, slow = rig.open(["x"]), rig.open(["x"])
    for _ in range(30_000):
        rig.presence.add(["x"])
        fast.take()
    assert len(fast.interest.since(slow.position)) == 30_000
    slow.take()
    rig.presence.add(["x"])
    assert fast.interest.end - 1 == slow.position
    assert len(fast.interest._told) == 1


def test_who_joins_and_leaves_between_two_lines_is_not_told() -> None:
    rig = Rig()
    stream = rig.open(member=_member("a"))
    stream.take()
    rig.presence.close(rig.open(member=_member("b")))
    assert stream.take() == News()


def test_a_member_that_comes_back_elsewhere_is_told_anew() -> None:
    rig = Rig()
    stream, old = rig.open(member=_member("a")), rig.open(member=_member("b"))
    stream.take()
    rig.open(member=_member("b", domain="other"))
    rig.presence.close(old)
    assert stream.take() == News(joined=(_member("b", domain="other"),))


def test_nothing_is_held_once_all_are_gone() -> None:
    rig = Rig()
    streams = [rig.open(["x"], member=_member("a")), rig.open(["x"]), rig.open(["y"], member=_member("b"))]
    assert rig.presence.num_wanted == 2
    for stream in streams:
        rig.presence.close(stream)
    assert (rig.presence.num_wanted, rig.presence.interests, rig.presence._swarms) == (0, [], {})


_STEPS = st.lists(st.tuples(st.sampled_from(["open", "close", "take"]), st.integers(0, 5), st.integers(0, 1)))


@given(_STEPS)
def test_what_a_member_was_told_adds_up_to_who_is_there(steps: list[tuple[str, int, int]]) -> None:
    rig = Rig()
    open_streams: list[NewsStream] = []
    heard: dict[NewsStream, set[Member]] = {}
    for what, number, swarm in steps:
        if what == "open":
            stream = rig.open(member=_member(str(number), swarm=str(swarm)))
            open_streams.append(stream)
            heard[stream] = set()
        elif open_streams:
            stream = open_streams[number % len(open_streams)]
            if what == "close":
                rig.presence.close(stream)
                open_streams.remove(stream)
            else:
                _hear(stream, heard[stream])
    for stream in open_streams:
        _hear(stream, heard[stream])
        members = {other.member for other in open_streams if other.swarm is stream.swarm}
        assert heard[stream] == members - {stream.member}


def _hear(stream: NewsStream, heard: set[Member]) -> None:
    news = stream.take()
    assert not heard & set(news.joined)
    assert heard >= set(news.left)
    heard.difference_update(news.left)
    heard.update(news.joined)
