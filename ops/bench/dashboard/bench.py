"""How soon the dashboard shows a long run, and the memory it takes.

Order, for a run of a tenth of the size and then for the whole one, so that it shows what grows with the run: (1) a run
is made up on a real broker; (2) `rlweave dashboard` is started on it, as a user does, and a client takes the page, its
files and the stream: the first view is there when verdict, timeline and drops have come; (3) the client waits until all
is read; (4) it asks for the list of drops and for samples of it, one after the other, old ones too.
Data in: whether it is to be quick. Data out: `BenchResult`.
Invariants: times are from the request to the last byte that the view needs; memory is the server's own peak
(`VmHWM`); topics that were made here are deleted.
Failure: `BenchError` when the dashboard does not answer, or not as it should.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from uuid import uuid4

import orjson

from ops.bench.broker import broker
from ops.bench.dashboard.material import LongRun, write_run
from ops.bench.result import BenchResult, Noise, Number, Table
from schemas.errors import RlweaveError
from topics.clock import Deadline
from topics.kafka import KafkaLog

PARTITIONS = 8
FIRST_VIEW = frozenset({"head", "verdict", "processes", "weave", "series", "drops"})
NUM_GROUPS, QUICK_GROUPS = 125_000, 500
PART = 10  # the smaller run is such a part
_CONNECT_S = 30.0
_START_S = 60.0
_READ_S = 900.0
_CLICKS = 12
_TIMEOUT_S = 60.0
_MIB = 2**20


class BenchError(RlweaveError):
    """The dashboard did not do what is measured."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a client saw; times in seconds."""

    first_view_s: float
    share_then: float  # of the topics that was read when the first view was there
    all_read_s: float
    drops_s: float  # until the first page of drops, once asked for
    indexed_s: float  # until the list of drops was whole
    click_s: float  # median of samples opened from it
    slowest_click_s: float
    first_rss_bytes: int  # when the first view was there
    max_rss_bytes: int


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A run, and what was seen of it."""

    size: LongRun
    made_s: float  # until it was written
    seen: Seen


def bench_dashboard(
    *, quick: bool, kafka: str | None, state_dir: Path, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Measure.

    Raises:
        BenchError: see the module.
        ServicesError: there is no broker and none can be started.
    """
    noise = Noise()
    num_groups = QUICK_GROUPS if quick else NUM_GROUPS
    with broker(kafka, state_dir=state_dir) as bootstrap:
        small = _looked(LongRun(num_groups=num_groups // PART), bootstrap, say=say)
        whole = _looked(LongRun(num_groups=num_groups), bootstrap, say=say)
    return dashboard_result(small, whole, noise=noise)


def _looked(size: LongRun, bootstrap: str, *, say: Callable[[str], None]) -> Looked:
    """One size, whose topics are deleted afterwards."""
    log = KafkaLog(bootstrap, run=f"bench-{uuid4().hex[:8]}", data_partitions=PARTITIONS)
    log.connect(deadline=Deadline.after(_CONNECT_S))
    log.admin().ensure_topics()
    try:
        began_s = time.monotonic()
        write_run(log, size, say=say)  # (1)
        made_s = time.monotonic() - began_s
        return Looked(size=size, made_s=made_s, seen=look_at(log.run, bootstrap, say=say))
    finally:
        log.admin().delete_topics()


def look_at(run: str, bootstrap: str, *, say: Callable[[str], None]) -> Seen:
    """Start the dashboard on a run, and measure it as a client.

    Raises:
        BenchError: it did not come up, or not answer.
    """
    arguments = [run, "--kafka", bootstrap, "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", "dashboard", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        url = _address(server)
        return _Client(url, run=run, pid=server.pid).measure(say)
    finally:
        server.terminate()
        server.wait(_TIMEOUT_S)
        if server.stdout is not None:
            server.stdout.close()


class _Client:
    def __init__(self, url: str, *, run: str, pid: int) -> None:
        self._host = url.removeprefix("http://").partition("/")[0]
        self._run = run
        self._pid = pid

    def measure(self, say: Callable[[str], None]) -> Seen:
        """(2) to (4)."""
        began_s = time.monotonic()
        page = self._get(f"/run/{self._run}").decode()
        for name in re.findall(r'"(/assets/[a-z.]+)"', page):
            self._get(name)
        first_s, share, share_then, rss = 0.0, 0.0, 0.0, 0
        waiting = set(FIRST_VIEW)
        for name, content in self._events():
            waiting.discard(name)
            if name == "head":
                share = float(orjson.loads(content)["share_read"])
            if not waiting and not first_s:
                first_s, rss, share_then = time.monotonic() - began_s, self._rss("VmRSS"), share
                say(f"dashboard: the first view was there after {first_s:.2f} s, {share:.0%} read")
            if not waiting and share >= 1:
                break
            if time.monotonic() - began_s > _READ_S:
                raise BenchError(f"the topics were not read within {_READ_S:g} s")
        read_s = time.monotonic() - began_s
        say(f"dashboard: all was read after {read_s:.1f} s")
        drops_s, indexed_s, clicks = self._drops(say)
        return Seen(
            first_view_s=first_s,
            share_then=share_then,
            all_read_s=read_s,
            drops_s=drops_s,
            indexed_s=indexed_s,
            click_s=statistics.median(clicks),
            slowest_click_s=max(clicks),
            first_rss_bytes=rss,
            max_rss_bytes=self._rss("VmHWM"),
        )

    def _drops(self, say: Callable[[str], None]) -> tuple[float, float, list[float]]:
        """Times until the first page, until all of it is known, and of opening samples of it."""
        began_s = time.monotonic()
        first_s = 0.0
        while True:
            found = orjson.loads(self._get(f"/api/run/{self._run}/lost?limit=200"))
            if found["rows"] and not first_s:
                first_s = time.monotonic() - began_s
            if found["share_read"] >= 1:
                break
            if time.monotonic() - began_s > _READ_S:
                raise BenchError(f"the ledger was not indexed within {_READ_S:g} s")
            time.sleep(0.1)
        indexed_s = time.monotonic() - began_s
        say(f"dashboard: drops after {first_s:.2f} s, all {found['num_all']} of them after {indexed_s:.1f} s")
        clicks = []
        for number in range(_CLICKS):
            skip = found["num_all"] * number // _CLICKS
            row = orjson.loads(self._get(f"/api/run/{self._run}/lost?limit=1&skip={skip}"))["rows"][0]
            clicked_s = time.monotonic()
            query = f"group={row['group']}&member={row['member']}"
            answer = orjson.loads(self._get(f"/api/run/{self._run}/group?{query}"))
            clicks.append(time.monotonic() - clicked_s)
            if answer["sample"] is None or answer["view"]["prompt"] is None:
                raise BenchError(f"the sample of group {row['group']} was not found: {answer['view']['notes']}")
        return first_s, indexed_s, clicks

    def _events(self) -> Iterator[tuple[str, bytes]]:
        """Name and data of each event of the stream."""
        with closing(HTTPConnection(self._host, timeout=_TIMEOUT_S)) as connection:
            name = ""
            for line in _asked(connection, f"/api/run/{self._run}/events"):
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield name, line[6:]

    def _get(self, path: str) -> bytes:
        with closing(HTTPConnection(self._host, timeout=_TIMEOUT_S)) as connection:
            return _asked(connection, path).read()

    def _rss(self, line: str) -> int:
        status = Path(f"/proc/{self._pid}/status").read_text("ascii")
        found = re.search(rf"{line}:\s+(\d+) kB", status)
        return 0 if found is None else int(found[1]) * 1024


def _asked(connection: HTTPConnection, path: str) -> HTTPResponse:
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != 200:
        raise BenchError(f"{path} was answered with {answer.status}: {answer.read()[:500].decode(errors='replace')}")
    return answer


def _address(server: subprocess.Popen[bytes]) -> str:
    deadline = Deadline.after(_START_S)
    while server.stdout is not None and not deadline.expired:
        line = server.stdout.readline().decode()
        if line.startswith("dashboard: "):
            return line.removeprefix("dashboard: ").strip()
        if not line:
            break
    raise BenchError(f"`rlweave dashboard` did not say an address; it ended with {server.poll()}")


def dashboard_result(small: Looked, whole: Looked, *, noise: Noise) -> BenchResult:
    """Both sizes side by side, and the memory between them."""
    growth_bytes = whole.seen.max_rss_bytes - small.seen.max_rss_bytes
    values = {
        **{f"dashboard_{name}": value for name, value in _values(whole).items()},
        **{f"dashboard_small_{name}": value for name, value in _values(small).items()},
        "dashboard_rss_growth_bytes": growth_bytes,
        "dashboard_rss_growth_bytes_per_sample": round(
            growth_bytes / (whole.size.num_samples - small.size.num_samples), 2
        ),
    }
    lines = list(zip(_lines(small), _lines(whole), strict=True))
    table = Table(
        title="dashboard on a run that is long, beside one of a tenth",
        headers=("what", *(f"{each.size.num_samples:,} samples" for each in (small, whole))),
        rows=tuple((few[0], few[1], many[1]) for few, many in lines),
    )
    notes = (f"Ten times the samples take {growth_bytes / _MIB:+.0f} MiB at most.",)
    return BenchResult(name="dashboard", table=table, values=values, notes=notes, noise=noise.values(num_repeats=1))


def _values(looked: Looked) -> dict[str, Number]:
    seen = looked.seen
    return {
        "num_samples": looked.size.num_samples,
        "made_s": round(looked.made_s, 2),
        "first_view_s": round(seen.first_view_s, 3),
        "first_view_share": round(seen.share_then, 3),
        "all_read_s": round(seen.all_read_s, 2),
        "drops_s": round(seen.drops_s, 3),
        "indexed_s": round(seen.indexed_s, 2),
        "click_s": round(seen.click_s, 3),
        "slowest_click_s": round(seen.slowest_click_s, 3),
        "first_rss_bytes": seen.first_rss_bytes,
        "max_rss_bytes": seen.max_rss_bytes,
    }


def _lines(looked: Looked) -> list[tuple[str, str]]:
    seen = looked.seen
    return [
        ("first view (page, verdict, timeline, drops)", f"{seen.first_view_s:.2f} s"),
        ("  part of the topics read by then", f"{seen.share_then:.0%}"),
        ("all read", f"{seen.all_read_s:.1f} s"),
        ("list of drops, first page", f"{seen.drops_s:.2f} s"),
        ("list of drops, whole", f"{seen.indexed_s:.1f} s"),
        ("a sample opened from it, median", f"{seen.click_s:.2f} s"),
        ("a sample opened from it, slowest", f"{seen.slowest_click_s:.2f} s"),
        ("memory at the first view", f"{seen.first_rss_bytes / _MIB:.0f} MiB"),
        ("memory at most", f"{seen.max_rss_bytes / _MIB:.0f} MiB"),
        ("(the run was written in)", f"{looked.made_s:.0f} s"),
    ]
