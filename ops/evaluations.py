"""What a run's evaluator found, read from `evaluations`.

Data in: the topic, to its present end. Data out: evaluations, one per set and version, and curves along the surviving
history.
Invariants: read-only; of several records of a set and version the first counts. A set whose settings changed has a
curve of its own for each, the newest last.
Failure: `DeadlineExceeded` or `LogError` when the topic cannot be read to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ops.report.reading import read_to_end
from pipeline.history import Lineages
from schemas.evaluation import Evaluation
from topics.catalog import EVALUATIONS
from topics.log import Log


@dataclass(frozen=True, kw_only=True)
class EvaluationCurve:
    """Values of one set with one kind of settings, by step."""

    name: str
    points: tuple[Evaluation, ...]  # ascending step; a step without a score is left in, with a mean of None

    @property
    def values(self) -> tuple[list[int], list[float]]:
        """(steps, means) of the steps that were scored."""
        scored = [(each.version.step, each.mean) for each in self.points if each.mean is not None]
        return [step for step, _ in scored], [mean for _, mean in scored]

    @property
    def first(self) -> float | None:
        """The value at its beginning; None: nothing was scored."""
        means = self.values[1]
        return means[0] if means else None

    @property
    def last(self) -> float | None:
        """The value at its end; None: nothing was scored."""
        means = self.values[1]
        return means[-1] if means else None


def evaluations_of(log: Log) -> list[Evaluation]:
    """All evaluations of a run; none where it has no such topic, being of an older release.

    Raises:
        DeadlineExceeded, LogError: the topic cannot be read.
    """
    if EVALUATIONS.name not in log.admin().describe():
        return []
    found: dict[tuple[str, str, str], Evaluation] = {}
    for envelope in read_to_end(log, [EVALUATIONS]):
        record = envelope.record
        if isinstance(record, Evaluation):
            found.setdefault((record.name, record.settings_digest, str(record.version)), record)
    return list(found.values())


def curves_of(evaluations: Iterable[Evaluation], lineages: Lineages) -> list[EvaluationCurve]:
    """Curves by set, along the surviving history."""
    kept: dict[tuple[str, str], dict[int, Evaluation]] = {}
    for each in evaluations:
        if lineages.survives(each.version.lineage, each.version.step):
            kept.setdefault((each.name, each.settings_digest), {})[each.version.step] = each
    return [
        EvaluationCurve(name=name, points=tuple(by_step[step] for step in sorted(by_step)))
        for (name, _), by_step in sorted(kept.items(), key=lambda entry: entry[0][0])
    ]
