"""The summary of a run: flat keys with units in their names.

Data out: `summary.json`, and a short text.
Invariants: `None` is what could not be known; a count that is 0 was counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson

from ops.report.activity import Process


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What became of a run, along its surviving history where that matters."""

    run: str
    steps: int  # highest step of the surviving history
    reward_first: float | None  # mean over all scored samples born at the versions of steps 0 to 9
    reward_last: float | None  # the same over the last 10 birth versions
    evaluation_first: Mapping[str, float | None]  # value of the first version evaluated, by set
    evaluation_last: Mapping[str, float | None]  # of the last one
    samples_produced: int  # ids: sum of the group sizes of all prompts
    samples_trained: int
    dropped: Mapping[str, int]  # ids by reason
    failed: Mapping[str, int]
    open: int  # ids without an outcome
    trained_twice: int  # ids in more than one trained outcome
    max_trained_age: int | None  # versions
    staleness_bound: int | None  # versions; None: no bound
    share_trained_at_age_1_or_more: float | None
    weights_published: int  # distinct versions, those of abandoned branches included
    lineages: int
    tokens_generated: int  # completion tokens in samples, of all attempts
    tokens_per_s: float | None  # over training_s
    wall_s: float | None  # of the whole run as its launcher measured it
    training_s: float | None  # from the first prompt to the last step, by wall clocks, without the time it was stopped
    num_processes: int
    processes: tuple[Process, ...]
    waits: Mapping[str, Mapping[str, float]]  # stage -> phase -> share of the stage's time
    audit_balanced: bool | None
    clock_skews: int
    settings_digest: str  # blake3 of the settings as sorted JSON
    environment: Mapping[str, str | int | None]

    def to_json(self) -> bytes:
        """The content of summary.json."""
        values = asdict(self)
        values["processes"] = [asdict(process) for process in self.processes]
        return orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def text(self) -> str:
        """A few lines for a person."""
        bound = "no bound" if self.staleness_bound is None else f"bound {self.staleness_bound}"
        age = "-" if self.max_trained_age is None else str(self.max_trained_age)
        in_all = "" if self.wall_s is None else f"{shown(self.wall_s)} s in all, "
        return "\n".join(
            (
                f"run {self.run}: {self.steps} steps, {self.num_processes} processes, {self.lineages} lineage(s)",
                f"  reward    {shown(self.reward_first)} over the first 10 versions, "
                f"{shown(self.reward_last)} over the last 10",
                *(
                    f"  evaluated {name}: {shown(self.evaluation_first.get(name))} at first, {shown(last)} at last"
                    for name, last in self.evaluation_last.items()
                ),
                f"  samples   {self.samples_produced} produced = {self.samples_trained} trained + "
                f"{sum(self.dropped.values())} dropped + {sum(self.failed.values())} failed + {self.open} open; "
                f"{self.trained_twice} trained twice",
                f"  dropped   {_reasons(self.dropped)}",
                f"  failed    {_reasons(self.failed)}",
                f"  age       at most {age} ({bound}); {shown(self.share_trained_at_age_1_or_more)} of the trained at "
                "1 or more",
                f"  weights   {self.weights_published} versions published",
                f"  time      {shown(self.training_s)} s of training, {in_all}{shown(self.tokens_per_s)} tokens/s",
            )
        )


def shown(value: float | None) -> str:
    """A number for people; `-` for unknown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {num}" for reason, num in sorted(counts.items())) if counts else "none"
