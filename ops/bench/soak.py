"""`rlweave bench soak`: the demo's work without an end, as fast as this machine does it, and what grows with time.

Order: (1) servers, model and topics of its own; (2) every stage under the supervisor; (3) for the time given, once a
second the memory and open files of every process, every few seconds the lag of every group and the samples made;
(4) a stop, and the audit.
What is judged: a series is cut in three; the first third is the start, the second is held against the last one.
Invariants: only what was started here is measured, and ended, on an interrupt, too.
Failure: `ServicesError`, `SettingsError`; `BenchError` when the run does not train, or ends by itself. What grows is no
error: it is in the table.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from statistics import fmean, median

from ops.audit.run import audit_run
from ops.bench import result
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.chaos.vitals import Series, Vitals
from ops.demo import CONTEXT_TOKENS
from ops.run_checks import check_run
from ops.run_ends import LogEnds
from ops.run_file import RunFile, load_run_file, save_run_file
from ops.status import group_lags
from ops.wiring import open_log, programs
from pipeline.engines.tiny import make_tiny_model
from pipeline.stage import CONNECT_S
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import RlweaveError
from topics.catalog import SAMPLES, full_name
from topics.clock import Deadline
from topics.kafka.raw import RawLog

LOOK_S = 5.0  # between two looks at lag and rate, at most
_LOOKS = 12  # of a short soak, about
_FEWEST_LOOKS = 3  # one in each third
RSS_SHARE = 0.05  # wanted: growth of a settled process at most this share of itself,
RSS_MIB = 8.0  # or this much
FILES = 8  # wanted: further open files of a settled process at most
LAG_RATIO = 1.5  # wanted: lag of the last third at most this many times that of the second one
_START_S = 180.0
_GRACE_S = 60.0
_WITHOUT_END = 10_000_000
_RUN = "soak"


class BenchError(RlweaveError):
    """The run that was to be measured did not go on."""


@dataclass(frozen=True, kw_only=True)
class SoakSize:
    """How long."""

    minutes: float = 30.0

    @classmethod
    def quick(cls) -> SoakSize:
        """Enough to see that it works; says nothing about leaks."""
        return cls(minutes=0.5)


@dataclass
class Flow:
    """What the log said, look by look."""

    at_s: list[float] = field(default_factory=list)
    num_samples: list[int] = field(default_factory=list)
    lag_records: list[int] = field(default_factory=list)  # of all groups; a look with an unknown lag is left out

    def rate(self, part: slice) -> float:
        """Samples per second in a part of the looks."""
        at_s, made = self.at_s[part], self.num_samples[part]
        return (made[-1] - made[0]) / (at_s[-1] - at_s[0]) if len(at_s) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One process: medians of the second and of the last third of its life."""

    name: str
    pid: int
    rss_mib: tuple[float, float]
    num_files: tuple[float, float]
    hours: float  # between the middles of the two thirds

    @classmethod
    def of(cls, series: Series) -> Growth:
        """Judge a series of at least three points."""
        second, last = thirds(len(series.at_s))
        return cls(
            name=series.name,
            pid=series.pid,
            rss_mib=(median(series.rss_mib[second]), median(series.rss_mib[last])),
            num_files=(median(series.num_files[second]), median(series.num_files[last])),
            hours=(median(series.at_s[last]) - median(series.at_s[second])) / 3600,
        )

    @property
    def slope_mib_h(self) -> float:
        """Growth of memory, in MiB per hour."""
        return (self.rss_mib[1] - self.rss_mib[0]) / self.hours

    @property
    def grown_files(self) -> float:
        """Further open files."""
        return self.num_files[1] - self.num_files[0]

    @property
    def is_ours(self) -> bool:
        """Servers have bounds of their own: a broker's heap and page cache fill up to them."""
        return not self.name.startswith("server:")

    @property
    def is_flat(self) -> bool:
        """Whether memory and files stayed within what is wanted of our processes."""
        if not self.is_ours:
            return True
        grown_mib = self.rss_mib[1] - self.rss_mib[0]
        return grown_mib <= max(RSS_MIB, RSS_SHARE * self.rss_mib[0]) and self.grown_files <= FILES


