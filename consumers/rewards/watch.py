"""What a reward consumer tells of itself: its phase, its breaker, samples that do not come back.

Role: the watching side of `consumers.rewards.stage`; decides nothing.
Data in and out: the state of `Scoring` in; events and gauges out.
Invariants: one event per change of the breaker, one per stuck sample.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from consumers.rewards.breaker import Breaker, BreakerState
from consumers.rewards.pace import Pace, PaceMeter
from consumers.rewards.pool import Held, Job, Taken
from consumers.rewards.scoring import Scored, Scoring
from consumers.rewards.settings import RewardSettings
from consumers.rewards.shortage import Shortage
from pipeline.stage import TURN_S, StageContext

STUCK_CHECK_S = 0.5
SHORT_S = 60.0  # between two notices of the same shortage
PACE_S = 2.0  # what rate, time and failure share are taken over
_TEXT_CHARS = 200  # of a plug-in's error in a line for people
_SAID = {
    BreakerState.OPEN: "breaker_opened",
    BreakerState.HALF_OPEN: "breaker_half_open",
    BreakerState.CLOSED: "breaker_closed",
}


class Watch:
    """Call `look` once a turn."""

    def __init__(self, context: StageContext, *, name: str, settings: RewardSettings) -> None:
        self._context = context
        self._name = name
        self._required = settings.required and not settings.is_shadow
        self._check_s = min(STUCK_CHECK_S, settings.stuck_after_s)
        self._breaker_open = False
        self._last_failure = ""
        self._failures: deque[str] = deque(maxlen=settings.breaker_window)  # the newest, as Reward records say them
        self._busy_s = self._checked_s = self._paced_s = context.clock.monotonic()
        self._meter = PaceMeter(self._busy_s)
        self._shortage = Shortage(self._busy_s, timeout_s=settings.timeout_s)
        self._short_s: float | None = None  # when it was told

    def begin(self) -> None:
        """The plug-in is loaded and samples may come."""
        self._context.metrics.gauge("breaker_open", 0)
        self._context.events.enter("waiting_for_samples")

    def scored(self, scored: Scored) -> None:
        """A sample has its verdict, which is on the log soon."""
        failure = scored.verdict.failure
        self._meter.add(failed=failure is not None, duration_ms=scored.duration_ms)
        if failure is not None:
            self._last_failure = f"group {scored.taken.sample.group}: {failure}"
            self._failures.append(failure)

    def lost_process(self, why: str, jobs: Sequence[Job]) -> None:
        """A process that scored was killed, or died: with it go the calls it had begun, which are tried again."""
        self._context.metrics.count("scorers_lost", reason=why.partition(":")[0])
        first = next((item for job in jobs for item in job.items), None)
        details = {"reward": self._name, "why": why}
        if first is None:
            self._context.events.notice("scorer_lost", details=details)
        else:
            at, sample = first.envelope, first.sample
            details |= {"topic": at.topic, "partition": str(at.partition)}
            self._context.events.notice(
                "scorer_lost", details=details, offset=at.offset, group=sample.group, member=sample.member
            )

    def look(self, scoring: Scoring, *, starved: bool) -> None:
        """Say what changed since the last call.

        Args:
            scoring: the state.
            starved: a half-open breaker looked for a sample to try and found none. Admission, which pauses while the
                breaker counts as open, must then go on, or none would ever come.
        """
        now_s = self._context.clock.monotonic()
        self._watch_breaker(scoring, starved=starved)
        if now_s >= self._checked_s + self._check_s:
            self._checked_s = now_s
            for taken in scoring.stuck():
                self._tell_stuck(taken, now_s=now_s)
            self._tell_held(scoring.held(), now_s=now_s)
        self._show_phase(scoring, now_s=now_s)
        if now_s >= self._paced_s + PACE_S:
            self._paced_s = now_s
            self._show_pace(self._meter.look(now_s))

    def _show_pace(self, pace: Pace) -> None:
        metrics = self._context.metrics
        metrics.gauge("scored_per_s", pace.samples_per_s)
        metrics.gauge("score_mean_s", pace.mean_s)
        metrics.gauge("score_failure_share", pace.failure_share)

    def _watch_breaker(self, scoring: Scoring, *, starved: bool) -> None:
        state = scoring.state()
        opened = state is BreakerState.OPEN or (state is BreakerState.HALF_OPEN and self._breaker_open and not starved)
        if opened is self._breaker_open:
            return
        self._breaker_open = opened
        self._context.metrics.gauge("breaker_open", int(opened))
        self._context.events.notice(
            _SAID[state],
            details={
                "reward": self._name,
                "required": str(self._required).lower(),
                "last_failure": self._last_failure if opened else "",
                "text": self.text(state, scoring.breaker),
            },
            failure_share=scoring.breaker.failure_share,
        )
        self._context.events.heartbeat()  # the scheduler acts on the gauge: do not let it wait for the next one

    def text(self, state: BreakerState, breaker: Breaker) -> str:
        """What this state means, in a sentence."""
        if state is BreakerState.CLOSED:
            return f"reward {self._name} scores again"
        if state is BreakerState.HALF_OPEN:
            return f"reward {self._name} waits for a sample to try again with"
        most = [" ".join(failure.split()) for failure, _ in Counter(self._failures).most_common(1)]
        why = "".join(f"; most often: {failure:.{_TEXT_CHARS}}" for failure in most)
        share = f"{breaker.num_failed} of its last {breaker.num_seen} samples failed ({breaker.failure_share:.0%})"
        return f"reward {self._name} is paused: {share}{why}"

    def _tell_stuck(self, taken: Taken, *, now_s: float) -> None:
        at, sample = taken.envelope, taken.sample
        self._context.metrics.count("waits_over_limit", what="score")
        waited_s = now_s - (taken.started_s if taken.started_s is not None else now_s)
        text = f"reward {self._name} has had sample {sample.group}/{sample.member} for {waited_s:.0f} s without a score"
        self._context.events.notice(
            "record_stuck",
            details={"topic": at.topic, "partition": str(at.partition), "reward": self._name, "text": text},
            offset=at.offset,
            group=sample.group,
            member=sample.member,
            waited_s=waited_s,
        )

    def _tell_held(self, held: Held, *, now_s: float) -> None:
        metrics = self._context.metrics
        metrics.gauge("scorers_held", held.num)
        if held.num_ever > self._shortage.num_ever:
            metrics.count("calls_held", held.num_ever - self._shortage.num_ever)
        self._shortage.add(held, now_s=now_s)
        if not held.is_short or (self._short_s is not None and now_s < self._short_s + SHORT_S):
            return
        self._short_s = now_s
        found = self._shortage
        self._context.events.notice(
            "scorers_held",
            details={"reward": self._name, "text": f"reward {self._name}: {found.text()}"},
            num_held=float(held.num),
            held_per_s=found.held_per_s,
            most_per_s=found.most_per_s,
        )

    def _show_phase(self, scoring: Scoring, *, now_s: float) -> None:
        """Say `waiting_for_samples` only after a moment without any, or each sample would be two phases."""
        if self._breaker_open:
            self._context.events.enter("breaker_open")
        elif scoring.num_unfinished:
            self._busy_s = now_s
            self._context.events.enter("scoring")
        elif now_s >= self._busy_s + TURN_S:
            self._context.events.enter("waiting_for_samples")
