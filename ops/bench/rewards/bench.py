"""`rlweave bench rewards`: (1) broken scorers against a clean run, (2) scoring the past beside training.

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
from ops.bench.rewards.faults import NAMES, Account, FaultSize, run_faults
from ops.bench.rewards.past import PastFound, PastSize, run_past
from ops.chaos.servers import Servers

WANTED_SHARE = 0.9  # of the clean run's throughput, at least


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
        clean = run_faults(size.faults, folder=folder, servers=servers, broken=False, say=say)
        broken = run_faults(size.faults, folder=folder, servers=servers, broken=True, say=say)
        past = run_past(size.past, folder=folder, servers=servers, say=say)
    return rewards_result(size, clean=clean, broken=broken, past=past, noise=noise)


def rewards_result(
    size: RewardsSize,
    *,
    clean: Mapping[str, Account],
    broken: Mapping[str, Account],
    past: PastFound,
    noise: Noise,
) -> BenchResult:
    """The table, the numbers and what they say."""
    values: dict[str, Number] = {}
    for name in NAMES:
        values |= _values(name, clean[name], broken=broken[name])
    values["rewards_lowest_share_of_clean"] = min(_share(clean[name], broken[name]) for name in NAMES)
    values["rewards_all_accounted"] = int(all(broken[name].is_whole for name in NAMES))
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
        ),
        rows=tuple(_row(name, clean[name], broken=broken[name]) for name in NAMES),
    )
    return BenchResult(
        name="rewards", table=table, values=values, notes=_notes(size, values), noise=noise.values(num_repeats=1)
    )


def _share(clean: Account, broken: Account) -> float:
    return round(broken.per_s / clean.per_s, 3) if clean.per_s else 0.0


def _values(name: str, clean: Account, *, broken: Account) -> dict[str, Number]:
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
        f"{name}_share_of_clean": _share(clean, broken),
        f"{name}_clean_delay_p95_s": round(clean.delay_p95_s, 3),
        f"{name}_broken_delay_p50_s": round(broken.delay_p50_s, 3),
        f"{name}_broken_delay_p95_s": round(broken.delay_p95_s, 3),
    }


def _row(name: str, clean: Account, *, broken: Account) -> tuple[str, ...]:
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
        f"The past: {values['rescore_num_samples']} samples in one command, {beside} a second beside training, "
        f"{alone} alone.",
        f"Training: {before} samples a second before, {during} beside it, {after} after: {values['trained_share']} of "
        "alone.",
    )


def _number(values: Mapping[str, Number], name: str) -> float:
    found = values[name]
    return 0.0 if found is None else float(found)
