"""Broken scorers beside good ones: the same samples at the same pace, first with nothing broken.

Order: (1) five reward consumers of a run join; (2) samples come at a fixed pace, or all at once (*at full speed*), the
remote service is away for a part of the time; (3) all is read that the consumers wrote, until every sample has its
reward from each or the time is up.
Data in: `FaultSize`. Data out: per reward what became of the samples, how fast and how late.
Invariants: throughput counts, in both runs, the samples that a fault does not spoil, from the first one written to the
last one scored. A delay is from a sample's writing to its scoring, both by this machine's clock.
Failure: `BenchError` when consumers do not join, or end.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ops.bench.material import make_groups
from ops.bench.rewards.loops import Loops
from ops.bench.rewards.runs import make_crew, make_run
from ops.bench.rewards.scorers import GROUP_SIZE, spoils, value_of
from ops.bench.rewards.service import Service
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.run_file import RunFile, Toml
from ops.wiring import open_log
from schemas.errors import RlweaveError
from schemas.records import Reward, Sample
from topics.catalog import REWARDS, SAMPLES
from topics.clock import Deadline
from topics.log import Reader, ReaderHooks, ReaderSettings, WriterSettings

NAMES = ("steady", "hangs", "raises", "nan", "remote")
_HERE = "ops.bench.rewards.scorers"
_JOIN_S = 90.0
_SETTLE_S = 240.0  # for what is left when the last sample was written
_POLL_S = 0.05
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)


class BenchError(RlweaveError):
    """What was to be measured did not go on."""


@dataclass(frozen=True, kw_only=True)
class FaultSize:
    """How long, how fast, how broken."""

    seconds: float = 60.0
    samples_per_s: float = 100.0
    away_s: float = 20.0  # the remote service answers 503, from a quarter of the time on
    timeout_s: float = 0.5  # of a call
    peak_samples: int = 4000  # that come at once
    peak_timeout_s: float = 2.0
    peak_work_ms: float = 2.0  # processor time that each sample takes a scorer, as a verifier of mathematics does

    @classmethod
    def quick(cls) -> FaultSize:
        """Enough to see that it works."""
        return cls(seconds=6.0, away_s=1.0, peak_samples=400)


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the samples at one reward."""

    num_samples: int
    num_values: int
    failures: Counter[str]  # by the first word
    num_zero: int  # values of 0, which no scorer gave
    num_wrong: int  # other values than the scorer's, failures without a fault, values in spite of one
    num_missing: int  # without any record
    num_twice: int  # with more than one
    per_s: float  # unspoiled samples per second
    delay_p50_s: float
    delay_p95_s: float

    @property
    def is_whole(self) -> bool:
        """Every sample has one record, and the right one."""
        return not (self.num_zero or self.num_wrong or self.num_missing)


def run_faults(
    size: FaultSize,
    *,
    folder: Path,
    servers: Servers,
    broken: bool,
    peak: bool,
    say: Callable[[str], None],
    num_loops: int = 0,
) -> dict[str, Account]:
    """See the module.

    Args:
        peak: the samples come at once.
        num_loops: processes that loop for ever beside it, with the processor time that others leave.

    Raises:
        BenchError: consumers did not join, or ended.
    """
    with ExitStack() as leaving:
        service = Service()
        leaving.callback(service.close)
        service.start()
        kind = f"{'peak-' if peak else ''}{'broken' if broken else 'clean'}{'-beside-loops' if num_loops else ''}"
        rewards = _rewards(size, url=service.url, broken=broken, peak=peak)
        run_file = make_run(f"bench-rewards-{kind}", folder=folder, servers=servers, rewards=rewards)
        crew = make_crew(run_file, stages=("reward",), say=lambda _: None)
        leaving.callback(crew.stop, grace_s=20.0)
        crew.start()
        reader = open_log(run_file).reader(ReaderSettings(topics=(REWARDS,), instance="bench"), hooks=_HOOKS)
        leaving.callback(reader.close)
        feed = Feed(run_file, size=size)
        leaving.callback(feed.close)
        feed.write(1)  # (1)
        seen = Seen(reader)
        _until(lambda: seen.num == GROUP_SIZE * len(NAMES), seen=seen, crew=crew, limit_s=_JOIN_S)
        say(f"{kind}: {len(NAMES)} rewards have joined")
        loops = Loops(num_loops)
        leaving.callback(loops.close)
        loops.start()
        if peak:
            _give_at_once(size, feed=feed, seen=seen, service=service, away_s=size.away_s if broken else 0.0)
        else:
            _give_paced(size, feed=feed, seen=seen, service=service, away_s=size.away_s if broken else 0.0)
        service.be_away(False)
        wanted = feed.num_groups * GROUP_SIZE * len(NAMES)
        _until(lambda: seen.num >= wanted, seen=seen, crew=crew, limit_s=_SETTLE_S, must=False)  # (3)
        joined = GROUP_SIZE  # the group that showed that all have joined waited for them
        return {one: account_of(one, feed.samples[joined:], rewards=seen.of(one), broken=broken) for one in NAMES}


def _give_paced(size: FaultSize, *, feed: Feed, seen: Seen, service: Service, away_s: float) -> None:
    """(2)"""
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < size.seconds:
        service.be_away(size.seconds / 4 <= passed_s < size.seconds / 4 + away_s)
        due = int(passed_s * size.samples_per_s / GROUP_SIZE) + 2 - feed.num_groups
        feed.write(max(0, due))
        seen.take(_POLL_S)


