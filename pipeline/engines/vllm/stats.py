"""vLLM's own statistics, as an engine's pressure.

Role: a stat logger of `vllm.AsyncLLM`, called after each of its steps on the loop's thread.
Data in: `SchedulerStats` and `IterationStats` of vLLM 0.32, of which only what is named here is read. Data out: the
last `EnginePressure`.
Invariants: a request that arrives waits for the next step in any case, so `queued` is the smallest number that waited
over `WINDOW_S`: those that stand. The preemption and token counters only grow.
Failure: none.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from pipeline.engines.pressure import EnginePressure

WINDOW_S = 0.5


class SchedulerStats(Protocol):
    """Of one step of the core."""

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float


class IterationStats(Protocol):
    """Of the outputs of one step."""

    num_generation_tokens: int
    num_preempted_reqs: int


class PressureLog:
    """See the module; the methods are those of vLLM's `StatLoggerBase`."""

    def __init__(self) -> None:
        self.latest: EnginePressure | None = None  # replaced as a whole, so any thread may read it
        self._num_tokens = 0
        self._num_preempted = 0
        self._kv_use_share = 0.0  # highest of the window
        self._num_waiting = math.inf  # smallest of the window
        self._due_s = time.monotonic() + WINDOW_S

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        *,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Take one step in."""
        del mm_cache_stats, engine_idx
        if iteration_stats is not None:
            self._num_tokens += iteration_stats.num_generation_tokens
            self._num_preempted += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        self._kv_use_share = max(self._kv_use_share, scheduler_stats.kv_cache_usage)
        self._num_waiting = min(self._num_waiting, scheduler_stats.num_waiting_reqs)
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._publish(num_running=scheduler_stats.num_running_reqs, now_s=now_s)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def log(self) -> None:
        """Nothing to say."""

    def _publish(self, *, num_running: int, now_s: float) -> None:
        self.latest = EnginePressure(
            measured_s=now_s,
            kv_use_share=self._kv_use_share,
            queued=int(self._num_waiting),
            running=num_running,
            preemptions=self._num_preempted,
            tokens=self._num_tokens,
        )
        self._kv_use_share, self._num_waiting = 0.0, math.inf
        self._due_s = now_s + WINDOW_S
