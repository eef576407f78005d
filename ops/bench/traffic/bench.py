"""The benchmark as the command calls it."""

from __future__ import annotations

from collections.abc import Callable

from ops.bench.result import BenchResult, Noise
from ops.bench.traffic import report
from ops.bench.traffic.measure import measure
from ops.bench.traffic.plan import TrafficPlan


def bench_traffic(plan: TrafficPlan, *, say: Callable[[str], None]) -> BenchResult:
    """Measure.

    Args:
        say: gets a line when a set is done.

    Raises:
        NetlabError: this machine cannot make the network.
        BenchError, DeadlineExceeded: a set failed.
    """
    noise = Noise()
    measured = measure(plan, say=say)
    return BenchResult(
        name="traffic",
        table=report.table(measured),
        values=report.values(measured, plan=plan),
        notes=report.notes(measured, plan=plan),
        noise=noise.values(num_repeats=plan.num_repeats),
    )
