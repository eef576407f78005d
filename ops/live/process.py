"""One process, folded from its events.

Data in: StageEvents of one instance, in order. Data out: `ProcessPicture`.
Invariants: times are the instance's first wall-clock time plus differences of its own monotonic clock (promise 13); an
event that was seen before changes nothing; a rate is between two heartbeats, so a process that was first heard with a
high count counts from there, and one that began anew subtracts nothing.
Failure: none; a gauge that is no finite number is left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean

from ops.live.picture import ProcessPicture, SeriesPicture, Standing
from ops.live.spans import Spans
from ops.report.series import Bins
from ops.run_view import slot_key
from pipeline.metrics import METRICS
from pipeline.stage import host_of
from schemas.records import StageEvent, Version

RATE_S = 15.0  # rates are over so much time, or what there is of it
ORDER = ("prompts", "rollout", "reward", "reference", "learner", "peer", "scheduler", "evaluator", "supervisor")
_COUNTERS = frozenset(spec.name for spec in METRICS if spec.kind == "counter")
_SUMS = frozenset(f"{spec.name}_{end}" for spec in METRICS if spec.kind == "histogram" for end in ("sum", "count"))
_AT_WORK = frozenset({"reading", "waiting_for_data", "forward_backward"})  # a learner past its start
_WAITING = ("waiting", "breaker", "parked")
_FIRST_WORDS = 20  # events by which a process that was heard from its start is known
_BEST_BEATS = 5  # heartbeats over which the best is


class ProcessFold:
    """One process. Call `add` with each of its events."""

    def __init__(self, event: StageEvent) -> None:
        self.stage = event.stage
        self.instance = event.instance
        self.began_ms = self.heard_ms = self._anchor_ms = event.unix_ms
        self.version: Version | None = None
        self.labels: Mapping[str, str] = {}
        self.gauges: Mapping[str, float] = {}
        self.stopped = False
        self.flows_since_ms: int | None = None  # a learner: since when it is past its start
        self.spans = Spans()
        self._anchor_s = event.monotonic_s
        self._seq = -1
        self._beats: deque[tuple[float, dict[str, float]]] = deque()
        self._made = Bins()
        self._num_made: float | None = None
        self.saw_start = event.seq <= _FIRST_WORDS
        self._ended = ""
        self._scored: deque[float] = deque(maxlen=_BEST_BEATS)
        self._best_scored_per_s: float | None = None

    @property
    def name(self) -> str:
        """The stage, and the reward's name or the rank."""
        seat = self.instance.partition("-")[0]
        rank = seat.partition(".")[2] if seat.startswith(f"{self.stage}.") else ""
        return " ".join(part for part in (self.stage, rank, self.labels.get("reward", "")) if part)

    @property
    def slot(self) -> tuple[str, ...] | None:
        """What there is one process of at a time; None: it has not said so."""
        return slot_key(self.stage, instance=self.instance, labels=self.labels)

    def at_ms(self, event: StageEvent) -> int:
        """When an event was, on this process's own clock."""
        return self._anchor_ms + round((event.monotonic_s - self._anchor_s) * 1000)

    def add(self, event: StageEvent) -> bool:
        """Take one event; False: it was known."""
        if event.seq <= self._seq:
            return False
        self._seq = event.seq
        at_ms = self.at_ms(event)
        self.heard_ms = max(self.heard_ms, at_ms)
        if event.version is not None:
            self.version = event.version
        if event.kind == "phase_began":
            self.spans.enter(event.name, at_ms=at_ms)
            if self.flows_since_ms is None and event.name in _AT_WORK:
                self.flows_since_ms = at_ms
        elif event.kind == "phase_ended":
            self.spans.leave(at_ms=at_ms)
        elif event.kind == "heartbeat":
            self._beat(event, at_ms=at_ms)
        elif event.kind == "notice" and event.name == "stopped":
            self._end(event, at_ms=at_ms)
        return True

    def rates(self) -> dict[str, float]:
        """Counters per second, over the last heartbeats; empty: there were not two of them."""
        if len(self._beats) < 2:
            return {}
        (first_s, first), (last_s, last) = self._beats[0], self._beats[-1]
        if last_s <= first_s:
            return {}
        return {name: max(0.0, value - first.get(name, 0.0)) / (last_s - first_s) for name, value in last.items()}

    def waiting_share(self, at_ms: int) -> float | None:
        """Share of the last `RATE_S` in which it waited for somebody; None: it has not lived a second."""
        began_ms = max(self.began_ms, at_ms - round(RATE_S * 1000))
        if at_ms - began_ms < 1_000:
            return None
        shares = self.spans.shares(began_ms=began_ms, ended_ms=at_ms)
        return sum(share for phase, share in shares.items() if is_waiting(phase))

    def picture(
        self,
        standing: Standing,
        *,
        now_ms: int,
        window_ms: int,
        spans_since_ms: int | None = None,
        is_replaced: bool = False,
    ) -> ProcessPicture:
        """What is known of it; `spans_since_ms`: only spans that ended after that."""
        is_at_work = standing == "at work"
        until_ms = max(now_ms, self.heard_ms) if is_at_work else self.heard_ms
        shares = self._shares(until_ms, window_ms=window_ms)
        return ProcessPicture(
            stage=self.stage,
            name=self.name,
            instance=self.instance,
            host=host_of(self.instance),
            slot=self.labels.get("slot", ""),
            domain=self.labels.get("domain", ""),
            standing=standing,
            phase=self.spans.newest if is_at_work else self.spans.phase,  # between two phases it is in the one before
            phase_since_ms=self.spans.since_ms,
            began_ms=self.began_ms,
            heard_ms=self.heard_ms,
            version=self.version,
            gauges=self.gauges,
            rates=self.rates(),
            spans=tuple(self.spans.spans(since_ms=spans_since_ms, until_ms=None if is_at_work else self.heard_ms)),
            shares=shares,
            waits={phase: share for phase, share in shares.items() if is_waiting(phase)},
            made=self._made_picture(),
            ended=self._ended,
            is_replaced=is_replaced,
            best_scored_per_s=self._best_scored_per_s,
        )

    def _shares(self, until_ms: int, *, window_ms: int) -> dict[str, float]:
        began_ms = max(self.began_ms, until_ms - window_ms)
        return self.spans.shares(began_ms=began_ms, ended_ms=until_ms)

    def _beat(self, event: StageEvent, *, at_ms: int) -> None:
        self.gauges = {name: value for name, value in event.gauges.items() if math.isfinite(value)}
        self.labels = event.details
        if phase := event.details.get("phase", ""):
            self.spans.enter(phase, at_ms=at_ms)
        counters = {name: value for name, value in self.gauges.items() if is_counter(name)}
        self._count_made(counters, at_ms=at_ms)
        self._note_best()
        if self._beats and event.monotonic_s < self._beats[-1][0]:
            self._beats.clear()
        self._beats.append((event.monotonic_s, counters))
        while len(self._beats) > 2 and self._beats[1][0] <= event.monotonic_s - RATE_S:
            self._beats.popleft()

    def _count_made(self, counters: Mapping[str, float], *, at_ms: int) -> None:
        made = sum(value for name, value in counters.items() if name.startswith("samples_made"))
        if self._num_made is not None and made > self._num_made:
            self._made.add((at_ms - self.began_ms) / 1000, made - self._num_made)
        self._num_made = made

    def _made_picture(self) -> SeriesPicture | None:
        if not self._made.sums:
            return None
        values = tuple(total if total > 0 else None for total in self._made.sums)
        bin_ms = round(self._made.width_s * 1000)
        return SeriesPicture(name="samples_made", began_ms=self.began_ms, bin_ms=bin_ms, values=values)

    def _note_best(self) -> None:
        if "scored_per_s" not in self.gauges:
            return
        self._scored.append(self.gauges["scored_per_s"])
        if len(self._scored) == _BEST_BEATS:
            best, now = self._best_scored_per_s, fmean(self._scored)
            self._best_scored_per_s = now if best is None else max(best, now)

    def _end(self, event: StageEvent, *, at_ms: int) -> None:
        self.stopped = True
        self._ended = ending_of(event.details)
        self.spans.leave(at_ms=at_ms)


def ending_of(details: Mapping[str, str]) -> str:
    """Why a process stopped, of its notice: the code where it failed, else what it was told."""
    code = details.get("code", "0")
    return details.get("reason", "") if code in ("", "0") else f"exit code {code}"


def is_counter(name: str) -> bool:
    """Whether a value of a heartbeat only grows: a counter, or the sum of a histogram."""
    base = name.partition("{")[0]
    return base in _COUNTERS or base in _SUMS


def is_waiting(phase: str) -> bool:
    """Whether a process in this phase waits for somebody."""
    return phase.startswith(_WAITING)


def rank_of(stage: str) -> int:
    """Place of a stage in the order in which the pipeline flows."""
    return ORDER.index(stage) if stage in ORDER else len(ORDER)
