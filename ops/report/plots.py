"""What each figure of a run shows, drawn on given axes.

Data in: what was collected. Data out: marks on matplotlib axes; matplotlib itself is imported by `ops.report.figures`.
Invariants: where there is nothing to show, the figure says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.report.activity import SHOWN_BINS
from ops.report.collect import RunFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Stand-ins that become CSS variables, see paper.mplstyle.
FOREGROUND, MUTED, GRID = "#010101", "#020202", "#030303"
COLOURS = ("#040401", "#040402", "#040403", "#040404", "#040405", "#040406")
_KINDS = ("work", "waiting", "weights", "other")
_WEIGHT_PHASES = ("swapping", "staging_weights", "publishing")
_OTHER_PHASES = ("starting", "cloning", "checkpointing", "finished", "watching", "serving", "supervising", "fetching")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One figure, before it is drawn."""

    name: str
    title: str
    description: str
    draw: Callable[[Axes, RunFacts], None]


def phase_kind(phase: str) -> str:
    """What a phase is to a reader: work, waiting, weights or other."""
    if phase.startswith(("waiting", "breaker", "parked")):
        return "waiting"
    if phase in _WEIGHT_PHASES:
        return "weights"
    return "other" if phase in _OTHER_PHASES else "work"


def _reward(axes: Axes, facts: RunFacts) -> None:
    by_step = facts.scores.by_step
    steps = sorted(by_step)
    if not steps:
        return _nothing(axes, "no scored samples")
    means = [by_step[step].mean for step in steps]
    bands = [by_step[step].band for step in steps]
    low, high = [band[0] for band in bands], [band[1] for band in bands]
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(steps, means, color=COLOURS[0], marker="o" if len(steps) < 80 else None, markersize=2.5)
    axes.set(xlabel="birth version (step)", ylabel="reward")
    return None


def _ages(axes: Axes, facts: RunFacts) -> None:
    ages = facts.accounts.ages
    if not ages:
        return _nothing(axes, "nothing was trained")
    total = ages.total()
    positions = list(range(max(ages) + 1))
    shares = [ages[age] / total for age in positions]
    bars = axes.bar(positions, shares, color=COLOURS[0], width=0.7)
    axes.bar_label(bars, labels=[f"{share:.0%}" if share else "" for share in shares], fontsize=9, color=FOREGROUND)
    axes.set(xlabel="age when trained (versions)", ylabel="share of trained samples", ylim=(0, max(shares) * 1.15))
    axes.set_xticks(positions)
    axes.grid(visible=False, axis="x")
    return None


def _flow(axes: Axes, facts: RunFacts) -> None:
    gauges = facts.activity.gauges
    labels = {"open_groups": "open groups", "ready_groups": "ready groups", "credit_groups": "credit (groups)"}
    shown = [name for name in labels if name in gauges]
    if not shown:
        return _nothing(axes, "no heartbeats")
    for name in shown:
        index = list(labels).index(name)
        times, values = gauges[name].means()
        style = "--" if name == "credit_groups" else "-"
        axes.plot(times, values, style, color=COLOURS[index], label=labels[name], linewidth=1.5)
    axes.set(xlabel="time (s)", ylabel="groups", ylim=(0, None))
    _legend(axes)
    return None


def _lag(axes: Axes, facts: RunFacts) -> None:
    if "lag_records" not in facts.activity.gauges:
        return _nothing(axes, "no lag was measured")
    times, values = facts.activity.gauges["lag_records"].means()
    axes.plot(times, values, color=COLOURS[0], linewidth=1.5)
    axes.set(xlabel="time (s)", ylabel="records", ylim=(0, None))
    return None


def _tokens(axes: Axes, facts: RunFacts) -> None:
    if not any(facts.activity.tokens.sums):
        return _nothing(axes, "no tokens were counted")
    times, rates = facts.activity.tokens.coarse(SHOWN_BINS).rates()
    axes.plot(times, rates, color=COLOURS[0], linewidth=1.5)
    axes.set(xlabel="time (s)", ylabel="tokens per second", ylim=(0, None))
    return None


