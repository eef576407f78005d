"""The benchmark as the command calls it: the network part, and the lengths and speeds of deltas."""

from __future__ import annotations

from collections.abc import Callable

from ops.bench.deltas import DeltaSize, measure_shares, measure_speeds
from ops.bench.result import BenchResult, Noise
from ops.bench.weights import report
from ops.bench.weights.measure import measure
from ops.bench.weights.plan import WeightsPlan


def bench_weights(plan: WeightsPlan, *, say: Callable[[str], None]) -> BenchResult:
    """Measure.

    Args:
        say: gets a line when a part is done.

    Raises:
        NetlabError: this machine cannot make the network.
        BenchError, DeadlineExceeded: a set failed.
    """
    noise = Noise()
    measured = measure(plan, say=say)
    size = DeltaSize.quick() if plan.delta_quick else DeltaSize()
    shares, speeds = measure_shares(size.num_elements), measure_speeds(size)
    delta_values = {key: round(value, 4) for key, value in {**shares, **speeds}.items()}
    shown = {key: delta_values[key] for key in delta_values if key.startswith("delta_share_")}
    shown |= {key: delta_values[key] for key in ("encode_gb_s", "apply_gb_s")}
    return BenchResult(
        name="weights",
        table=report.table(measured, shares=shown),
        values={**report.values(measured, plan=plan), **delta_values},
        notes=report.notes(measured, plan=plan),
        noise=noise.values(num_repeats=1),
    )