def _give_at_once(size: FaultSize, *, feed: Feed, seen: Seen, service: Service, away_s: float) -> None:
    """(2)"""
    began_s = time.monotonic()
    service.be_away(away_s > 0)
    feed.write(size.peak_samples // GROUP_SIZE)
    while time.monotonic() < began_s + away_s:
        seen.take(_POLL_S)


class Feed:
    """Writes groups of samples, each stamped with the moment."""

    def __init__(self, run_file: RunFile, *, size: FaultSize) -> None:
        self._writer = open_log(run_file).writer(WriterSettings(linger_ms=1.0))
        self._groups = make_groups(run_file.run.name, num_groups=10**9, group_size=GROUP_SIZE, num_tokens=32)
        self._limit_s = size.seconds
        self.samples: list[Sample] = []
        self.num_groups = 0

    def write(self, num_groups: int) -> None:
        """So many more groups."""
        if num_groups == 0:
            return
        for _ in range(num_groups):
            now_ms = time.time_ns() // 1_000_000
            stamped = [replace(sample, finished_unix_ms=now_ms) for sample in next(self._groups)]
            for sample in stamped:
                self._writer.write(SAMPLES, sample)
            self.samples += stamped
        self._writer.flush(deadline=Deadline.after(self._limit_s + 30.0))
        self.num_groups += num_groups

    def close(self) -> None:
        """Write no more."""
        self._writer.close(deadline=Deadline.after(5.0))


class Seen:
    """Rewards read so far."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rewards: list[Reward] = []
        self._keys: set[tuple[str, int, int]] = set()

    @property
    def num(self) -> int:
        """Pairs of reward and sample with a record."""
        return len(self._keys)

    def take(self, wait_s: float) -> None:
        """Read what is there."""
        for envelope in self._reader.poll(5000, deadline=Deadline.after(wait_s)):
            if isinstance(envelope.record, Reward):
                self._rewards.append(envelope.record)
                self._keys.add((envelope.record.name, envelope.record.group, envelope.record.member))

    def of(self, name: str) -> list[Reward]:
        """Those of one reward."""
        return [reward for reward in self._rewards if reward.name == name]


def num_loops_of(size: FaultSize, found: Account) -> int:
    """How many calls of a broken scorer hung at a time while the others were scored, when each had its whole limit."""
    num_hung = found.failures.total()
    took_s = (found.num_samples - num_hung) / found.per_s if found.per_s else 0.0
    return max(1, math.ceil(num_hung * size.peak_timeout_s / took_s)) if took_s else 1


def account_of(name: str, samples: list[Sample], *, rewards: list[Reward], broken: bool) -> Account:
    """Hold what was written of these samples against what was to come."""
    wanted = {(sample.group, sample.member) for sample in samples}
    first: dict[tuple[int, int], Reward] = {}
    num_twice = 0
    for reward in rewards:
        key = (reward.group, reward.member)
        num_twice += key in first
        if key in wanted:
            first.setdefault(key, reward)
    failures: Counter[str] = Counter()
    num_zero = num_wrong = 0
    delays: list[float] = []
    last_ms = began_ms = samples[0].finished_unix_ms
    for sample in samples:
        found = first.get((sample.group, sample.member))
        if found is None:
            continue
        spoiled = spoils(name, group=sample.group, member=sample.member)
        num_zero += found.value == 0
        if found.failure is not None:
            failures[found.failure.partition(":")[0]] += 1
        expected = None if spoiled and broken else value_of(sample)
        num_wrong += found.value != expected
        if not spoiled:
            delays.append((found.scored_unix_ms - sample.finished_unix_ms) / 1000)
            last_ms = max(last_ms, found.scored_unix_ms)
    took_s = max(0.001, (last_ms - began_ms) / 1000)
    return Account(
        num_samples=len(samples),
        num_values=sum(reward.value is not None for reward in first.values()),
        failures=failures,
        num_zero=num_zero,
        num_wrong=num_wrong,
        num_missing=len(samples) - len(first),
        num_twice=num_twice,
        per_s=len(delays) / took_s,
        delay_p50_s=float(np.percentile(delays, 50)) if delays else 0.0,
        delay_p95_s=float(np.percentile(delays, 95)) if delays else 0.0,
    )


def _rewards(size: FaultSize, *, url: str, broken: bool, peak: bool) -> dict[str, dict[str, Toml]]:
    """Sections of the run file."""
    return dict(_sections(size, url=url, broken=broken, peak=peak))


def _sections(size: FaultSize, *, url: str, broken: bool, peak: bool) -> Iterator[tuple[str, dict[str, Toml]]]:
    common: dict[str, Toml] = {"timeout_s": size.peak_timeout_s if peak else size.timeout_s, "timeout_retries": 0}
    work: dict[str, Toml] = {"work_ms": size.peak_work_ms if peak else 0.0}
    yield "steady", {"plugin": f"{_HERE}:steady", "options": work, **common}
    for name in ("hangs", "raises", "nan"):
        yield name, {"plugin": f"{_HERE}:{name}", "options": {"broken": broken, **work}, **common}
    yield "remote", {"plugin": "remote_http", "options": {"url": url}, "retry_backoff_max_s": 2.0, "retries": 60}


def _until(done: Callable[[], bool], *, seen: Seen, crew: Crew, limit_s: float, must: bool = True) -> None:
    deadline = Deadline.after(limit_s)
    while not done() and not deadline.expired:
        if crew.ended is not None:
            raise BenchError(f"the reward consumers ended by themselves: {crew.last_words()}")
        seen.take(_POLL_S)
    if must and not done():
        raise BenchError(f"not every reward scored within {limit_s:g} s: {crew.last_words()}")
