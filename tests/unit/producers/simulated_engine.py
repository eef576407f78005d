"""An engine as a model of time: throughput saturates with the batch, and thrashes when the KV cache runs over."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.engines.pressure import EnginePressure

STEP_S = 0.1


@dataclass
class SimulatedEngine:
    """Sequences are handed over as soon as there is leave for them; work never ends.

    Args:
        peak_per_s: tokens per second of an endless batch.
        half: sequences at which half of it is reached.
        kv_tokens: what the cache holds; above, the youngest sequence is thrown out and computed anew.
    """

    peak_per_s: float = 4000.0
    half: float = 24.0
    kv_tokens: float = 1e9
    mean_tokens: float = 200.0
    seed: int = 0
    now_s: float = 0.0
    preemptions: int = 0
    tokens: float = 0.0
    ages: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    lengths: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    queue: list[tuple[float, float]] = field(default_factory=list)  # age, length of those thrown out

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @property
    def held(self) -> int:
        return len(self.ages) + len(self.queue)

    def turn(self, limit: int) -> None:
        """One step of time with so much leave."""
        self.now_s += STEP_S
        while self.queue and self.ages.sum() + self.queue[0][0] < 0.95 * self.kv_tokens:
            age, length = self.queue.pop(0)
            self._enter(age, length)
            self.tokens -= age  # computed a second time, of which nobody has anything
        while self.held < limit:
            self._enter(0.0, self.rng.lognormal(np.log(self.mean_tokens), 0.5))
        num = len(self.ages)
        made = self.peak_per_s * num / (num + self.half) * STEP_S
        self.ages = self.ages + made / num
        self.tokens += made
        while self.ages.sum() > self.kv_tokens and len(self.ages) > 1:
            self.queue.append((float(self.ages[-1]), float(self.lengths[-1])))
            self.ages, self.lengths = self.ages[:-1], self.lengths[:-1]
            self.preemptions += 1
        going = self.ages < self.lengths
        self.ages, self.lengths = self.ages[going], self.lengths[going]

    def _enter(self, age: float, length: float) -> None:
        self.ages, self.lengths = np.append(self.ages, age), np.append(self.lengths, length)

    @property
    def pressure(self) -> EnginePressure:
        return EnginePressure(
            measured_s=self.now_s,
            kv_use_share=float(self.ages.sum() / self.kv_tokens),
            queued=len(self.queue),
            running=len(self.ages),
            preemptions=self.preemptions,
            tokens=int(max(0.0, self.tokens)),
        )
