"""What one engine does, in figures: requests, tokens, lengths, ages of what is in it.

Role: the counting of a rollout producer, apart from what it does.
Data in: requests as they are submitted, generations as they come back, samples as they are written. Data out: metrics.
Invariants: times of one process are its own clock's; those between processes are Unix time, clamp at 0 and count as a
skew (promise 13). What the engine loses is forgotten here as well, so memory is bounded by what it holds.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.engines.base import FINISH_LENGTH, FINISH_STOP, Generation, GenerationRequest
from pipeline.flow import tell_ages
from pipeline.metrics import Metrics
from pipeline.stage import StageContext
from schemas.records import PromptGroup, Sample, Version

_TOKEN_BYTES = 4  # of a packed token


class EngineMeter:
    """The requests that an engine holds."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._due_s = 0.0
        self._held: dict[str, tuple[float, int]] = {}  # request id -> (submitted, step of the version served then)

    def submitted(self, requests: Iterable[GenerationRequest], *, version: Version | None) -> None:
        """The engine took these while it served `version`."""
        step = 0 if version is None else version.step
        now_s = self._context.clock.monotonic()
        self._held.update((request.request_id, (now_s, step)) for request in requests)

    def returned(self, generation: Generation) -> None:
        """The engine gave one back, whatever became of it."""
        held = self._held.pop(generation.request_id, None)
        if held is not None and generation.finish_reason in (FINISH_STOP, FINISH_LENGTH):
            self._context.metrics.observe("request_s", self._context.clock.monotonic() - held[0])

    def made(self, generation: Generation) -> None:
        """Its tokens count."""
        metrics = self._context.metrics
        metrics.count("tokens_generated", len(generation.tokens))
        num_unverified = sum(run.num_tokens for run in generation.version_runs if not run.verified)
        if num_unverified:
            metrics.count("tokens_unverified", num_unverified)

    def lost(self) -> None:
        """The engine failed: it holds nothing any more."""
        self._held.clear()

    def report(self, *, num_waiting: int, step: int) -> None:
        """Tell levels, at most once per heartbeat.

        Args:
            num_waiting: sequences for which there was no slot yet.
            step: newest one that the ledger shows.
        """
        now_s = self._context.clock.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._context.run.heartbeat_s
        self._context.metrics.gauge("waiting_sequences", num_waiting)
        ages = [max(0, step - born) for _, born in self._held.values()]
        tell_ages(self._context.metrics, ages, kind="in_flight")


def count_begun(context: StageContext, prompt: PromptGroup, *, behind: str) -> None:
    """A group begins here."""
    context.metrics.count("groups_begun", behind=behind)
    context.metrics.observe("sample_hop_ms", context.clock.unix_ms() - prompt.created_unix_ms, hop="admitted_begun")


def count_samples(metrics: Metrics, samples: Iterable[Sample]) -> None:
    """A group was made: times and lengths of its members that have a completion."""
    made = [sample for sample in samples if sample.failure is None]
    times_ms = [sample.finished_unix_ms - sample.started_unix_ms for sample in made]
    metrics.observe_all("sample_hop_ms", times_ms, hop="begun_made")
    metrics.observe_all("produced_length_tokens", [len(each.completion_tokens) // _TOKEN_BYTES for each in made])
