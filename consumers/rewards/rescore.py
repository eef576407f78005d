"""A reward for the past: scores every sample that the log holds, and ends.

Role: `RewardStage` with an end. It notes where each partition of `samples` ends when it starts, and is finished when
its consumer group has committed up to there; several of one name share the work.
Data in and out: Sample records in; Reward records on `shadow-rewards` out, and a `Rescored` for people.
Invariants: it never enters the training signal. The consumer group belongs to the reward's name and to what its plug-in
is (source or version, and options): killed and started again it goes on, with a changed plug-in it begins anew.
It takes many samples at a time; the command runs it at the lowest priority, and while others want the processors it
pauses now and then, as what it asks of the broker has no priority.
Failure: as of `RewardStage`; `SettingsError` for a reward that is trained on; `PluginError` when the breaker opens, as
nobody waits for the plug-in to mend itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from consumers.rewards.breaker import BreakerState
from consumers.rewards.crowd import Crowd
from consumers.rewards.scoring import Scored
from consumers.rewards.settings import RewardSettings
from consumers.rewards.stage import RewardStage
from pipeline.stage import StageContext
from schemas.errors import PluginError, SettingsError
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.log import TopicPartition

MAX_IN_FLIGHT = 4096  # samples taken and not finished: they are at hand, so a few seconds of work
LUMP = 1000  # rewards written and waited for at a time: nobody waits for one of them, and the broker has less to do
LUMP_S = 0.5  # or what there is after so long
LOOK_S = 0.25  # between two looks at what is committed
SAY_S = 10.0  # between two lines in the log on how far it is
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """What one process did."""

    num_values: int
    num_failed: int
    num_left: int  # records up to the end noted at the start that no process has committed
    took_s: float  # from the first sample taken to the last one scored; 0 without any

    @property
    def samples_per_s(self) -> float:
        """Samples scored per second of `took_s`."""
        return (self.num_values + self.num_failed) / self.took_s if self.took_s > 0 else 0.0

    def text(self, name: str) -> str:
        """For people."""
        num = self.num_values + self.num_failed
        failed = f", {self.num_failed} of them failures" if self.num_failed else ""
        rate = f" in {self.took_s:.1f} s: {self.samples_per_s:,.0f} samples/s" if num and self.took_s > 0 else ""
        left = f"; {self.num_left} records are left" if self.num_left else "; all of the log is scored"
        return f"reward {name}: {num} samples scored{rate}{failed}{left}"


class RescoreStage(RewardStage):
    """One process that scores the past with the reward `name`.

    Raises:
        SettingsError: the reward has a weight or a gate.
    """

    def __init__(self, context: StageContext, *, name: str, settings: RewardSettings) -> None:
        if not settings.is_shadow:
            raise SettingsError(
                f"reward {name!r} is trained on, and scoring the past would mix with what the learner has used",
                hint="give it another --name with --plugin and --shadow, or weight 0",
            )
        super().__init__(context, name=name, settings=settings.model_copy(update={"start": "earliest"}))
        self._most_in_flight = max(MAX_IN_FLIGHT, settings.max_in_flight)
        self._ends: dict[int, int] = {}
        self._is_done = False
        self._result: Rescored | None = None
        self._began_s: float | None = None
        self._look_s = self._ended_s = 0.0
        self._said_s = self._settled_s = context.clock.monotonic()
        self._held: list[Scored] = []
        self._crowd = Crowd(self._said_s)

    @property
    def finished(self) -> bool:
        """Whether all that was there at the start is scored."""
        return self._is_done

    def start(self, *, deadline: Deadline) -> None:
        """As of `RewardStage`; notes the ends of the log."""
        held = self._context.log.admin().describe().get(SAMPLES.name, {})
        self._ends = {partition: end for partition, (first, end) in held.items() if end > first}
        super().start(deadline=deadline)

    def turn(self) -> None:
        """As of `RewardStage`; ends when the group has committed all.

        Raises:
            PluginError: too many samples fail.
        """
        before_s = self._context.clock.monotonic()
        super().turn()
        if self._began_s is None and (self._queue.num_in_flight > 0 or sum(self.num_scored) > 0):
            self._began_s = before_s
        self._check_breaker()
        now_s = self._context.clock.monotonic()
        if pause_s := self._crowd.pause_s(now_s):
            self._context.stop.wait(pause_s)
            self._context.metrics.count("rescore_paused_s", pause_s)
        if now_s >= self._look_s + LOOK_S and self._queue.num_in_flight == 0:
            self._look_s = now_s
            self._queue.commit()
            self._is_done = self._num_left() == 0
        if now_s >= self._said_s + SAY_S:
            self._said_s = now_s
            num_scored, num_left = sum(self.num_scored), self._num_left()
            _log.info("reward %s: %d samples scored, %d records are left", self._name, num_scored, num_left)

    def stop(self, *, deadline: Deadline) -> None:
        """As of `RewardStage`; says what was done."""
        super().stop(deadline=deadline)
        if self._version:
            self._result = self.result()
            self._tell(self._result)

    def report(self) -> str:
        """What this process did, once it has stopped."""
        return "" if self._result is None else self._result.text(self._name)

    def result(self) -> Rescored:
        """What this process did so far."""
        num_values, num_failed = self.num_scored
        return Rescored(
            num_values=num_values,
            num_failed=num_failed,
            num_left=0 if self._is_done else self._num_left(),
            took_s=0.0 if self._began_s is None else max(0.0, self._ended_s - self._began_s),
        )

    def _check_breaker(self) -> None:
        scoring = self._started()
        if scoring.state() is not BreakerState.CLOSED:
            self._settle((), commit_now=True)  # what failed is on the log, and the error can say what most often
            raise PluginError(
                f"{self._watch.text(BreakerState.OPEN, scoring.breaker)}; the past is not scored with it",
                hint="mend it and start again: what has a reward stays, a changed plug-in begins anew; "
                "rewards.NAME.breaker_failures = 1.0 goes on whatever fails",
            )

    def _tell(self, result: Rescored) -> None:
        self._context.events.notice(
            "rescored",
            details={"reward": self._name, "text": result.text(self._name)},
            num_samples=float(result.num_values + result.num_failed),
            num_failed=float(result.num_failed),
            took_s=result.took_s,
        )

    def _settle(self, scored: Sequence[Scored], *, commit_now: bool = False) -> None:
        """As of `RewardStage`, in lumps."""
        self._held += scored
        now_s = self._context.clock.monotonic()
        if commit_now or len(self._held) >= LUMP or now_s >= self._settled_s + LUMP_S:
            held, self._held, self._settled_s = self._held, [], now_s
            super()._settle(held, commit_now=commit_now)
            if held:
                self._ended_s = self._context.clock.monotonic()

    def _revoked(self, places: Sequence[TopicPartition]) -> None:
        """As of `RewardStage`; verdicts that are held and not written are their new owner's to give, too."""
        for one in self._held:
            one.taken.abandoned = one.taken.abandoned or one.taken.place in places
        super()._revoked(places)

    def _group_of(self, fingerprint: str) -> str:
        group = super()._group_of(fingerprint)
        return group if self._settings.group is not None else f"{group}.past.{fingerprint}"

    def _num_left(self) -> int:
        committed = {each.partition: each.committed for each in self._context.log.admin().lag(self._group, [SAMPLES])}
        left = 0
        for partition, end in self._ends.items():
            at = committed.get(partition)
            left += max(0, end - (0 if at is None else at))
        return left
