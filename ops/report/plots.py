"""What each figure of a run shows, drawn on given axes.

Data in: what was collected. Data out: marks on matplotlib axes; matplotlib itself is imported by `ops.report.figures`.
Invariants: where there is nothing to show, the figure says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ops.live.process import ORDER
from ops.report.collect import RunFacts
from ops.report.marks import COLOURS, FOREGROUND, dashes, legend, line, nothing, with_gaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_AGES = 40  # that have a bar of their own
_KINDS = ("work", "waiting", "weights", "other")
_WEIGHT_PHASES = ("swapping", "staging_weights", "publishing")
_OTHER_PHASES = ("starting", "cloning", "checkpointing", "finished", "watching", "serving", "supervising", "fetching")


def phase_kind(phase: str) -> str:
    """What a phase is to a reader: work, waiting, weights or other."""
    if phase.startswith(("waiting", "breaker", "parked")):
        return "waiting"
    if phase in _WEIGHT_PHASES:
        return "weights"
    return "other" if phase in _OTHER_PHASES else "work"


def reward(axes: Axes, facts: RunFacts) -> None:
    """Mean reward by birth version."""
    by_step = facts.scores.by_step
    steps = sorted(by_step)
    if not steps:
        return nothing(axes, "no scored samples")
    means = [by_step[step].mean for step in steps]
    bands = [by_step[step].band for step in steps]
    low, high = [band[0] for band in bands], [band[1] for band in bands]
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    line(axes, steps, values=means, colour=COLOURS[0])
    axes.set(xlabel="birth version (step)", ylabel="reward")
    return None


def ages(axes: Axes, facts: RunFacts) -> None:
    """Ages that were trained."""
    ages = facts.accounts.ages
    if not ages:
        return nothing(axes, "nothing was trained")
    total = ages.total()
    positions = list(range(min(max(0, *ages), MOST_AGES) + 1))
    shares = [ages[age] / total for age in positions]
    older = sum(num for age, num in ages.items() if age > MOST_AGES)
    shares[-1] += older / total
    bars = axes.bar(positions, shares, color=COLOURS[0], width=0.7)
    axes.bar_label(bars, labels=[f"{share:.0%}" if share else "" for share in shares], fontsize=9, color=FOREGROUND)
    axes.set(xlabel="age when trained (versions)", ylabel="share of trained samples", ylim=(0, max(shares) * 1.15))
    axes.set_xticks(positions, [*map(str, positions[:-1]), f"{positions[-1]}{'+' if older else ''}"])
    axes.grid(visible=False, axis="x")
    return None


def flow(axes: Axes, facts: RunFacts) -> None:
    """Open and ready groups over time."""
    labels = {"open_groups": "open groups", "ready_groups": "ready groups", "credit_groups": "credit (groups)"}
    shown = [name for name in labels if name in facts.series]
    if not shown:
        return nothing(axes, "no heartbeats")
    for name in shown:
        index = list(labels).index(name)
        times, values = _curve(facts, name)
        axes.plot(times, values, color=COLOURS[index], linestyle=dashes(index), label=labels[name], linewidth=1.5)
    axes.set(xlabel="time (s)", ylabel="groups", ylim=(0, None))
    legend(axes)
    return None


def lag(axes: Axes, facts: RunFacts) -> None:
    """Lag over time."""
    times, values = _curve(facts, "lag_records")
    if not times:
        return nothing(axes, "no lag was measured")
    axes.plot(times, values, color=COLOURS[0], linewidth=1.5)
    axes.set(xlabel="time (s)", ylabel="records", ylim=(0, None))
    return None


def tokens(axes: Axes, facts: RunFacts) -> None:
    """Tokens per second over time."""
    times, rates = _curve(facts, "tokens_per_s")
    if not any(each > 0 for each in rates):
        return nothing(axes, "no tokens were counted")
    axes.plot(times, rates, color=COLOURS[0], linewidth=1.5)
    axes.set(xlabel="time (s)", ylabel="tokens per second", ylim=(0, None))
    return None


def phases(axes: Axes, facts: RunFacts) -> None:
    """Shares of time by kind of phase."""
    shares = facts.activity.shares()
    if not shares:
        return nothing(axes, "no phases")
    stages = list(reversed(shares))
    for kind in _KINDS:
        lefts = [_share_of(shares[stage], _KINDS[: _KINDS.index(kind)]) for stage in stages]
        widths = [_share_of(shares[stage], (kind,)) for stage in stages]
        axes.barh(stages, widths, left=lefts, color=COLOURS[_KINDS.index(kind)], label=kind, height=0.62)
    axes.set(xlabel="share of time", xlim=(0, 1))
    axes.grid(visible=False, axis="y")
    legend(axes)
    return None


def waits(axes: Axes, facts: RunFacts) -> None:
    """Shares of waiting over time."""
    curves = {stage: _curve(facts, f"waiting_share{{stage={stage}}}") for stage in sorted(ORDER)}
    waited = {stage: curve for stage, curve in curves.items() if any(share > 0 for share in curve[1])}
    if not waited:
        return nothing(axes, "nobody waited")
    for index, (stage, (times, shares)) in enumerate(waited.items()):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(times, shares, color=colour, linestyle=dashes(index), label=stage, linewidth=1.3)
    axes.set(xlabel="time (s)", ylabel="share of time waiting", ylim=(-0.02, 1.02))
    legend(axes)
    return None


def evaluation(axes: Axes, facts: RunFacts) -> None:
    """Scores of evaluation sets by version."""
    curves = [curve for curve in facts.evaluations if curve.values[0]]
    if not curves:
        return nothing(axes, "no evaluation set")
    for index, curve in enumerate(curves):
        steps, means = curve.values
        axes.plot(steps, means, color=COLOURS[index % len(COLOURS)], marker="o", markersize=3, label=curve.name)
    axes.set(xlabel="version evaluated (step)", ylabel="mean score")
    legend(axes)
    return None


def _curve(facts: RunFacts, name: str) -> tuple[list[float], list[float]]:
    """(seconds since the first event, values) of a series, with holes; empty: there is none."""
    series, began_ms = facts.series.get(name), facts.activity.first_unix_ms
    if series is None or began_ms is None:
        return [], []
    width_s, first_s = series.bin_ms / 1000, max(0.0, (series.began_ms - began_ms) / 1000)
    filled = [(first_s + (index + 0.5) * width_s, each) for index, each in enumerate(series.values) if each is not None]
    return with_gaps([at_s for at_s, _ in filled], [value for _, value in filled], width_s=width_s)


def _share_of(phases: dict[str, float], kinds: Sequence[str]) -> float:
    return sum(share for phase, share in phases.items() if phase_kind(phase) in kinds)