def _phases(axes: Axes, facts: RunFacts) -> None:
    shares = facts.activity.shares()
    if not shares:
        return _nothing(axes, "no phases")
    stages = list(reversed(shares))
    for kind in _KINDS:
        lefts = [_share_of(shares[stage], _KINDS[: _KINDS.index(kind)]) for stage in stages]
        widths = [_share_of(shares[stage], (kind,)) for stage in stages]
        axes.barh(stages, widths, left=lefts, color=COLOURS[_KINDS.index(kind)], label=kind, height=0.62)
    axes.set(xlabel="share of time", xlim=(0, 1))
    axes.grid(visible=False, axis="y")
    _legend(axes)
    return None


def _waits(axes: Axes, facts: RunFacts) -> None:
    activity = facts.activity
    stages = [stage for stage in activity.waiting if "/" not in stage and sum(activity.waiting[stage].sums) > 0]
    if not stages:
        return _nothing(axes, "nobody waited")
    for index, stage in enumerate(sorted(stages)):
        times, shares = activity.waiting_share(stage)
        axes.plot(times, shares, color=COLOURS[index % len(COLOURS)], label=stage, linewidth=1.3)
    axes.set(xlabel="time (s)", ylabel="share of time waiting", ylim=(-0.02, 1.02))
    _legend(axes)
    return None


def _loss(axes: Axes, facts: RunFacts) -> None:
    steps = sorted(step for step, gauges in facts.activity.steps.items() if "loss" in gauges)
    if not steps:
        return _nothing(axes, "no steps")
    axes.plot(steps, [facts.activity.steps[step]["loss"] for step in steps], color=COLOURS[0], linewidth=1.5)
    axes.set(xlabel="step", ylabel="policy loss")
    return None


def _evaluation(axes: Axes, facts: RunFacts) -> None:
    curves = [curve for curve in facts.evaluations if curve.values[0]]
    if not curves:
        return _nothing(axes, "no evaluation set")
    for index, curve in enumerate(curves):
        steps, means = curve.values
        axes.plot(steps, means, color=COLOURS[index % len(COLOURS)], marker="o", markersize=3, label=curve.name)
    axes.set(xlabel="version evaluated (step)", ylabel="mean score")
    _legend(axes)
    return None


def _share_of(phases: dict[str, float], kinds: Sequence[str]) -> float:
    return sum(share for phase, share in phases.items() if phase_kind(phase) in kinds)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, handlelength=1.4, columnspacing=1.2)


def _nothing(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=MUTED)
    axes.set_axis_off()


PLANS = (
    Plan(
        name="reward",
        title="Reward",
        description="Mean reward of all scored samples by the step of the version that made them; the band is one "
        "standard deviation of single samples to either side, within the range seen.",
        draw=_reward,
    ),
    Plan(
        name="evaluation",
        title="Evaluation",
        description="Mean score of published versions on each evaluation set, along the surviving history.",
        draw=_evaluation,
    ),
    Plan(
        name="ages",
        title="Age of trained samples",
        description="Share of the trained samples by age: learner step at the cut minus birth step.",
        draw=_ages,
    ),
    Plan(
        name="flow",
        title="Open and ready groups",
        description="Groups without an outcome and groups ready to be trained, against the credit, over time.",
        draw=_flow,
    ),
    Plan(
        name="lag",
        title="Lag",
        description="Readable records that consumer groups had not committed, summed over groups, over time.",
        draw=_lag,
    ),
    Plan(
        name="phases",
        title="Where time went",
        description="Share of the time of each stage spent working, waiting, moving weights, or in other phases.",
        draw=_phases,
    ),
    Plan(
        name="waits",
        title="Waits over time",
        description="Share of the time in which the processes of each stage waited for another stage, over time.",
        draw=_waits,
    ),
    Plan(
        name="tokens",
        title="Generation",
        description="Completion tokens made per second by all rollout producers, over time.",
        draw=_tokens,
    ),
    Plan(
        name="loss",
        title="Loss",
        description="Policy loss of each optimizer step of the surviving history.",
        draw=_loss,
    ),
)
