"""What the server lets in, and what it sends on."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from typing import cast
from urllib.parse import urlsplit

import orjson
import pytest

from ops.dashboard import server as dashboard_server
from ops.dashboard.assets import load_assets
from ops.dashboard.feed import Feed
from ops.dashboard.ledger_index import LedgerIndex
from ops.dashboard.runs import MAX_OPEN, Reached, Runs, TooManyRuns
from ops.dashboard.server import DashboardError, DashboardSettings, serve
from ops.live.picture import ProcessPicture, RunPicture, Span, Totals, Verdict
from ops.replay.sources import RunNotFound
from schemas.errors import LogUnavailable
from tests.unit.ops.dashboard.record_source import source_of
from tests.unit.ops.dashboard.serving import Serving
from tests.unit.ops.little_run import NOW_MS, little_run
from topics.clock import Deadline

TOKEN = "a-token-of-the-test"


def picture() -> RunPicture:
    process = ProcessPicture(
        stage="learner",
        name="learner",
        instance="learner-host-1-abcdef",
        host="host",
        slot="",
        domain="",
        standing="at work",
        phase="waiting_for_data",
        phase_since_ms=NOW_MS,
        began_ms=NOW_MS - 1_000,
        heard_ms=NOW_MS,
        version=None,
        spans=(Span(phase="waiting_for_data", began_ms=NOW_MS),),
    )
    return RunPicture(run="little", now_ms=NOW_MS, is_live=True, share_read=1.0, window_s=60.0, processes=(process,))


class Following:
    """A follower whose picture the test sets."""

    def __init__(self) -> None:
        self.now = picture()
        self.trouble: str | None = None
        self.is_broken = False

    def turn(self) -> bool:
        if self.is_broken:
            raise RuntimeError("a bug")
        if self.trouble is not None:
            raise LogUnavailable(self.trouble)
        return False

    @property
    def share_read(self) -> float:
        return self.now.share_read

    def picture(self, *, spans_s: float | None = None) -> RunPicture:
        return self.now

    def close(self) -> None:
        """Nothing to close."""


FOLLOWING = Following()


def reach(name: str) -> Reached:
    if not name.startswith("little"):
        raise RunNotFound(f"run {name!r} has no topics on this broker", hint="runs there: little")

    def feed(index: LedgerIndex) -> Feed:
        return Feed(lambda: FOLLOWING, judge=lambda _: Verdict(kind="balanced", text="fine"), index=index, every_s=0.02)

    return Reached(source=source_of(little_run()), feed=feed, settings=None)


@pytest.fixture
def following() -> Iterator[Following]:
    yield FOLLOWING
    FOLLOWING.__init__()  # type: ignore[misc]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(Runs(reach, seen=list)) as serving:
        yield serving


def asked(
    serving: Serving, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    with closing(HTTPConnection(serving.url.removeprefix("http://"), timeout=10)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read()


def test_pages_and_files_say_that_nothing_comes_from_elsewhere(server: Serving) -> None:
    for path in ("/", "/run/little", "/run/little/samples", "/assets/app.js", "/api/runs", "/nothing"):
        answer, _ = asked(server, path)
        assert answer.status == (404 if path == "/nothing" else 200)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_lists_of_samples_answer_with_rows_and_how_far_the_ledger_is_read(server: Serving) -> None:
    for name in ("lost", "outcomes", "apart"):
        answer, content = asked(server, f"/api/run/little/{name}?limit=1")
        found = orjson.loads(content)
        assert (answer.status, len(found["rows"]) <= 1) == (200, True), name
        assert found.keys() >= {"num_all", "share_read", "is_full"}, name


def test_a_file_that_was_not_changed_is_not_sent_again(server: Serving) -> None:
    answer, content = asked(server, "/assets/app.js")
    assert content
    again, nothing = asked(server, "/assets/app.js", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status, nothing) == (304, b"")


@pytest.mark.parametrize("path", ["/assets/../server.py", "/assets/__init__.py", "/assets/%2e%2e%2fserver.py"])
def test_only_what_the_pages_are_made_of_is_served(server: Serving, path: str) -> None:
    assert asked(server, path)[0].status == 404


def test_another_sites_name_for_this_address_is_refused(server: Serving) -> None:
    assert asked(server, "/api/runs", headers={"Host": "evil.example"})[0].status == 403
    assert asked(server, "/api/runs", headers={"Host": "localhost:1"})[0].status == 200


def test_a_token_of_any_bytes_is_no_token() -> None:
    with Serving(Runs(reach, seen=list), settings=DashboardSettings(token=TOKEN)) as serving:
        assert asked(serving, "/api/runs", headers={"Authorization": "Bearer \xff\xfe"})[0].status == 401
        assert asked(serving, "/api/runs?token=%ff")[0].status == 401


def test_nothing_but_reading(server: Serving) -> None:
    assert asked(server, "/api/runs", method="POST")[0].status == 405


def test_a_token_is_asked_for_taken_out_of_the_address_and_kept_from_scripts() -> None:
    with Serving(Runs(reach, seen=list), settings=DashboardSettings(token=TOKEN)) as serving:
        assert asked(serving, "/api/runs")[0].status == 401
        assert asked(serving, "/api/runs?token=wrong")[0].status == 401
        answer, _ = asked(serving, f"/run/little?token={TOKEN}")
        assert (answer.status, answer.headers["Location"]) == (303, "/run/little")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert asked(serving, "/api/runs", headers={"Cookie": cookie.partition(";")[0]})[0].status == 200


def test_beyond_this_machine_a_token_is_needed() -> None:
    async def attempt() -> None:
        settings = DashboardSettings(host="0.0.0.0")
        await serve(settings, Runs(reach, seen=list), stop=asyncio.Event(), on_ready=lambda _: None)

    with pytest.raises(DashboardError, match="reached by other machines"):
        asyncio.run(attempt())


def test_errors_have_a_message_and_a_hint(server: Serving) -> None:
    answer, content = asked(server, "/api/run/other/lost")
    assert answer.status == 404
    assert orjson.loads(content)["hint"] == "runs there: little"
    answer, content = asked(server, "/api/run/little/group?group=-1")
    assert answer.status == 400
    assert "no whole number" in orjson.loads(content)["message"]


def test_a_stream_sends_parts_when_they_change_and_says_when_the_broker_is_away(
    server: Serving, following: Following
) -> None:
    with closing(HTTPConnection(server.url.removeprefix("http://"), timeout=10)) as connection:
        connection.request("GET", "/api/run/little/events")
        stream = connection.getresponse()
        assert stream.headers["Content-Type"] == "text/event-stream"
        first = dict(taken(stream, 12))
        said = {"kind": "balanced", "text": "fine", "advice": "", "evidence": []}
        assert first["verdict"] == said | {"is_provisional": False, "since_ms": None}
        assert first["weave"] == {
            "since_ms": 0,
            "phases": ["waiting_for_data"],
            "rows": {"learner-host-1-abcdef": [[0, NOW_MS, None]]},
        }
        following.now = replace(following.now, totals=Totals(step=3))
        [(name, head)] = taken(stream, 1)  # nothing else changed
        assert name == "head"
        assert cast("dict[str, dict[str, int]]", head)["totals"]["step"] == 3
        following.now = replace(following.now, trouble="it is away")
        assert taken(stream, 1) == [("trouble", {"message": "it is away", "hint": ""})]
        following.trouble = "no broker answers"
        assert taken(stream, 1) == [("trouble", {"message": "no broker answers", "hint": ""})]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_picture_that_stands_still_for_a_fault_says_so_and_is_made_anew(following: Following) -> None:
    runs = Runs(reach, seen=list)
    run = runs.open("little")
    following.is_broken = True
    deadline = Deadline.after(10)
    while not run.feed.is_over and not deadline.expired:
        deadline.clock.wait(0.01)
    [trouble] = [content for name, _, content in run.feed.newer({}) if name == "trouble"]
    assert orjson.loads(trouble)["message"] == "a fault of the dashboard itself"
    following.is_broken = False
    assert runs.open("little") is not run
    runs.close()


def test_a_run_that_is_slow_to_reach_holds_up_no_other() -> None:
    asked_for, go_on = threading.Event(), threading.Event()

    def slowly(name: str) -> Reached:
        if name == "little-slow":
            asked_for.set()
            assert go_on.wait(10)
        return reach(name)

    runs = Runs(slowly, seen=list)
    other = threading.Thread(target=runs.open, args=("little-slow",))
    other.start()
    assert asked_for.wait(10)
    assert runs.open("little").name == "little"
    go_on.set()
    other.join(10)
    runs.close()


def test_a_reader_that_reads_nothing_gives_up_its_place(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_server, "STALL_S", 0.2)
    monkeypatch.setattr(dashboard_server, "MAX_STREAMS", 1)
    following.now = replace(following.now, run="x" * 30_000_000)  # more than the sockets between them hold
    with Serving(Runs(reach, seen=list)) as serving:
        place = urlsplit(serving.url)
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=10) as stalled:
            stalled.sendall(b"GET /api/run/little/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stalled.recv(12) == b"HTTP/1.1 200"
            deadline = Deadline.after(10)
            while asked(serving, "/api/run/little/events", method="HEAD")[0].status != 200 and not deadline.expired:
                deadline.clock.wait(0.05)
            assert not deadline.expired


def taken(stream: HTTPResponse, count: int) -> list[tuple[str, object]]:
    """So many events of a stream."""
    found: list[tuple[str, object]] = []
    name = ""
    while len(found) < count:
        line = stream.readline()
        assert line, "the stream ended"
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            found.append((name, orjson.loads(line[6:])))
    return found


def test_only_so_many_runs_are_followed_and_the_least_used_is_let_go() -> None:
    runs = Runs(reach, seen=list)
    try:
        opened = [runs.open(f"little-{number}") for number in range(MAX_OPEN + 1)]
        assert runs.open("little-1") is opened[1]
        assert runs.open("little-0") is not opened[0]
    finally:
        runs.close()
    assert issubclass(TooManyRuns, Exception)


def test_files_of_the_pages_put_text_in_as_text_and_ask_no_other_host() -> None:
    for name, asset in load_assets().items():
        text = asset.content.decode()
        assert not re.search(
            r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name
        hosts = set(re.findall(r"(?:https?:)?//([a-z0-9.-]+\.[a-z]{2,})", text))
        assert hosts <= {"www.w3.org"}, name
