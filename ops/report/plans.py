"""Which figures a report has, in the order of the page.

Data out: `PLANS`. Matplotlib itself is imported by `ops.report.figures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.report import plots, plots_steps
from ops.report.collect import RunFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One figure, before it is drawn."""

    section: str  # heading of the page under which it stands
    name: str
    title: str
    description: str
    draw: Callable[[Axes, RunFacts], None]


PLANS = (
    Plan(
        section="Learning",
        name="reward",
        title="Reward",
        description="Mean reward of all scored samples by the step of the version that made them; the band is one "
        "standard deviation of single samples to either side, within the range seen.",
        draw=plots.reward,
    ),
    Plan(
        section="Learning",
        name="evaluation",
        title="Evaluation",
        description="Mean score of published versions on each evaluation set, along the surviving history.",
        draw=plots.evaluation,
    ),
    Plan(
        section="Learning",
        name="loss",
        title="Loss",
        description="Policy loss of each optimizer step of the surviving history.",
        draw=plots_steps.loss,
    ),
    Plan(
        section="Learning",
        name="gradient",
        title="Gradient",
        description="Norm of the gradient of each step, before it is clipped.",
        draw=plots_steps.gradient,
    ),
    Plan(
        section="Learning",
        name="entropy",
        title="Entropy",
        description="Mean entropy of the policy on the tokens that were trained, by step. Towards 0: it collapses "
        "onto one answer.",
        draw=plots_steps.entropy,
    ),
    Plan(
        section="Learning",
        name="divergence",
        title="Sampler and trainer",
        description="How far the policy in training is from the one that made the samples: divergence, mean absolute"
        " difference of log-probabilities, and the share of tokens whose ratio was clipped.",
        draw=plots_steps.divergence,
    ),
    Plan(
        section="Learning",
        name="lengths",
        title="Length",
        description="Mean number of tokens of a completion by the step of the version that made it; the band is one "
        "standard deviation to either side, within the range seen.",
        draw=plots_steps.lengths,
    ),
    Plan(
        section="Data",
        name="ages",
        title="Age of trained samples",
        description="Share of the trained samples by age: learner step at the cut minus birth step.",
        draw=plots.ages,
    ),
    Plan(
        section="Data",
        name="age-by-step",
        title="Age by step",
        description="Mean and greatest age of the samples of each batch, against the bound.",
        draw=plots_steps.age_by_step,
    ),
    Plan(
        section="Data",
        name="outcomes",
        title="Outcomes",
        description="What became of the sample ids whose outcome was written with each step.",
        draw=plots_steps.outcomes,
    ),
    Plan(
        section="Data",
        name="flow",
        title="Open and ready groups",
        description="Groups without an outcome and groups ready to be trained, against the credit, over time.",
        draw=plots.flow,
    ),
    Plan(
        section="Data",
        name="lag",
        title="Lag",
        description="Readable records that consumer groups had not committed, summed over groups, over time.",
        draw=plots.lag,
    ),
    Plan(
        section="Time",
        name="phases",
        title="Where time went",
        description="Share of the time of each stage spent working, waiting, moving weights, or in other phases.",
        draw=plots.phases,
    ),
    Plan(
        section="Time",
        name="waits",
        title="Waits over time",
        description="Share of the time in which the processes of each stage waited for another stage, over time.",
        draw=plots.waits,
    ),
    Plan(
        section="Time",
        name="step-time",
        title="Time per step",
        description="Time from one step to the next as the learner told them; spans of a minute and more, in which "
        "the run was stopped, are left out.",
        draw=plots_steps.step_time,
    ),
    Plan(
        section="Time",
        name="tokens",
        title="Generation",
        description="Completion tokens made per second by all rollout producers, over time.",
        draw=plots.tokens,
    ),
    Plan(
        section="Weights",
        name="version-bytes",
        title="Bytes of a version",
        description="Bytes that had to be written for each version, as a delta or as an anchor, against those of the"
        " whole state.",
        draw=plots_steps.version_bytes,
    ),
    Plan(
        section="Weights",
        name="version-time",
        title="Optimizer to engine",
        description="Time from the staging of a version to the first and to the last engine that loaded it.",
        draw=plots_steps.version_time,
    ),
)
