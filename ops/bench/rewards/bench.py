"""`rlweave bench rewards`: (1) broken scorers against a clean run, at a pace and at full speed, (2) scoring the past
beside training.

Data in: `RewardsSize`. Data out: a `BenchResult`.
Invariants: clean and broken, alone and beside, are of one command on one machine.
Failure: `BenchError`, `ServicesError`; a throughput that fell is no error, it is in the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ops.bench.result import BenchResult, Noise, Number, Table, rate
from ops.bench.rewards.faults import NAMES, Account, FaultSize, num_loops_of, run_faults
from ops.bench.rewards.past import PastFound, PastSize, run_past
from ops.chaos.servers import Servers

NOT_AWAY = tuple(name for name in NAMES if name != "remote")
WANTED_SHARE = 0.9  # of the clean run's throughput, at least


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A clean run and a broken one: what became of the samples, by reward."""

    clean: Mapping[str, Account]
    broken: Mapping[str, Account]
    beside: Mapping[str, Account] = field(default_factory=dict)  # nothing broken, beside loops of `num_loops` processes
    num_loops: int = 0

    def share(self, name: str) -> float:
        """Throughput of the broken run as a share of the clean one's."""
        clean, broken = self.clean[name].per_s, self.broken[name].per_s
        return round(broken / clean, 3) if clean else 0.0

    def limit(self, name: str) -> float | None:
        """What the loops alone leave of the clean run's throughput; None: not measured."""
        clean = self.clean[name].per_s
        return round(self.beside[name].per_s / clean, 3) if clean and name in self.beside else None


@dataclass(frozen=True, kw_only=True)
class RewardsSize:
    """How long, how much."""

    faults: FaultSize = field(default_factory=FaultSize)
    past: PastSize = field(default_factory=PastSize)

    @classmethod
    def quick(cls) -> RewardsSize:
        """Enough to see that it works."""
        return cls(faults=FaultSize.quick(), past=PastSize.quick())


def bench_rewards(size: RewardsSize, *, say: Callable[[str], None]) -> BenchResult:
    """See the module.

    Raises:
        BenchError: consumers or the run did not go on.
        ServicesError: the servers do not start.
    """
    noise = Noise()
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="rlweave-bench-")))
        servers = Servers(folder / "services", brokers=1)
        leaving.callback(servers.close)
        servers.start()
        paced = _both(size, folder=folder, servers=servers, peak=False, say=say)
        peak = _both(size, folder=folder, servers=servers, peak=True, say=say)
        past = run_past(size.past, folder=folder, servers=servers, say=say)
    return rewards_result(size, paced=paced, peak=peak, past=past, noise=noise)


def _both(size: RewardsSize, *, folder: Path, servers: Servers, peak: bool, say: Callable[[str], None]) -> Compared:
    clean, broken = (
        run_faults(size.faults, folder=folder, servers=servers, broken=broken, peak=peak, say=say)
        for broken in (False, True)
    )
    if not peak:
        return Compared(clean=clean, broken=broken)
    num = num_loops_of(size.faults, broken["hangs"])
    beside = run_faults(size.faults, folder=folder, servers=servers, broken=False, peak=True, say=say, num_loops=num)
    return Compared(clean=clean, broken=broken, beside=beside, num_loops=num)


def rewards_result(size: RewardsSize, *, paced: Compared, peak: Compared, past: PastFound, noise: Noise) -> BenchResult:
    """The table, the numbers and what they say."""
    values: dict[str, Number] = {}
    for name in NAMES:
        values |= _values(name, paced) | _peak_values(name, peak)
    accounts = [*paced.broken.values(), *peak.broken.values()]
    values["rewards_lowest_share_of_clean"] = min(paced.share(name) for name in NAMES)
    values["rewards_lowest_peak_share_of_clean"] = min(peak.share(name) for name in NOT_AWAY)
    values["hangs_peak_limit_share"], values["hangs_peak_num_loops"] = peak.limit("hangs"), peak.num_loops
    values["rewards_all_accounted"] = int(all(one.is_whole for one in accounts))
    values |= {
        "rescore_num_samples": past.rescored,
        "rescore_samples_per_s": round(past.rescore_per_s, 1),
        "rescore_alone_samples_per_s": round(past.rescore_alone_per_s, 1),
        "trained_before_per_s": round(past.trained_before_per_s, 1),
        "trained_beside_per_s": round(past.trained_beside_per_s, 1),
        "trained_after_per_s": round(past.trained_after_per_s, 1),
        "trained_share": round(past.trained_share, 3),
    }
    table = Table(
        title=f"{size.faults.samples_per_s:g} samples a second for {size.faults.seconds:g} s, five rewards",
        headers=(
            "reward",
            "samples",
            "values",
            "failures",
            "missing",
            "0s",
            "per s, clean",
            "broken",
            "p95 s",
            "broken",
            "per s, clean, at full speed",
            "broken",
        ),
        rows=tuple(_row(name, paced, peak=peak) for name in NAMES),
    )
    return BenchResult(
        name="rewards", table=table, values=values, notes=_notes(size, values), noise=noise.values(num_repeats=1)
    )


