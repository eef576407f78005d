"""The table and the numbers of the benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ops.bench.result import Number, Table
from ops.bench.traffic.measure import (
    ALONE,
    KINDS,
    MANAGED,
    SLOW_ALONE,
    SLOW_KINDS,
    SLOW_MANAGED,
    UNMANAGED,
    Measured,
    SetResult,
)
from ops.bench.traffic.plan import TrafficPlan

_WHAT = {
    ALONE: "alone",
    UNMANAGED: "beside an upload, classes off",
    MANAGED: "beside an upload, classes on",
    SLOW_ALONE: "to slow engines, alone",
    SLOW_MANAGED: "to slow engines, beside an upload, classes on",
}
_WANTED = {MANAGED: "at most 1.1", SLOW_MANAGED: "at most 1.1"}
_ALONE = {SLOW_ALONE: SLOW_ALONE, SLOW_MANAGED: SLOW_ALONE}  # what a kind is compared to; else ALONE
_HEADERS = ("publish", "seconds", "of", "x alone", "wanted", "upload MB/s before", "during", "processors")


def values(measured: Measured, *, plan: TrafficPlan) -> dict[str, Number]:
    """Flat numbers."""
    managed = measured.sets[MANAGED]
    upload_s = [each.upload_s for each in managed if each.upload_s is not None]
    found: dict[str, Number] = {}
    for kind in _kinds(measured):
        seconds = [each.seconds for each in measured.sets[kind]]
        found[f"publish_{kind}_s"] = round(statistics.median(seconds), 4)
        found[f"publish_{kind}_min_s"], found[f"publish_{kind}_max_s"] = round(min(seconds), 4), round(max(seconds), 4)
        if kind not in (ALONE, SLOW_ALONE):
            found[f"publish_{kind}_over_alone"] = round(_over_alone(measured, kind), 4)
            found[f"upload_during_{kind}_bytes_s"] = round(_median(measured, kind, of=_during))
    return {
        **found,
        "upload_alone_bytes_s": round(plan.checkpoint_bytes / measured.upload_alone_s),
        "upload_managed_bytes_s": round(plan.checkpoint_bytes / statistics.median(upload_s)),
        "upload_held_up_s": round(statistics.median(each.held_up_s for each in managed), 4),
        "link_bytes_s": round(plan.rate_mbit * 1e6 / 8),
        "size_bytes": plan.size_bytes,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "part_bytes": plan.part_bytes,
        "num_parallel": plan.parallel,
        "num_engines": plan.num_engines,
        "cpu_busy_max": round(max(each.cpu_busy for sets in measured.sets.values() for each in sets), 4),
    }


def table(measured: Measured) -> Table:
    """One row a kind."""
    return Table(
        title="A version to all engines, beside a checkpoint upload on the learner's link",
        headers=_HEADERS,
        rows=tuple(_row(kind, measured=measured) for kind in _kinds(measured)),
    )


def notes(measured: Measured, *, plan: TrafficPlan) -> tuple[str, ...]:
    """What the figures are of."""
    found = values(measured, plan=plan)
    alone, managed = found["upload_alone_bytes_s"] or 0, found["upload_managed_bytes_s"] or 0
    return (
        f"1 source and {plan.num_engines} engines, {plan.size_bytes / 2**20:g} MiB in chunks of "
        f"{plan.chunk_bytes / 2**10:g} KiB; a checkpoint of {plan.checkpoint_bytes / 2**20:g} MiB to a store (FTP) "
        f"on a host of its own, {plan.parallel} parts of {plan.part_bytes / 2**10:g} KiB under way at a time; each "
        f"link {plan.rate_mbit:g} Mbit/s both ways.",
        f"The whole upload: {alone / 1e6:.1f} MB/s alone, {managed / 1e6:.1f} MB/s with a publish in its middle, for "
        f"which it stood back {found['upload_held_up_s']} s. Medians of {plan.num_repeats}, in turns; lowest and "
        "highest in brackets.",
        f"Slow engines take {plan.slow_share:.0%} of the link each at most; {plan.num_slow_repeats} such sets each.",
    )


def _kinds(measured: Measured) -> tuple[str, ...]:
    """Those that were measured."""
    return tuple(kind for kind in (*KINDS, *SLOW_KINDS) if measured.sets[kind])


def _row(kind: str, *, measured: Measured) -> tuple[str, ...]:
    sets = measured.sets[kind]
    seconds = [each.seconds for each in sets]
    has_upload = kind not in (ALONE, SLOW_ALONE)
    return (
        _WHAT[kind],
        f"{statistics.median(seconds):.2f}",
        f"[{min(seconds):.2f}, {max(seconds):.2f}]",
        f"{_over_alone(measured, kind):.2f}",
        _WANTED.get(kind, ""),
        f"{_median(measured, kind, of=_before) / 1e6:.1f}" if has_upload else "",
        f"{_median(measured, kind, of=_during) / 1e6:.1f}" if has_upload else "",
        f"{max(each.cpu_busy for each in sets):.0%}",
    )


def _over_alone(measured: Measured, kind: str) -> float:
    return _median(measured, kind) / _median(measured, _ALONE.get(kind, ALONE))


def _seconds(result: SetResult) -> float:
    return result.seconds


def _before(result: SetResult) -> float:
    return result.upload_before_bytes_s


def _during(result: SetResult) -> float:
    return result.upload_during_bytes_s


def _median(measured: Measured, kind: str, *, of: Callable[[SetResult], float] = _seconds) -> float:
    return statistics.median(of(each) for each in measured.sets[kind])
