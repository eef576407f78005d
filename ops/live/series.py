"""Numbers of a run over time: what the learner said of each step, and what heartbeats add up to.

Data in: events with their times, in order per process. Data out: `SeriesPicture`s by name.
Invariants: bounded (`ops.report.series.Bins` halve their resolution when full); a value over several processes is the
sum of their last words, taken at each heartbeat of one of them; a process that is over adds nothing.
Failure: none; a value that is no finite number is left out, names beyond `MOST_NAMES` are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ops.live.picture import SeriesPicture, StepsPicture
from ops.live.process import ProcessFold
from ops.report.series import Bins
from schemas.records import StageEvent

MOST_NAMES = 96
STEP_VALUES = (
    "reward_mean",
    "reward_seen_mean",
    "loss",
    "entropy",
    "grad_norm",
    "logprob_mismatch",
    "sampler_kl",
    "clipped_share",
    "learning_rate",
    "age_mean",
    "age_max",
)
GAUGES: Mapping[str, tuple[str, ...]] = {
    "prompts": ("open_groups", "credit_groups"),
    "learner": ("ready_groups", "buffered_bytes", "oldest_open_group_s"),
    "rollout": ("running_sequences", "parked_sequences", "versions_behind"),
    "scheduler": ("lag_records", "publish_lag_versions"),
}
RATES: Mapping[str, Mapping[str, str]] = {  # stage -> counter -> name of the series
    "rollout": {
        "tokens_generated": "tokens_per_s",
        "records_written{topic=samples}": "samples_per_s",
        "weight_bytes{direction=received}": "bytes_per_s{traffic=weights}",
    },
    "reward": {"records_written{topic=rewards}": "rewards_per_s"},
    "prompts": {"records_written{topic=prompts}": "groups_per_s"},
}
_TRAFFIC = "traffic_bytes{"
_LARGEST = ("versions_behind",)  # not the sum
_WAITERS = ("prompts", "rollout", "reward", "learner")
_SHARE = "waiting_share"
_FORGET_MS = 15_000  # a process that said nothing for so long adds nothing


class SeriesFold:
    """Call `add_step` and `add_beat`."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._bins: dict[str, Bins] = {}
        self._last: dict[str, dict[str, tuple[int, float]]] = {}  # name -> instance -> time and value of its last word

    def add_step(self, event: StageEvent, *, at_ms: int, steps: StepsPicture) -> None:
        """What the learner said of a step, and how fast it steps with it."""
        for name in STEP_VALUES:
            if name in event.gauges:
                self._put(name, event.gauges[name], at_ms=at_ms)
        rates = {"steps_per_s": steps.per_s, "step_s": steps.step_s, "trained_per_s": steps.trained_per_s}
        for name, value in rates.items():
            if value is not None:
                self._put(name, value, at_ms=at_ms)

    def add_beat(self, process: ProcessFold, *, at_ms: int) -> None:
        """A heartbeat of a process, folded into it already."""
        for name in GAUGES.get(process.stage, ()):
            values = [value for key, value in process.gauges.items() if key.partition("{")[0] == name]
            if values:
                self._put_over_all(name, process.instance, value=sum(values), at_ms=at_ms)
        rates = process.rates()
        for counter, name in RATES.get(process.stage, {}).items():
            if counter in rates:
                self._put_over_all(name, process.instance, value=rates[counter], at_ms=at_ms)
        for counter, rate in rates.items():
            if counter.startswith(_TRAFFIC):
                self._put_over_all(
                    f"bytes_per_s{counter[len(_TRAFFIC) - 1 :]}", process.instance, value=rate, at_ms=at_ms
                )
        share = process.waiting_share(at_ms)
        if process.stage in _WAITERS and share is not None:
            self._put_over_all(f"{_SHARE}{{stage={process.stage}}}", process.instance, value=share, at_ms=at_ms)

    def pictures(self) -> dict[str, SeriesPicture]:
        """All of them, by name."""
        return {name: _picture(name, bins, began_ms=self._began_ms or 0) for name, bins in sorted(self._bins.items())}

    def last(self, name: str) -> float | None:
        """The mean of the newest bin with something in it; None: there is none."""
        bins = self._bins.get(name)
        means = [] if bins is None else bins.means()[1]
        return means[-1] if means else None

    def _put_over_all(self, name: str, instance: str, *, value: float, at_ms: int) -> None:
        """One process's word, added up with the last ones of the others."""
        if name not in self._bins and len(self._bins) >= MOST_NAMES:
            return
        words = self._last.setdefault(name, {})
        words[instance] = (at_ms, value)
        for other in [other for other, (said_ms, _) in words.items() if said_ms < at_ms - _FORGET_MS]:
            del words[other]
        values = [word for _, word in words.values()]
        if name.startswith(_SHARE):
            self._put(name, sum(values) / len(values), at_ms=at_ms)
        else:
            self._put(name, max(values) if name in _LARGEST else sum(values), at_ms=at_ms)

    def _put(self, name: str, value: float, *, at_ms: int) -> None:
        if not math.isfinite(value) or (name not in self._bins and len(self._bins) >= MOST_NAMES):
            return
        if self._began_ms is None:
            self._began_ms = at_ms
        self._bins.setdefault(name, Bins()).add((at_ms - self._began_ms) / 1000, value)


def _picture(name: str, bins: Bins, *, began_ms: int) -> SeriesPicture:
    values = tuple(total / count if count else None for total, count in zip(bins.sums, bins.counts, strict=True))
    return SeriesPicture(name=name, began_ms=began_ms, bin_ms=round(bins.width_s * 1000), values=values)