def thirds(num_points: int) -> tuple[slice, slice]:
    """The second and the last third."""
    return slice(num_points // 3, 2 * num_points // 3), slice(2 * num_points // 3, None)


def bench_soak(size: SoakSize, *, say: Callable[[str], None]) -> result.BenchResult:
    """See the module.

    Raises:
        ServicesError: the servers do not start.
        BenchError: the run does not begin to train, or ends by itself.
    """
    noise = result.Noise()
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="rlweave-bench-")))
        servers = Servers(folder / "services", brokers=1)  # (1)
        leaving.callback(servers.close)
        servers.start()
        run_file = _set_up(folder, servers)
        soak = _Soak(run_file, servers, say=say, leaving=leaving)
        soak.run(size.minutes * 60)  # (2) and (3)
        audit = audit_run(open_log(run_file), run_file=run_file)  # (4)
        say(audit.text())
    return soak_result(size, soak.flow, series=soak.vitals.series(), balanced=audit.balanced, noise=noise)


def _set_up(folder: Path, servers: Servers) -> RunFile:
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(
            path,
            overrides=[
                f'run.name="{_RUN}"',
                f'run.dir="{folder}"',
                f"run.max_steps={_WITHOUT_END}",
                f'model.path="{folder / "model"}"',
                f'learner.oracle_file="{folder / "oracle.jsonl"}"',
                f'kafka.bootstrap="{servers.bootstrap}"',
                f'redis.url="{servers.redis_url}"',
            ],
        )
    check_run(run_file)
    make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS)
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    load_or_create_token(run_file.run.folder / "peer-token")
    save_run_file(run_file, folder / "settings.json")
    return run_file


class _Soak:
    """The run, and what is seen of it."""

    def __init__(self, run_file: RunFile, servers: Servers, *, say: Callable[[str], None], leaving: ExitStack) -> None:
        self.flow = Flow()
        self._raw = RawLog(servers.bootstrap)
        self._say = say
        self._crew = Crew(
            programs(run_file, settings_file=run_file.run.folder.parent / "settings.json"),
            run_file.supervisor,
            ends=LogEnds(open_log(run_file), run_file=run_file),
            say=say,
        )
        self.vitals = Vitals(lambda: {**self._crew.pids(), **servers.pids()})
        self._places = [(full_name(_RUN, SAMPLES), number) for number in range(run_file.run.partitions)]
        leaving.callback(self.vitals.close)
        leaving.callback(self._crew.stop)

    def run(self, seconds: float) -> None:
        """Measure for so long, once samples are made; then stop the stages."""
        self._crew.start()
        deadline = Deadline.after(_START_S)
        while self._num_samples() == 0:
            self._check(deadline)
            time.sleep(1.0)
        self.vitals.start()
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds:
            self._check(None)
            self._look(passed_s)
            time.sleep(min(LOOK_S, seconds / _LOOKS, max(0.0, seconds - passed_s)))
        self.vitals.close()
        self._crew.stop(grace_s=_GRACE_S)

    def _look(self, passed_s: float) -> None:
        lags = [each.lag_records for each in group_lags(self._raw, _RUN, counts=self._raw.partition_counts())]
        known = [lag for lag in lags if lag is not None]
        if len(known) < len(lags):
            return
        flow = self.flow
        flow.at_s.append(passed_s)
        flow.num_samples.append(self._num_samples())
        flow.lag_records.append(sum(known))
        if len(flow.at_s) % 12 == 0:
            self._say(
                f"[{passed_s:6.0f} s] {flow.num_samples[-1]} samples, {flow.rate(slice(-12, None)):.0f} a second, "
                f"lag {flow.lag_records[-1]} records"
            )

    def _num_samples(self) -> int:
        ranges = self._raw.ranges(self._places)
        return sum(end for each in ranges.values() if each is not None for end in each[1:])

    def _check(self, deadline: Deadline | None) -> None:
        if self._crew.ended is not None:
            raise BenchError(f"the run ended by itself with code {self._crew.ended}: {self._crew.last_words()}")
        if deadline is not None and deadline.expired:
            raise BenchError(f"no sample was made within {deadline.limit_s:g} s: {self._crew.last_words()}")