def _values(name: str, paced: Compared) -> dict[str, Number]:
    clean, broken = paced.clean[name], paced.broken[name]
    return {
        f"{name}_samples": broken.num_samples,
        f"{name}_values": broken.num_values,
        f"{name}_failures": broken.failures.total(),
        f"{name}_missing": broken.num_missing,
        f"{name}_wrong": broken.num_wrong,
        f"{name}_zero": broken.num_zero,
        f"{name}_twice": broken.num_twice,
        f"{name}_clean_per_s": round(clean.per_s, 2),
        f"{name}_broken_per_s": round(broken.per_s, 2),
        f"{name}_share_of_clean": paced.share(name),
        f"{name}_clean_delay_p95_s": round(clean.delay_p95_s, 3),
        f"{name}_broken_delay_p50_s": round(broken.delay_p50_s, 3),
        f"{name}_broken_delay_p95_s": round(broken.delay_p95_s, 3),
    }


def _peak_values(name: str, peak: Compared) -> dict[str, Number]:
    clean, broken = peak.clean[name], peak.broken[name]
    return {
        f"{name}_peak_clean_per_s": round(clean.per_s, 1),
        f"{name}_peak_broken_per_s": round(broken.per_s, 1),
        f"{name}_peak_share_of_clean": peak.share(name),
        f"{name}_peak_failures": broken.failures.total(),
        f"{name}_peak_missing": broken.num_missing,
        f"{name}_peak_wrong": broken.num_wrong,
        f"{name}_peak_zero": broken.num_zero,
    }


def _row(name: str, paced: Compared, *, peak: Compared) -> tuple[str, ...]:
    clean, broken = paced.clean[name], paced.broken[name]
    words = ", ".join(f"{word} {num}" for word, num in broken.failures.most_common())
    return (
        name,
        str(broken.num_samples),
        str(broken.num_values),
        words or "0",
        str(broken.num_missing),
        str(broken.num_zero),
        f"{clean.per_s:.1f}",
        f"{broken.per_s:.1f}",
        f"{clean.delay_p95_s:.3f}",
        f"{broken.delay_p95_s:.3f}",
        rate(peak.clean[name].per_s),
        rate(peak.broken[name].per_s),
    )


def _notes(size: RewardsSize, values: Mapping[str, Number]) -> tuple[str, ...]:
    beside, alone = (rate(_number(values, f"rescore_{kind}samples_per_s")) for kind in ("", "alone_"))
    before, during, after = (values[f"trained_{when}_per_s"] for when in ("before", "beside", "after"))
    whole = "every sample has one record of each reward, and the right one"
    return (
        f"Broken: one in 100 samples hangs ({size.faults.timeout_s:g} s limit), one in 20 raises, one in 20 gives NaN, "
        f"the remote service answers 503 for {size.faults.away_s:g} s.",
        f"Throughput of what a fault does not spoil: at least {values['rewards_lowest_share_of_clean']} of the clean "
        f"run's (wanted: {WANTED_SHARE:g}). Accounts: "
        f"{whole if values['rewards_all_accounted'] else 'NOT WHOLE, see missing, wrong and zero'}.",
        f"At full speed ({size.faults.peak_samples} samples at once, {size.faults.peak_work_ms:g} ms of work each, "
        f"limit {size.faults.peak_timeout_s:g} s): {values['rewards_lowest_peak_share_of_clean']} of the clean run's, "
        f"but for the remote service, which is away for {size.faults.away_s:g} s of it.",
        f"The machine's own limit of that: {values['hangs_peak_limit_share']} of the clean run's for the reward that "
        f"hangs, when nothing does but {values['hangs_peak_num_loops']} processes loop beside it with the processor "
        f"time that others leave, as many as calls hang at a time; it has {values['hangs_peak_share_of_clean']}.",
        f"The past: {values['rescore_num_samples']} samples in one command, {beside} a second beside training, "
        f"{alone} alone.",
        f"Training: {before} samples a second before, {during} beside it, {after} after: {values['trained_share']} of "
        "alone.",
    )


def _number(values: Mapping[str, Number], name: str) -> float:
    found = values[name]
    return 0.0 if found is None else float(found)
