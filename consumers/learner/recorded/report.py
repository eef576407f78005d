"""What a repetition found: a line per step, and a verdict.

Role: the only thing that says whether two trainings were the same.
Data in: digests that were recorded and those that came out. Data out: `StepReport`s, `Verdict`; `steps.jsonl` and
`report.json` in the folder of the repetition.
Invariants: what was not compared is not called the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from schemas.records import Version

STEPS_FILE, REPORT_FILE = "steps.jsonl", "report.json"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A recorded digest beside the one that came out."""

    version: str
    place: str  # "ledger", "weights", "anchor" or "checkpoint"
    recorded: str
    computed: str

    @property
    def agrees(self) -> bool:
        """Whether they are the same."""
        return self.recorded == self.computed


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What a step, or the weights before the first one (step 0), came out as."""

    version: Version
    state_digest: str  # of the weights, in the dtype of the wire
    training_digest: str  # of weights, optimizer and generator
    compared: tuple[Comparison, ...]
    num_samples: int = 0
    num_tokens: int = 0
    loss: float | None = None
    reward_mean: float | None = None  # of the recorded samples
    grad_norm: float | None = None  # before clipping
    mismatch_mean: float | None = None  # distance from the sampler's log-probabilities, in nats: how far it moved away
    clipped_share: float | None = None

    @property
    def agrees(self) -> bool | None:
        """None: nothing was recorded to compare with."""
        return all(each.agrees for each in self.compared) if self.compared else None


@dataclass
class Verdict:
    """What is known after some steps."""

    last_step: int = 0  # repeated
    num_compared: int = 0  # steps, step 0 included
    last_agreeing: int | None = None  # step, up to which nothing differed
    first_differing: StepReport | None = None
    last_was_compared: bool = field(default=False)
    changes: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # (the run's, here) by setting; {}: a repetition

    def add(self, report: StepReport) -> None:
        """Take in the next step."""
        self.last_step = report.version.step
        self.last_was_compared = report.agrees is not None
        self.num_compared += self.last_was_compared
        if report.agrees and self.first_differing is None:
            self.last_agreeing = report.version.step
        if report.agrees is False and self.first_differing is None:
            self.first_differing = report

    @property
    def same(self) -> bool:
        """Whether the repetition came out as the run did: nothing differs, and the last step was compared."""
        return self.first_differing is None and self.last_was_compared


class ReportFiles:
    """Writes the files of a report; what was written stays when the repetition ends early."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps: BinaryIO = (folder / STEPS_FILE).open("wb")

    def add(self, report: StepReport) -> None:
        """A line for a step."""
        values = {**asdict(report), "version": str(report.version), "step": report.version.step}
        values["compared"] = [{**asdict(each), "agrees": each.agrees} for each in report.compared]
        self._steps.write(orjson.dumps({**values, "agrees": report.agrees}, option=orjson.OPT_APPEND_NEWLINE))
        self._steps.flush()

    def close(self, verdict: Verdict, **more: object) -> None:
        """The report as a whole."""
        self._steps.close()
        differing = verdict.first_differing
        values = {
            **more,
            "changes": {name: {"run": old, "here": new} for name, (old, new) in verdict.changes.items()},
            "same": None if verdict.changes else verdict.same,
            "last_step": verdict.last_step,
            "num_compared": verdict.num_compared,
            "last_agreeing_step": verdict.last_agreeing,
            "first_differing_step": None if differing is None else differing.version.step,
        }
        (self._folder / REPORT_FILE).write_bytes(
            orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )


def say_environment(found: Mapping[int, Mapping[str, tuple[str, str]]]) -> list[str]:
    """A line for everything in which the machine or its software is not what a lineage was trained on."""
    lines: dict[tuple[str, str, str], list[int]] = {}
    for lineage, names in found.items():
        for name, (recorded, here) in names.items():
            lines.setdefault((name, recorded, here), []).append(lineage)
    return [
        f"{name}: {recorded or 'unknown'} in lineage {_numbers(lineages)}, here {here or 'unknown'}"
        for (name, recorded, here), lineages in lines.items()
    ]


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
