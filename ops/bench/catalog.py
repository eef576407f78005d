"""The benchmarks there are, and what each is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ops.bench.codec import bench_codec
from ops.bench.ingest import IngestSize, bench_ingest
from ops.bench.result import BenchResult


def _ignore(_: str) -> None:
    """The default."""


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """How to measure.

    Attributes:
        quick: few and short repeats: says whether it works, not how fast it is.
        kafka: `host:port` of a broker that is there; None: the local services, or ones started for the while.
        state_dir: folder of the local services.
        engine: swap: this one only; None: all that are installed. environments: this one; None: torch.
        minutes: soak: this long; None: its default.
        say: gets a line when a part of a long one is done.
    """

    quick: bool = False
    kafka: str | None = None
    state_dir: Path = Path(".rlweave")
    engine: str | None = None
    minutes: float | None = None
    say: Callable[[str], None] = _ignore


def _admission(request: BenchRequest) -> BenchResult:
    from ops.bench.admission import AdmissionSize, bench_admission  # noqa: PLC0415 - needs torch and vLLM

    return bench_admission(AdmissionSize.quick() if request.quick else AdmissionSize(), say=request.say)


def _algorithms(request: BenchRequest) -> BenchResult:
    from ops.bench.algorithms.bench import AlgorithmsSize, bench_algorithms  # noqa: PLC0415 - needs torch

    return bench_algorithms(AlgorithmsSize.quick() if request.quick else AlgorithmsSize(), say=request.say)


def _codec(request: BenchRequest) -> BenchResult:
    return bench_codec(quick=request.quick)


def _dashboard(request: BenchRequest) -> BenchResult:
    from ops.bench.dashboard.bench import bench_dashboard  # noqa: PLC0415 - the others do without

    return bench_dashboard(quick=request.quick, kafka=request.kafka, state_dir=request.state_dir, say=request.say)


def _deltas(request: BenchRequest) -> BenchResult:
    from ops.bench.deltas import bench_deltas  # noqa: PLC0415 - needs torch, which the others do without

    return bench_deltas(quick=request.quick)


def _elastic(request: BenchRequest) -> BenchResult:
    from ops.bench.elastic.bench import bench_elastic  # noqa: PLC0415 - needs torch, which the others do without
    from ops.bench.elastic.plan import ElasticPlan  # noqa: PLC0415

    return bench_elastic(ElasticPlan.quick() if request.quick else ElasticPlan(), say=request.say)


def _environments(request: BenchRequest) -> BenchResult:
    from ops.bench.environments import EnvironmentsSize, bench_environments  # noqa: PLC0415 - needs torch

    size = EnvironmentsSize.quick() if request.quick else EnvironmentsSize()
    return bench_environments(size, engine="torch" if request.engine is None else request.engine, say=request.say)


def _ingest(request: BenchRequest) -> BenchResult:
    return bench_ingest(
        IngestSize.quick() if request.quick else IngestSize(), kafka=request.kafka, state_dir=request.state_dir
    )


def _lora(request: BenchRequest) -> BenchResult:
    from ops.bench.lora import LoraSize, bench_lora  # noqa: PLC0415 - needs torch, which the others do without

    return bench_lora(LoraSize.quick() if request.quick else LoraSize(), say=request.say)


def _metrics(request: BenchRequest) -> BenchResult:
    from ops.bench.metrics import MetricsSize, bench_metrics  # noqa: PLC0415 - needs torch, which the others do without

    size = MetricsSize.quick() if request.quick else MetricsSize()
    return bench_metrics(size, kafka=request.kafka, state_dir=request.state_dir, say=request.say)


def _observe(request: BenchRequest) -> BenchResult:
    from ops.bench.observe.bench import ObserveSize, bench_observe  # noqa: PLC0415 - needs torch

    size = ObserveSize.quick() if request.quick else ObserveSize()
    seconds = None if request.minutes is None else request.minutes * 60
    return bench_observe(size if seconds is None else ObserveSize(watch_s=seconds), say=request.say)


def _rewards(request: BenchRequest) -> BenchResult:
    from ops.bench.rewards.bench import RewardsSize, bench_rewards  # noqa: PLC0415 - needs torch

    return bench_rewards(RewardsSize.quick() if request.quick else RewardsSize(), say=request.say)


def _schedule(request: BenchRequest) -> BenchResult:
    from ops.bench.schedule.bench import ScheduleSize, bench_schedule  # noqa: PLC0415 - needs torch

    return bench_schedule(ScheduleSize.quick() if request.quick else ScheduleSize(), say=request.say)


def _soak(request: BenchRequest) -> BenchResult:
    from ops.bench.soak import SoakSize, bench_soak  # noqa: PLC0415 - needs torch, which the others do without

    size = SoakSize.quick() if request.quick else SoakSize()
    return bench_soak(size if request.minutes is None else SoakSize(minutes=request.minutes), say=request.say)


def _stragglers(request: BenchRequest) -> BenchResult:
    from ops.bench.stragglers.bench import bench_stragglers  # noqa: PLC0415 - needs the stages
    from ops.bench.stragglers.workload import Workload  # noqa: PLC0415

    return bench_stragglers(Workload.quick() if request.quick else Workload(), say=request.say)


def _swap(request: BenchRequest) -> BenchResult:
    from ops.bench.swap import ENGINES, SwapSize, bench_swap  # noqa: PLC0415 - needs torch, which the others do without

    engines = ENGINES if request.engine is None else (request.engine,)
    return bench_swap(SwapSize.quick() if request.quick else SwapSize(), engines=engines)


def _trace(request: BenchRequest) -> BenchResult:
    from ops.bench.observe.traces import TraceSize, bench_trace  # noqa: PLC0415 - needs torch

    return bench_trace(TraceSize.quick() if request.quick else TraceSize(), say=request.say)


def _traffic(request: BenchRequest) -> BenchResult:
    from ops.bench.traffic.bench import bench_traffic  # noqa: PLC0415 - the others need no network of their own
    from ops.bench.traffic.plan import TrafficPlan  # noqa: PLC0415

    return bench_traffic(TrafficPlan.quick() if request.quick else TrafficPlan(), say=request.say)


def _weights(request: BenchRequest) -> BenchResult:
    from ops.bench.weights.bench import bench_weights  # noqa: PLC0415 - needs torch, which the others do without
    from ops.bench.weights.plan import WeightsPlan  # noqa: PLC0415

    return bench_weights(WeightsPlan.quick() if request.quick else WeightsPlan(), say=request.say)


BENCHES: dict[str, Callable[[BenchRequest], BenchResult]] = {
    "admission": _admission,
    "algorithms": _algorithms,
    "codec": _codec,
    "dashboard": _dashboard,
    "deltas": _deltas,
    "elastic": _elastic,
    "environments": _environments,
    "ingest": _ingest,
    "lora": _lora,
    "metrics": _metrics,
    "observe": _observe,
    "rewards": _rewards,
    "schedule": _schedule,
    "soak": _soak,
    "stragglers": _stragglers,
    "swap": _swap,
    "trace": _trace,
    "traffic": _traffic,
    "weights": _weights,
}
