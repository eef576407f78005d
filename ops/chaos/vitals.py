"""Memory and open files of every process of a run, and whether they stay bounded.

Role: a thread that looks into /proc once a second.
Data in: names and pids. Data out: one series per process, and findings.
Invariants: a series belongs to one life of a process; growth is judged on what comes after it has settled, so a start
is no leak and neither is one large record. Servers are held to a limit only: a Java process takes its heap bit by bit.
Failure: a process that is gone has no further points.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ops.chaos.settings import Limits

EVERY_S = 1.0
SETTLED_S = 90.0  # of a life, before growth is looked at
JUDGED_S = 120.0  # of a settled life that is needed for a slope
_MIB = 2**20
_PARTS = 5  # of a settled life; the first one is held against the last one


@dataclass
class Series:
    """One life of one process."""

    name: str
    pid: int
    at_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    num_files: list[int] = field(default_factory=list)

    @property
    def settled(self) -> slice:
        """Points that growth is judged by."""
        first = next((i for i, at_s in enumerate(self.at_s) if at_s >= self.at_s[0] + SETTLED_S), len(self.at_s))
        return slice(first, None)

    @property
    def slope_mib_min(self) -> float | None:
        """Growth of a settled life; None when it was too short."""
        at_s, rss_mib = self.at_s[self.settled], self.rss_mib[self.settled]
        if len(at_s) < _PARTS or at_s[-1] - at_s[0] < JUDGED_S:
            return None
        part = len(at_s) // _PARTS
        grown_mib = median(rss_mib[-part:]) - median(rss_mib[:part])
        passed_s = median(at_s[-part:]) - median(at_s[:part])
        return grown_mib / passed_s * 60

    @property
    def grown_files(self) -> int:
        """Further open files of a settled life."""
        files = self.num_files[self.settled]
        part = len(files) // _PARTS
        return 0 if part == 0 else round(median(files[-part:]) - median(files[:part]))


class Vitals:
    """Watches processes.

    Args:
        processes: gives names and pids of what is to be watched now; names beginning with `server:` are servers.
    """

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        self._processes = processes
        self._series: dict[tuple[str, int], Series] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="vitals", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._end.set()
        self._thread.join(timeout=10.0)

    def series(self) -> list[Series]:
        """What was seen."""
        return [series for series in self._series.values() if series.at_s]

    def look(self, *, now_s: float) -> None:
        """Take one point of each process."""
        for name, pid in self._processes().items():
            rss_mib, num_files = _rss_mib(pid), _num_files(pid)
            if rss_mib is None or num_files is None:
                continue
            series = self._series.setdefault((name, pid), Series(name=name, pid=pid))
            series.at_s.append(now_s)
            series.rss_mib.append(rss_mib)
            series.num_files.append(num_files)

    def _watch(self) -> None:
        while not self._end.wait(EVERY_S):
            self.look(now_s=time.monotonic())


def unbounded(series: list[Series], *, limits: Limits) -> list[str]:
    """Findings: who took too much, or grew without an end."""
    found: list[str] = []
    for each in series:
        is_server = each.name.startswith("server:")
        limit_mib = limits.server_rss_mib if is_server else limits.rss_mib
        who = f"{each.name} (pid {each.pid})"
        if max(each.rss_mib) > limit_mib:
            found.append(f"{who} took {max(each.rss_mib):.0f} MiB, the limit is {limit_mib:.0f}")
        slope = each.slope_mib_min
        if slope is not None and not is_server and slope > limits.slope_mib_min:
            found.append(f"{who} grew by {slope:.1f} MiB a minute, the limit is {limits.slope_mib_min:g}")
        if each.slope_mib_min is not None and not is_server and each.grown_files > limits.num_files:
            found.append(f"{who} opened {each.grown_files} more files, the limit is {limits.num_files}")
    return found


def note_series(path: Path, series: Sequence[Series]) -> None:
    """Write every point as CSV."""
    with path.open("w") as file:
        file.write("name,pid,seconds,rss_mib,num_files\n")
        for each in series:
            for at_s, rss_mib, num_files in zip(each.at_s, each.rss_mib, each.num_files, strict=True):
                file.write(f"{each.name},{each.pid},{at_s:.1f},{rss_mib:.1f},{num_files}\n")


def _rss_mib(pid: int) -> float | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB
    except (OSError, IndexError):
        return None


def _num_files(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
