"""How fast the learner steps, by what it says of each step.

Data in: its notices of steps, in order. Data out: `StepsPicture`.
Invariants: everything is over the same last steps: those of the last `RATE_S`, but `LEAST` of them where steps are
long; a process's way to its first step counts for nothing, as there is no step before it; what was best is over as
many steps, never of a single one.
Failure: none; a notice without a number is passed over.
"""

from __future__ import annotations

import math
from collections import deque

from ops.live.picture import StepsPicture
from ops.live.process import RATE_S
from schemas.records import StageEvent

LEAST = 6
MOST = 512
_FORGET_MS = 300_000
_BEST_LEAST = 4  # steps that make a best


class Steps:
    """Call `add` with each notice of a step."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=MOST)  # when, which, samples in it
        self._best_trained_per_s: float | None = None
        self._best_step_s: float | None = None
        self.instance = ""
        self.first_ms: int | None = None  # end of the first step that the present learner told of

    def add(self, event: StageEvent, *, at_ms: int) -> None:
        """Take one."""
        step = event.gauges.get("step", math.nan)
        if not math.isfinite(step):
            return
        if event.instance != self.instance or (self._steps and step <= self._steps[-1][1]):
            self._steps.clear()
            self.instance, self.first_ms = event.instance, at_ms
        self._steps.append((at_ms, step, event.gauges.get("num_samples", math.nan)))
        seen = self.picture(at_ms)
        if seen.num >= _BEST_LEAST:
            self._best_trained_per_s = _least(seen.trained_per_s, self._best_trained_per_s, sign=-1.0)
            self._best_step_s = _least(seen.step_s, self._best_step_s, sign=1.0)

    def picture(self, now_ms: int) -> StepsPicture:
        """As of now; nothing of steps that are minutes old."""
        recent = self._recent(now_ms)
        best = StepsPicture(best_trained_per_s=self._best_trained_per_s, best_step_s=self._best_step_s)
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return best
        even_s = (recent[-1][0] - recent[0][0]) / 1000
        samples = sum(num for _, _, num in recent[1:])
        return StepsPicture(
            num=len(recent) - 1,
            per_s=_per_s(recent, now_ms=now_ms),
            step_s=even_s / (len(recent) - 1),
            trained_per_s=samples / even_s if math.isfinite(samples) else None,
            best_trained_per_s=best.best_trained_per_s,
            best_step_s=best.best_step_s,
        )

    def _recent(self, now_ms: int) -> list[tuple[int, float, float]]:
        steps = list(self._steps)
        if not steps or steps[-1][0] < now_ms - _FORGET_MS:
            return []
        since_ms = steps[-1][0] - round(RATE_S * 1000)
        within = sum(1 for step in steps if step[0] >= since_ms)
        return steps[-max(LEAST, within) :]


def _per_s(steps: list[tuple[int, float, float]], *, now_ms: int) -> float:
    passed_s = (max(now_ms, steps[-1][0]) - steps[0][0]) / 1000
    even_s = (steps[-1][0] - steps[0][0]) / 1000
    num = len(steps) - 1
    # A step that is long overdue makes the rate lower; one that is on its way does not.
    return num / even_s if passed_s - even_s <= 2 * even_s / num else num / passed_s


def _least(value: float | None, best: float | None, *, sign: float) -> float | None:
    if value is None or best is None:
        return value if best is None else best
    return min(value, best, key=lambda each: sign * each)
