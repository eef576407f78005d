"""What one run of a workload under one policy came to; the same for the simulator and for real stages.

Invariants: times are model seconds; shares are of the time between the first and the last step that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run."""

    policy: str
    samples_s: float  # trained
    step_s: float
    data_wait_share: float  # of the learner's time
    rollout_idle_share: float  # of the engines' places for sequences
    stale_drop_share: float  # of the ids that were closed
    publish_alone_s: float  # mean of the publishes that no upload ran beside; NaN: there was none
    publish_beside_s: float  # of those that one did
    delay_p99_s: float  # from a finished group to the cut of its batch
    max_age: int  # versions, of what was trained
    num_commands: int  # that scaled something
    busy_share: float | None = None  # of the machine; None: simulated
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def publish_slowdown(self) -> float:
        """How many times as long a publish takes while a checkpoint is uploaded; NaN: not seen."""
        return self.publish_beside_s / self.publish_alone_s


@dataclass(kw_only=True)
class Tally:
    """Counts while a run goes on."""

    waited_s: float = 0.0
    used_s: float = 0.0  # places of engines, times seconds
    room_s: float = 0.0
    num_trained: int = 0
    num_stale: int = 0
    delays_s: list[float] = field(default_factory=list)
    publishes_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})  # beside an upload?
    max_age: int = 0
    num_commands: int = 0

    def figures(self, policy: str, *, over_s: float, num_steps: int) -> Figures:
        """Of `num_steps` steps that took `over_s` seconds together."""
        return Figures(
            policy=policy,
            samples_s=self.num_trained / over_s,
            step_s=over_s / num_steps,
            data_wait_share=self.waited_s / over_s,
            rollout_idle_share=1 - self.used_s / self.room_s if self.room_s else 0.0,
            stale_drop_share=self.num_stale / max(1, self.num_stale + self.num_trained),
            publish_alone_s=_mean(self.publishes_s[False]),
            publish_beside_s=_mean(self.publishes_s[True]),
            delay_p99_s=float(np.percentile(self.delays_s, 99)) if self.delays_s else 0.0,
            max_age=self.max_age,
            num_commands=self.num_commands,
        )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else float("nan")
