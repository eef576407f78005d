"""Which version to evaluate next, on which set: a pure decision.

Data in: sets, published versions of the surviving history, what was evaluated, whether the run is sealed. Data out: the
next `Task`, or none; versions that are gone before their turn came.
Invariants: a pair of set and version is evaluated once. The newest version that is due comes first, so that the curve
ends where the run is, whatever the pace; older ones that are still published fill its gaps in idle time.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from consumers.evaluator.settings import EvaluationSettings
from schemas.records import Version


@dataclass(frozen=True, kw_only=True, order=True)
class Task:
    """One pass."""

    version: Version
    name: str  # of the set


def is_due(version: Version, settings: EvaluationSettings, *, last: Version | None) -> bool:
    """Whether the set wants this version.

    Args:
        last: the run's last version, once it is sealed; None: it goes on.
    """
    return version.step % settings.every_steps == 0 or version == last


def due_tasks(
    sets: Mapping[str, EvaluationSettings],
    *,
    published: Iterable[Version],
    done: Collection[Task],
    last: Version | None,
) -> list[Task]:
    """What is to be done, next first.

    A first version of a later lineage has the weights of the one it grew out of: a step that a set has seen is not
    evaluated again for being published again, and of two versions of a step the later lineage's counts.
    """
    by_step: dict[int, Version] = {}
    for version in published:
        by_step[version.step] = max(version, by_step.get(version.step, version))
    seen = {(task.name, task.version.step) for task in done}
    found = [
        Task(version=version, name=name)
        for name, settings in sets.items()
        for version in by_step.values()
        if is_due(version, settings, last=last) and (name, version.step) not in seen
    ]
    return sorted(found, key=lambda task: (-task.version.step, task.name))
