"""Figures by optimizer step or version: what training did, and how versions travelled.

Data in: what was collected. Data out: marks on matplotlib axes.
Invariants: steps of the surviving history only; where there is nothing to show, the figure says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from ops.report.collect import RunFacts
from ops.report.journal import VersionTrip
from ops.report.marks import COLOURS, MUTED, legend, line, nothing
from schemas.records import Version

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_REASONS = 4  # shown apart; the rest together
_PAUSE_S = 60.0  # between two steps: the run was stopped, which is no step's time
_MB = 1e6


def loss(axes: Axes, facts: RunFacts) -> None:
    """Policy loss."""
    _gauge(axes, facts, name="loss", label="policy loss")


def gradient(axes: Axes, facts: RunFacts) -> None:
    """Norm of the gradient before clipping."""
    _gauge(axes, facts, name="grad_norm", label="gradient norm")


def entropy(axes: Axes, facts: RunFacts) -> None:
    """Entropy of the policy."""
    _gauge(axes, facts, name="entropy", label="entropy (nats per token)")


def divergence(axes: Axes, facts: RunFacts) -> None:
    """Sampler against trainer."""
    shown = {"sampler_kl": "KL", "logprob_mismatch": "mean difference", "clipped_share": "clipped share"}
    drawn = [_steps_of(facts, name) for name in shown]
    if not any(steps for steps, _ in drawn):
        return nothing(axes, "no steps")
    for index, (label, (steps, values)) in enumerate(zip(shown.values(), drawn, strict=True)):
        if steps:
            line(axes, steps, values=values, colour=COLOURS[index], label=label)
    axes.set(xlabel="step", ylabel="nats per token; share")
    legend(axes)
    return None


def age_by_step(axes: Axes, facts: RunFacts) -> None:
    """Mean and greatest age of each batch, and the bound."""
    (steps, means), (_, most) = _steps_of(facts, "age_mean"), _steps_of(facts, "age_max")
    if not steps:
        return nothing(axes, "no steps")
    line(axes, steps, values=means, colour=COLOURS[0], label="mean")
    if len(most) == len(steps):
        line(axes, steps, values=most, colour=COLOURS[1], label="greatest")
    if facts.max_age is not None:
        axes.axhline(facts.max_age, color=MUTED, linestyle="--", linewidth=1, label="bound")
    axes.set(xlabel="step", ylabel="age when trained (versions)", ylim=(0, None))
    legend(axes)
    return None


def lengths(axes: Axes, facts: RunFacts) -> None:
    """Completion tokens by birth version."""
    by_step = facts.scores.tokens_by_step
    steps = sorted(by_step)
    if not steps:
        return nothing(axes, "no samples")
    bands = [by_step[step].band for step in steps]
    axes.fill_between(
        steps, [low for low, _ in bands], [high for _, high in bands], color=COLOURS[0], alpha=0.18, linewidth=0
    )
    line(axes, steps, values=[by_step[step].mean for step in steps], colour=COLOURS[0])
    axes.set(xlabel="birth version (step)", ylabel="tokens per completion", ylim=(0, None))
    return None


def outcomes(axes: Axes, facts: RunFacts) -> None:
    """What became of the ids whose outcome came with each step."""
    by_step = facts.accounts.by_step
    steps = sorted(by_step)
    if not steps:
        return nothing(axes, "no outcomes")
    totals = {word: sum(words[word] for words in by_step.values()) for words in by_step.values() for word in words}
    reasons = sorted((word for word in totals if word != "trained"), key=lambda word: -totals[word])
    shown = ["trained", *reasons[:_MOST_REASONS]]
    rows = [[by_step[step][word] for step in steps] for word in shown]
    if reasons[_MOST_REASONS:]:
        shown.append("other reasons")
        rows.append([sum(by_step[step][word] for word in reasons[_MOST_REASONS:]) for step in steps])
    axes.stackplot(steps, rows, labels=shown, colors=COLOURS[: len(shown)], linewidth=0)
    axes.set(xlabel="step that closed them", ylabel="ids", ylim=(0, None))
    legend(axes, columns=3)
    return None


def step_time(axes: Axes, facts: RunFacts) -> None:
    """Time from one step to the next."""
    told = facts.activity.step_unix_ms
    steps = sorted(told)
    spans = [(after, (told[after] - told[before]) / 1000) for before, after in pairwise(steps) if after == before + 1]
    spans = [(step, span_s) for step, span_s in spans if 0 <= span_s < _PAUSE_S]
    if not spans:
        return nothing(axes, "no two steps")
    axes.plot([step for step, _ in spans], [span_s for _, span_s in spans], ".", color=COLOURS[0], markersize=4)
    axes.set(xlabel="step", ylabel="time since the step before (s)", ylim=(0, None))
    return None


def version_bytes(axes: Axes, facts: RunFacts) -> None:
    """What a version weighs on the wire."""
    trips = list(_trips(facts))
    if not trips:
        return nothing(axes, "no version was staged")
    steps = [step for step, _ in trips]
    axes.plot(steps, [trip.state_bytes / _MB for _, trip in trips], "--", color=COLOURS[3], label="whole state")
    axes.plot(
        steps, [trip.new_bytes / _MB for _, trip in trips], ".", color=COLOURS[0], markersize=4, label="new for it"
    )
    axes.set(xlabel="version (step)", ylabel="MB", ylim=(0, None))
    legend(axes)
    return None


def version_time(axes: Axes, facts: RunFacts) -> None:
    """From the optimizer to the engines."""
    served = [(step, trip.first_served_s, trip.last_served_s) for step, trip in _trips(facts)]
    spans = [(step, first, last) for step, first, last in served if first is not None and last is not None]
    if not spans:
        return nothing(axes, "no engine loaded a version")
    steps = [step for step, _, _ in spans]
    axes.plot(steps, [first for _, first, _ in spans], color=COLOURS[0], label="first engine", linewidth=1.3)
    axes.plot(steps, [last for _, _, last in spans], color=COLOURS[1], label="last engine", linewidth=1.3)
    axes.set(xlabel="version (step)", ylabel="staged to served (s)", ylim=(0, None))
    legend(axes)
    return None


def _gauge(axes: Axes, facts: RunFacts, *, name: str, label: str) -> None:
    steps, values = _steps_of(facts, name)
    if not steps:
        return nothing(axes, "no steps")
    line(axes, steps, values=values, colour=COLOURS[0])
    axes.set(xlabel="step", ylabel=label)
    return None


def _steps_of(facts: RunFacts, name: str) -> tuple[list[int], list[float]]:
    steps = sorted(step for step, gauges in facts.activity.steps.items() if name in gauges)
    return steps, [facts.activity.steps[step][name] for step in steps]


def _trips(facts: RunFacts) -> Iterator[tuple[int, VersionTrip]]:
    """Versions of the surviving history, in order of their steps."""
    found: list[tuple[Version, VersionTrip]] = [
        (version, trip) for text, trip in facts.journal.trips.items() if (version := _version(text)) is not None
    ]
    for version, trip in sorted(found, key=lambda each: (each[0].step, each[0].lineage)):
        if facts.view.lineages.survives(version.lineage, version.step):
            yield version.step, trip


def _version(text: str) -> Version | None:
    lineage, _, step = text.partition(".")
    if not (lineage.isdecimal() and step.isdecimal()):
        return None
    return Version(lineage=int(lineage), step=int(step))
