"""A run's curves for other tools: a TensorBoard event file, or an offline run of Weights & Biases.

Data in: the topics of a run (steps, rewards, evaluations of the surviving history), its settings. Data out: a folder.
Invariants: nothing is sent anywhere; a run of W&B is written offline, `wandb sync` of its folder uploads it if wanted.
Failure: `SettingsError` when the folder cannot be written or wandb is missing; errors of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ops.outputs import writing
from ops.report.collect import RunFacts, collect
from ops.run_file import RunFile
from ops.tensorboard import Scalar, event_file
from schemas.errors import SettingsError
from topics.log import Log

Format = Literal["tensorboard", "wandb"]


def export_curves(log: Log, run_file: RunFile, *, into: Path, form: Format) -> int:
    """Write the curves of a run; returns the number of points.

    Raises:
        SettingsError: `into` cannot be written, or wandb is not installed.
        DeadlineExceeded, LogError: a topic cannot be read.
    """
    scalars = list(scalars_of(collect(log, run_file=run_file)))
    with writing(into, setting="--into"):
        into.mkdir(parents=True, exist_ok=True)
        if form == "tensorboard":
            (into / f"events.out.tfevents.{run_file.run.name}").write_bytes(event_file(scalars))
        else:
            _write_wandb(scalars, run_file, into=into)
    return len(scalars)


def scalars_of(facts: RunFacts) -> Iterator[Scalar]:
    """Every curve of a run, by step."""
    for step, gauges in sorted(facts.activity.steps.items()):
        unix_ms = facts.activity.step_unix_ms.get(step, 0)
        for name, value in sorted(gauges.items()):
            if name != "step":
                yield Scalar(tag=f"train/{name}", step=step, unix_ms=unix_ms, value=value)
    for step, rewards in sorted(facts.scores.by_step.items()):
        unix_ms = facts.activity.step_unix_ms.get(step, 0)
        yield Scalar(tag="rollout/reward_by_birth_version", step=step, unix_ms=unix_ms, value=rewards.mean)
    for curve in facts.evaluations:
        for point in curve.points:
            if point.mean is not None:
                at_ms = point.ended_unix_ms
                yield Scalar(tag=f"evaluation/{curve.name}", step=point.version.step, unix_ms=at_ms, value=point.mean)


def _write_wandb(scalars: Sequence[Scalar], run_file: RunFile, *, into: Path) -> None:
    try:
        import wandb  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise SettingsError(
            "the format wandb needs the package wandb, which is not installed; nothing was written",
            hint="install the extra: pip install 'rlweave[wandb]'; the format tensorboard needs nothing",
        ) from error
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for scalar in scalars:
        by_step[scalar.step][scalar.tag] = scalar.value
    settings = wandb.Settings(mode="offline", console="off", silent=True)
    name = run_file.run.name
    values = run_file.model_dump(mode="json")
    with wandb.init(project="rlweave", name=name, id=name, dir=into, config=values, settings=settings) as run:
        for step, points in sorted(by_step.items()):
            run.log(points, step=step)
