"""What the learner knows of the stages before it: is an engine ready, is the data used up, who is silent.

Role: turns the `events` topic into three answers, and keeps the learner from waiting for ever (promise 11).
Data in: stage events from now on; how far the groups are.
Data out: answers; a notice after `silent_notice_s` without progress, `NoProgress` after `silent_end_s`.
Invariants: liveness is local arrival time on the monotonic clock, never a time somebody wrote (promise 13); progress is
a group that became ready or a step; a used-up data set is no silence.
Failure: `NoProgress`, naming the stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from consumers.learner.data import GroupCounts
from consumers.learner.groups import REFERENCE
from consumers.learner.reports import Waiting
from consumers.learner.settings import LearnerSettings
from pipeline.stage import StageContext
from schemas.errors import NoProgress
from schemas.records import StageEvent
from topics.catalog import EVENTS
from topics.clock import Deadline
from topics.log import ReaderSettings

BEATS = 3  # heartbeats that may be missed before an instance counts as not heard
_NOT_SERVING = frozenset({"", "starting", "waiting_for_weights"})
_FORGET_BEATS = 200
_POLL_RECORDS = 5000  # most events taken in between two steps


@dataclass(kw_only=True)
class _Instance:
    """One process, as far as it was heard."""

    stage: str
    at_s: float  # of its last event, our monotonic clock
    phase: str = ""
    num_admitted: int | None = None  # prompt producers
    lineage: int = 0  # prompt producers: the newest one known to them


class UpstreamWatch:
    """Folds stage events.

    Args:
        context: of the learner.
        settings: `silent_notice_s` (T1) and `silent_end_s` (T2).
        lineage: the learner's own; what a prompt producer says of the end counts once it knows of this lineage.
    """

    def __init__(self, context: StageContext, *, settings: LearnerSettings, lineage: int) -> None:
        self._context = context
        self._lineage = lineage
        self._settings = settings
        self._reader = context.log.reader(
            ReaderSettings(topics=(EVENTS,), start="latest", instance=context.instance), hooks=context.hooks()
        )
        self._instances: dict[str, _Instance] = {}
        self._progress: tuple[int, int] | None = None
        self._since_s = context.clock.monotonic()
        self._is_noticed = False

    def poll(self) -> None:
        """Take in the events that are there, without waiting.

        Raises:
            LogError: the reader failed in a way that retrying does not mend.
        """
        num_read = 0
        while num_read < _POLL_RECORDS:  # a poll gives what the client hands over at a time, which is less than this
            envelopes = self._reader.poll(_POLL_RECORDS, deadline=Deadline.after(0.0, clock=self._context.clock))
            if not envelopes:
                break
            num_read += len(envelopes)
            for envelope in envelopes:
                if isinstance(envelope.record, StageEvent):
                    self.add(envelope.record)
        self._forget()

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def add(self, event: StageEvent) -> None:
        """Learn from one event that has just arrived."""
        if event.kind == "notice" and event.name == "stopped":
            self._instances.pop(event.instance, None)
            return
        now_s = self._context.clock.monotonic()
        instance = self._instances.setdefault(event.instance, _Instance(stage=event.stage, at_s=now_s))
        instance.at_s = now_s
        if event.kind == "phase_began":
            instance.phase = event.name
        elif event.kind == "heartbeat":
            instance.phase = event.details.get("phase", instance.phase)
            instance.num_admitted = _whole(event.gauges.get("groups_admitted"))
            lineage = _whole(event.gauges.get("version_lineage"))
            instance.lineage = 0 if lineage is None else lineage

    @property
    def engine_ready(self) -> bool:
        """Whether some rollout producer was heard lately and serves a version."""
        return any(each.phase not in _NOT_SERVING for each in self._heard("rollout"))

    @property
    def prompts_finished(self) -> int | None:
        """Groups admitted in all, when a prompt producer says that it admits no more; None: it may."""
        for each in self._heard("prompts"):
            if each.phase == "finished" and each.lineage == self._lineage and each.num_admitted is not None:
                return each.num_admitted
        return None

    def last_batch(self, groups: GroupCounts) -> bool:
        """Whether nothing will be added to what is ready: a batch may then be smaller."""
        return self.has_all(groups) and groups.num_open == 0

    def has_all(self, groups: GroupCounts) -> bool:
        """Whether every prompt that will ever be admitted has been read."""
        admitted = self.prompts_finished
        return admitted is not None and groups.num_seen >= admitted

    def used_up(self, groups: GroupCounts) -> bool:
        """Whether every group of a finished data set has its outcome."""
        return self.last_batch(groups) and groups.num_unclosed == 0

    def reset(self) -> None:
        """Begin the wait anew, after time the learner itself needed for something else than a step."""
        self._since_s = self._context.clock.monotonic()
        self._is_noticed = False

    def check(self, groups: GroupCounts, *, step: int) -> None:
        """Call while waiting for data: notices a silence once, and ends it.

        Raises:
            NoProgress: neither a ready group nor a step for `silent_end_s`; names the silent stages.
        """
        progress = (groups.num_completed, step)
        if progress != self._progress or self.used_up(groups):
            self._progress = progress
            self.reset()
            return
        silent_s = self._context.clock.monotonic() - self._since_s
        if silent_s < self._settings.silent_notice_s:
            return
        names = self._silent(groups.waiting())
        if not self._is_noticed:
            self._is_noticed = True
            self._context.metrics.count("waits_over_limit", what="upstream")
            self._context.events.notice("upstream_silent", details={"stage": "; ".join(names)}, silent_s=silent_s)
        if silent_s >= self._settings.silent_end_s:
            raise NoProgress(
                f"no group became complete for {silent_s:.0f} s (learner.silent_end_s is "
                f"{self._settings.silent_end_s:g} s); silent: {'; '.join(names)}; the run ends",
                hint="start or mend that stage and start the learner again: it goes on from its checkpoint",
            )

    def _silent(self, waiting: Waiting) -> list[str]:
        """The stages waited for, with what is known of each; only dead ones if any is dead."""
        wanted: list[tuple[str, str]] = []
        if waiting.num_open == 0:
            wanted.append(("prompts", "prompts: no open group"))
        for name, number in sorted(waiting.num_unscored.items()):
            stage, what = ("reference", "reference") if name == REFERENCE else ("reward", f"reward {name}")
            wanted.append((stage, f"{what}: {number} samples without it"))
        if waiting.num_unsampled > 0:
            wanted.append(("rollout", f"rollout: {waiting.num_unsampled} groups lack samples"))
        dead = [each for each in wanted if not self._heard(each[0])]
        return [f"{text} ({self._state(stage)})" for stage, text in (dead if dead else wanted)]

    def _state(self, stage: str) -> str:
        heard = self._heard(stage)
        if heard:
            return f"{len(heard)} alive, in phase {', '.join(sorted({each.phase for each in heard}))}"
        ages = [self._context.clock.monotonic() - each.at_s for each in self._instances.values() if each.stage == stage]
        return f"last heard {min(ages):.0f} s ago" if ages else "not heard"

    def _heard(self, stage: str) -> list[_Instance]:
        earliest_s = self._context.clock.monotonic() - BEATS * self._context.run.heartbeat_s
        return [each for each in self._instances.values() if each.stage == stage and each.at_s >= earliest_s]

    def _forget(self) -> None:
        earliest_s = self._context.clock.monotonic() - _FORGET_BEATS * self._context.run.heartbeat_s
        for name in [name for name, each in self._instances.items() if each.at_s < earliest_s]:
            del self._instances[name]


def _whole(value: float | None) -> int | None:
    """A gauge that counts; None for one that is absent or no number, as anybody may write events."""
    return None if value is None or not math.isfinite(value) else int(value)
