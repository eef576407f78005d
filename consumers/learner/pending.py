"""A step between its training and its transaction, and what is told of it afterwards.

Role: what the loop keeps while the step's weights are encoded beside the next one.
Data in: what the step decided. Data out: gauges and two notices: `step` (training) and `staged` (weights).
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from consumers.learner.alarms import MismatchAlarm
from consumers.learner.batch import Batch
from consumers.learner.checkpoint import LearnerState
from consumers.learner.flow import BatchFlow
from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.publisher import Staged
from consumers.learner.step_stats import StepStats
from pipeline.stage import StageContext
from schemas.reasons import Result


@dataclass(frozen=True, kw_only=True)
class PendingStep:
    """A step that was trained and is not written yet."""

    batch: Batch
    stats: StepStats
    drafts: Sequence[OutcomeDraft]
    state: LearnerState  # what a checkpoint of these weights says, once the step is written


class StepReports:
    """What is told of steps, from the cut to the transaction.

    Args:
        mismatch_limit: of the alarm, in nats.
    """

    def __init__(self, context: StageContext, *, mismatch_limit: float) -> None:
        self._context = context
        self._alarm = MismatchAlarm(limit=mismatch_limit)
        self._flow = BatchFlow(context)
        self._trained_s: dict[int, float] = {}  # by step: when its weights were there
        self._written_s: float | None = None  # when the step before was written

    def cut(self, batch: Batch) -> None:
        """A batch was cut."""
        self._flow.cut(batch)

    def trained(self, batch: Batch) -> None:
        """The optimizer has taken its step."""
        self._trained_s[batch.step] = self._context.clock.monotonic()

    def opened(self) -> None:
        """The first version is out: steps are timed from here."""
        self._written_s = self._context.clock.monotonic()

    def written(self, pending: PendingStep, *, staged: Staged, rewards: Sequence[float]) -> None:
        """The transaction of a step went through.

        Args:
            rewards: of all that had one since the step before: see `pipeline.reward_rule.rewards_seen`.
        """
        metrics, now_s = self._context.metrics, self._context.clock.monotonic()
        metrics.count("steps_done")
        metrics.count("samples_trained", sum(draft.count(Result.TRAINED) for draft in pending.drafts))
        metrics.count("tokens_trained", pending.stats.num_tokens)
        if self._written_s is not None:
            metrics.observe("step_s", now_s - self._written_s)
        self._written_s = now_s
        trained_s = self._trained_s.pop(pending.batch.step, None)
        if trained_s is not None:
            metrics.observe("weight_hop_s", now_s - trained_s, hop="trained_published")
        self._flow.trained(pending.batch)
        report_step(self._context, pending, staged=staged, alarm=self._alarm, rewards=rewards)


def report_step(
    context: StageContext, pending: PendingStep, *, staged: Staged, alarm: MismatchAlarm, rewards: Sequence[float]
) -> None:
    """Say what a step that was written was like.

    Args:
        rewards: of all that had one since the step before: see `pipeline.reward_rule.rewards_seen`.
    """
    stats, step = pending.stats, pending.batch.step
    trained = [member for draft in pending.drafts for member in draft.members if member.result == Result.TRAINED]
    ages = [member.age for member in trained if member.age is not None]
    values: dict[str, float] = {
        "reward_mean": stats.reward_mean,
        "loss": stats.loss,
        "age_mean": sum(ages) / len(ages),
        "age_max": float(max(ages)),
        "logprob_mismatch": stats.mismatch_mean,
        "entropy": stats.entropy,
        "sampler_log_ratio": stats.sampler_log_ratio,
        "sampler_kl": stats.sampler_kl,
        "learning_rate": stats.learning_rate,
        "grad_norm": stats.grad_norm,
        "clipped_share": stats.clipped_share,
    }
    for name, value in values.items():
        context.metrics.gauge(name, value)
    context.events.notice(
        "step",
        details=None,
        step=step,
        num_samples=len(trained),
        num_tokens=stats.num_tokens,
        capped_share=stats.capped_share,
        advantage_size=stats.advantage_size,
        reward_seen_mean=fmean(rewards) if rewards else stats.reward_mean,
        **stats.own,
        **values,
    )
    if alarm.add(stats.mismatch_mean):
        context.events.notice("logprobs_apart", details=None, step=step, **values)
    report_staged(context, staged)


def report_staged(context: StageContext, staged: Staged) -> None:
    """Say how a version was staged."""
    manifest, figures = staged.manifest, staged.figures
    context.events.notice(
        "staged",
        details={"version": str(manifest.version), "encoding": manifest.encoding, "base": str(manifest.base)},
        snapshot_s=figures.snapshot_s,
        encode_s=figures.encode_s,
        new_bytes=figures.num_new_bytes,
        delta_bytes=figures.delta_bytes,
        state_bytes=figures.num_bytes,
        changed_share=figures.changed_share,
    )
