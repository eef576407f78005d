"""The figures of a chaos run: a table per kind of fault, and JSON.

Invariants: percentiles are of the faults that a run got over; a hang is counted, not timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ops.chaos.judge import Verdict
from ops.chaos.vitals import Series

_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Done:
    """One fault, as it went."""

    number: int
    kind: str
    details: str
    step: int  # when it was brought about
    held_s: float
    recovery_s: float
    stall_s: float
    hang: str = ""


@dataclass(kw_only=True)
class ChaosResult:
    """What `rlweave chaos` says in the end."""

    seed: int
    brokers: int
    ranks: int
    planned: int
    done: list[Done] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    ended: str = ""  # why the run ended early; empty: it did not
    verdict: Verdict = field(default_factory=Verdict)
    announced_offsets: int = 0  # that readers told of, each reader by itself
    destroyed_records: int = 0
    unbounded: list[str] = field(default_factory=list)
    series: Sequence[Series] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    wall_s: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the run kept every promise, and every fault was brought about."""
        through = len(self.done) == self.planned and not self.ended
        return through and not self.verdict.broken and not self.hangs and not self.unbounded


def as_json(result: ChaosResult) -> dict[str, object]:
    """For machines."""
    verdict = result.verdict
    return {
        "seed": result.seed,
        "brokers": result.brokers,
        "ranks": result.ranks,
        "faults": len(result.done),
        "planned": result.planned,
        "lost": len(verdict.lost),
        "announced_losses": len(verdict.announced),
        "trained_twice": len(verdict.twice),
        "unaccounted": len(verdict.unaccounted),
        "hangs": len(result.hangs),
        "ended_early": result.ended,
        "recovery_p50_s": percentile([one.recovery_s for one in result.done if not one.hang], 0.5),
        "recovery_p95_s": percentile([one.recovery_s for one in result.done if not one.hang], 0.95),
        "kinds": {kind: _figures(ones) for kind, ones in _by_kind(result).items()},
        "not_run": dict(result.not_run),
        "announced_offsets": result.announced_offsets,
        "destroyed_records": result.destroyed_records,
        "ids_trained": verdict.trained,
        "ids_audited": verdict.audited,
        "undecodable": verdict.undecodable,
        "steps": result.steps,
        "wall_s": round(result.wall_s, 1),
        "unbounded": result.unbounded,
        "rss_mib": {name: round(value, 1) for name, value in _highest(result.series).items()},
        "findings": _findings(result),
    }


def lines_of(result: ChaosResult) -> list[str]:
    """For people."""
    lines = [f"{'kind of fault':<23} count  recovery p50      p95  stall p50      p95  hangs"]
    for kind, ones in _by_kind(result).items():
        figures = _figures(ones)
        lines.append(
            f"{kind:<23} {len(ones):>5} {_seconds(figures['recovery_p50_s']):>13} "
            f"{_seconds(figures['recovery_p95_s']):>8} {_seconds(figures['stall_p50_s']):>10} "
            f"{_seconds(figures['stall_p95_s']):>8} {figures['hangs']:>6}"
        )
    lines += [f"not run: {kind}: {why}" for kind, why in result.not_run.items()]
    verdict = result.verdict
    lines.append(
        f"{len(result.done)} of {result.planned} faults in {result.wall_s:.0f} s and {result.steps} steps, seed "
        f"{result.seed}, {result.brokers} broker(s), {result.ranks} learner rank(s)"
    )
    lines.append(
        f"ids: {verdict.trained} trained, {verdict.audited} in one audit; lost {len(verdict.lost)}, announced losses "
        f"{len(verdict.announced)}, trained twice {len(verdict.twice)}, unaccounted {len(verdict.unaccounted)}, hangs "
        f"{len(result.hangs)}"
    )
    highest = ", ".join(f"{name} {value:.0f}" for name, value in _highest(result.series).items())
    lines.append(f"most memory in MiB: {highest}")
    lines += [f"  {text}" for text in _findings(result)[:_SHOWN]]
    lines.append("every promise was kept" if result.is_good else "a promise was broken, or not all was done")
    return lines


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of the values does not exceed; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def _figures(ones: Sequence[Done]) -> dict[str, float | int | None]:
    recovered = [one for one in ones if not one.hang]
    return {
        "count": len(ones),
        "recovery_p50_s": percentile([one.recovery_s for one in recovered], 0.5),
        "recovery_p95_s": percentile([one.recovery_s for one in recovered], 0.95),
        "stall_p50_s": percentile([one.stall_s for one in recovered], 0.5),
        "stall_p95_s": percentile([one.stall_s for one in recovered], 0.95),
        "hangs": len(ones) - len(recovered),
    }


def _by_kind(result: ChaosResult) -> dict[str, list[Done]]:
    kinds: dict[str, list[Done]] = {}
    for one in sorted(result.done, key=lambda each: each.kind):
        kinds.setdefault(one.kind, []).append(one)
    return kinds


def _highest(series: Sequence[Series]) -> dict[str, float]:
    """Most memory per program over all its lives."""
    highest: dict[str, float] = {}
    for each in series:
        highest[each.name] = max(highest.get(each.name, 0.0), *each.rss_mib)
    return dict(sorted(highest.items()))


def _findings(result: ChaosResult) -> list[str]:
    verdict = result.verdict
    found = [f"ended early: {result.ended}"] if result.ended else []
    found += [f"hang: {text}" for text in result.hangs]
    found += [f"lost: {text}" for text in sorted(verdict.lost)]
    found += [f"trained twice: {text}" for text in sorted(verdict.twice)]
    found += [f"unaccounted: {text}" for text in sorted(verdict.unaccounted)]
    return found + [f"unbounded: {text}" for text in result.unbounded]


def _seconds(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