def soak_result(
    size: SoakSize, flow: Flow, *, series: Sequence[Series], balanced: bool, noise: result.Noise
) -> result.BenchResult:
    """What the series and looks of a soak come to.

    Raises:
        BenchError: there are too few looks.
    """
    if len(flow.at_s) < _FEWEST_LOOKS:
        raise BenchError(
            f"the lag of every group was known at {len(flow.at_s)} looks only, {_FEWEST_LOOKS} are needed",
            hint="measure for longer with --minutes",
        )
    second, last = thirds(len(flow.at_s))
    lag = (fmean(flow.lag_records[second]), fmean(flow.lag_records[last]))
    rates = (flow.rate(second), flow.rate(last))
    lives = Counter(each.name for each in series)
    grown = [Growth.of(each) for each in series if len(each.at_s) >= 3]
    values: dict[str, result.Number] = {
        "soak_minutes": size.minutes,
        "soak_samples": flow.num_samples[-1],
        "soak_samples_per_s": round(flow.rate(slice(None)), 1),
        "soak_rate_last_over_second_third": round(rates[1] / rates[0], 3) if rates[0] else None,
        "soak_lag_records_max": max(flow.lag_records),
        "soak_lag_last_over_second_third": round(lag[1] / lag[0], 3) if lag[0] else None,
        "soak_restarts": sum(count - 1 for count in lives.values()),
        "soak_not_flat": sum(not each.is_flat for each in grown),
        "soak_balanced": int(balanced),
    }
    for each in grown:
        key = each.name.removeprefix("server:").replace("-", "_").replace(".", "_")
        values |= {f"{key}_rss_mib": each.rss_mib[1], f"{key}_slope_mib_h": round(each.slope_mib_h, 1)}
        values[f"{key}_grown_files"] = each.grown_files
    table = result.Table(
        title=f"{size.minutes:g} minutes of the demo's work without an end",
        headers=("process", "MiB, 2nd third", "MiB, last third", "MiB an hour", "files", "further files", ""),
        rows=tuple(_row(each) for each in sorted(grown, key=lambda each: each.name)),
    )
    return result.BenchResult(
        name="soak", table=table, values=values, notes=_notes(values), noise=noise.values(num_repeats=1)
    )


def _row(each: Growth) -> tuple[str, ...]:
    before, after = each.rss_mib
    return (
        each.name,
        f"{before:.1f}",
        f"{after:.1f}",
        f"{each.slope_mib_h:+.1f}",
        f"{each.num_files[1]:.0f}",
        f"{each.grown_files:+.0f}",
        "" if each.is_flat else "GROWS",
    )


def _notes(values: dict[str, result.Number]) -> tuple[str, ...]:
    return (
        f"{values['soak_samples']} samples, {values['soak_samples_per_s']} a second; the last third at "
        f"{values['soak_rate_last_over_second_third']} times the rate of the second one.",
        f"Lag of all groups: at most {values['soak_lag_records_max']} records; mean of the last third "
        f"{values['soak_lag_last_over_second_third']} times that of the second one (wanted: at most {LAG_RATIO}).",
        f"Processes that ended and were started again: {values['soak_restarts']}. "
        f"Audit: {'balanced' if values['soak_balanced'] else 'NOT BALANCED'}.",
        f"Wanted of processes of ours, from the second third to the last: at most {RSS_SHARE:.0%} or {RSS_MIB:g} MiB "
        f"more, and {FILES} further files.",
    )
