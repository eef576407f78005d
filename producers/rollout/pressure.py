"""How many sequences to keep in an engine, by the engine's own pressure: pure.

Role: the controller of `rollout.admission = "pressure"`. It owns no clock and no engine.
Data in: one look at the engine at a time, and how many sequences it holds. Data out: a limit of sequences.
Invariants: the limit stays within one group and `max_sequences`. It grows by one fixed step at a time, while the engine
is full up to it, what it holds would still fit below the watermark if it grew likewise, and the step before brought
tokens per second. It is trimmed by a factor when KV use reaches the watermark, when requests stand in the engine's
queue, or when it preempted any: each of these comes before a loss of throughput, or is its beginning. Nothing changes
without a fresh look, while fewer sequences are held than the limit allows (growth), or while a trim is not through yet
and has not shown (further trims). After a trim, or a step that brought nothing, the limit rests for `probe_s`.
Failure: none. A counter that went back (an engine that began anew) starts a new comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.engines.pressure import EnginePressure
from producers.rollout.settings import PressureSettings

_NUM_STEPS = 32  # from nothing to max_sequences; finer ones take longer than a workload stays the same
_DWELL_LOOKS = 3  # looks that a rate is measured over: one is too noisy
_LEAST_GAIN = 0.1  # a tenth more sequences must bring 1 % more tokens per second, or they only wait for each other


@dataclass(frozen=True, kw_only=True)
class _Period:
    """Since when a rate is being measured."""

    begun_s: float  # by the engine's measurements
    tokens: int | None
    kv_use_share: float | None


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What a step up is compared with."""

    limit: int
    per_s: float | None  # tokens


class PressureControl:
    """See the module.

    Args:
        group_size: sequences of a group; the limit is a multiple of it where it can be.
        most: sequences that the engine takes.
    """

    def __init__(self, settings: PressureSettings, *, group_size: int, most: int) -> None:
        self._settings = settings
        self._least = min(group_size, most)
        self._most = most
        self._step = max(1, round(most / _NUM_STEPS / self._least)) * self._least
        self._limit = self._bounded(settings.start_sequences)
        self._due_s = -math.inf
        self._calm_s = -math.inf  # until then there is no step up
        self._trimmed_s = -math.inf  # a trim was made, or is not through yet
        self._last: EnginePressure | None = None
        self._period: _Period | None = None
        self._before: _Before | None = None

    @property
    def limit(self) -> int:
        """Sequences to hold at most."""
        return self._limit

    def look(self, seen: EnginePressure | None, *, held: int, now_s: float) -> int:
        """Take one look at the engine; gives the limit from now on.

        Args:
            held: sequences the engine has, those in its queue included.
        """
        if now_s < self._due_s:
            return self._limit
        self._due_s = now_s + self._settings.look_s
        if seen is None or now_s - seen.measured_s > self._settings.max_age_s:
            self._period = None
            return self._limit
        in_trouble, self._last = self._is_in_trouble(seen), seen
        if in_trouble:
            self._trim(held, running=seen.running, now_s=now_s)
        elif held <= self._limit - self._least:
            self._period = None  # there is not enough work to judge by
        else:
            self._measure(seen, held=held, now_s=now_s)
        return self._limit

    def _is_in_trouble(self, seen: EnginePressure) -> bool:
        last = self._last
        if seen.kv_use_share is not None and seen.kv_use_share >= self._settings.kv_high_share:
            return True
        if last is None or seen.measured_s <= last.measured_s:
            return False
        if last.preemptions is not None and seen.preemptions is not None and seen.preemptions > last.preemptions:
            return True
        return bool(last.queued) and bool(seen.queued)

    def _trim(self, held: int, *, running: int | None, now_s: float) -> None:
        settings = self._settings
        self._period = self._before = None
        self._calm_s = now_s + settings.probe_s
        if held > self._limit:  # the last one is not through yet
            self._trimmed_s = now_s
        elif now_s >= self._trimmed_s + _DWELL_LOOKS * settings.look_s:
            fitting = held if running is None else min(held, running)  # what stands in the queue does not fit
            self._limit = self._bounded(math.floor(min(self._limit, fitting) * settings.trim))
            self._trimmed_s = now_s

    def _measure(self, seen: EnginePressure, *, held: int, now_s: float) -> None:
        period = self._period
        begun_anew = period is not None and (seen.tokens or 0) < (period.tokens or 0)
        if period is None or begun_anew:
            self._begin(seen)
        elif seen.measured_s - period.begun_s >= _DWELL_LOOKS * self._settings.look_s:
            self._judge(seen, period=period, held=held, now_s=now_s)
            self._begin(seen)

    def _begin(self, seen: EnginePressure) -> None:
        self._period = _Period(begun_s=seen.measured_s, tokens=seen.tokens, kv_use_share=seen.kv_use_share)

    def _judge(self, seen: EnginePressure, *, period: _Period, held: int, now_s: float) -> None:
        """A rate was measured: was the last step up worth it, and is there to be another one?"""
        per_s = None
        if seen.tokens is not None and period.tokens is not None:
            per_s = (seen.tokens - period.tokens) / (seen.measured_s - period.begun_s)
        before, self._before = self._before, None
        if before is not None and not _was_worth_it(before, limit=self._limit, per_s=per_s):
            self._limit = before.limit
            self._calm_s = now_s + self._settings.probe_s
        elif now_s >= self._calm_s and self._limit < self._most and self._fits(seen, period=period, held=held):
            # Compared with the best so far: noise that was taken for a gain once is not to be one again.
            best = per_s if before is None or before.per_s is None else max(before.per_s, per_s or 0.0)
            self._before = _Before(limit=self._limit, per_s=best)
            self._limit = min(self._limit + self._step, self._most)

    def _fits(self, seen: EnginePressure, *, period: _Period, held: int) -> bool:
        """Whether one step more would stay below the watermark; what is held grows while it is young, so the rise over
        the period is added once more."""
        if seen.kv_use_share is None:
            return True
        rise = 0.0 if period.kv_use_share is None else max(0.0, seen.kv_use_share - period.kv_use_share)
        more = (self._limit + self._step) / max(held, 1)
        return (seen.kv_use_share + rise) * more < self._settings.kv_high_share

    def _bounded(self, wished: int) -> int:
        """Within the limits, and whole groups."""
        whole = wished // self._least * self._least
        return min(max(whole, self._least), self._most)


def _was_worth_it(before: _Before, *, limit: int, per_s: float | None) -> bool:
    if before.per_s is None or per_s is None:
        return True
    return per_s >= before.per_s * (1 + _LEAST_GAIN * (limit / before.limit - 1))
