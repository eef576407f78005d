"""The way of samples through a learner rank, in figures: scored, cut, trained; their ages and lengths.

Role: called by the loop, and by the ranks that follow, for the share of a batch that they hold.
Data in: batches. Data out: metrics.
Invariants: from the cut on it is one clock; what lies between processes is Unix time, clamped at 0 and counted as a
skew (promise 13).
Failure: none.
"""

from __future__ import annotations

from consumers.learner.batch import Batch
from pipeline.flow import tell_ages
from pipeline.stage import StageContext

_TOKEN_BYTES = 4  # of a packed token


class BatchFlow:
    """See the module."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._cut_s: dict[int, float] = {}  # by step, of batches that are not trained yet

    def cut(self, batch: Batch) -> None:
        """A batch was cut."""
        metrics, clock = self._context.metrics, self._context.clock
        self._cut_s[batch.step] = clock.monotonic()
        now_ms = clock.unix_ms()
        members = list(batch.members)
        scored = [now_ms - member.scored_unix_ms for member in members if member.scored_unix_ms]
        metrics.observe_all("sample_hop_ms", scored, hop="scored_cut")
        ages = [member.age for member in members]
        metrics.observe_all("age_at_cut_versions", ages)
        tell_ages(metrics, ages, kind="at_cut")

    def trained(self, batch: Batch) -> None:
        """Its step is done; on rank 0: written."""
        metrics, clock = self._context.metrics, self._context.clock
        samples = [member.sample for member in batch.members]
        cut_s = self._cut_s.pop(batch.step, None)
        if cut_s is not None:
            spent_ms = (clock.monotonic() - cut_s) * 1000
            metrics.observe_all("sample_hop_ms", [spent_ms] * len(samples), hop="cut_trained")
        now_ms = clock.unix_ms()
        metrics.observe_all("sample_hop_ms", [now_ms - each.finished_unix_ms for each in samples], hop="made_trained")
        lengths = [len(each.completion_tokens) // _TOKEN_BYTES for each in samples]
        metrics.observe_all("trained_length_tokens", lengths)
