"""Curves of several trainings in one file: repetitions of a run with other settings, beside each other.

Data in: `steps.jsonl` in folders that `rlweave retrain` made. Data out: one SVG, PNG or PDF with a panel each for loss,
gradient norm, distance from the sampler, and the recorded reward; the same values as rows.
Invariants: only what a folder has is drawn; a step without a value is left out. The reward of a repetition is that of
the recorded samples, so it is the same in all of them: it says what they learnt from, not how good they became.
Failure: `SettingsError` for a folder that is none, a file that cannot be written, or without matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from consumers.learner.recorded.report import REPORT_FILE, STEPS_FILE
from ops.outputs import writing
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")
PANELS = {
    "loss": "policy loss",
    "grad_norm": "gradient norm",
    "mismatch_mean": "distance from the sampler (nats)",
    "reward_mean": "reward of the recorded samples",
}
_SIZE_INCH = (9.0, 6.0)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One training."""

    label: str  # the folder's name and what it had otherwise than the run
    steps: Sequence[int]
    values: Mapping[str, Sequence[float | None]]  # by panel, one per step


def read_curve(folder: Path) -> Curve:
    """What a repetition left.

    Raises:
        SettingsError: the folder has no steps of a repetition.
    """
    try:
        report = orjson.loads((folder / REPORT_FILE).read_bytes())
        lines = [orjson.loads(line) for line in (folder / STEPS_FILE).read_bytes().splitlines()]
        changes = {str(name): str(each["here"]) for name, each in report.get("changes", {}).items()}
        trained = [line for line in lines if line["step"] > 0]
        steps = [int(line["step"]) for line in trained]
        values = {panel: [_number(line.get(panel)) for line in trained] for panel in PANELS}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{folder} is no folder that `rlweave retrain` made: {error}", hint="give the folders named with --into"
        ) from error
    told = ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, value in changes.items())
    return Curve(label=f"{folder.name} ({told if told else 'as the run'})", steps=steps, values=values)


def write_curves(curves: Sequence[Curve], into: Path) -> None:
    """Draw all curves into one file, by its suffix.

    Raises:
        SettingsError: the suffix is unknown, the file cannot be written, or matplotlib is missing.
    """
    if into.suffix not in FORMATS:
        raise SettingsError(f"{into} has none of the suffixes {', '.join(FORMATS)}; nothing was drawn")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra
    except ImportError as error:
        raise SettingsError(
            "curves need matplotlib, which is not installed; nothing was drawn",
            hint="install the extra: pip install 'rlweave[report]'",
        ) from error
    canvas = Figure(figsize=_SIZE_INCH, layout="constrained")
    axes = canvas.subplots(2, 2).flat
    for place, (panel, title) in zip(axes, PANELS.items(), strict=True):
        _draw(place, curves, panel=panel, title=title)
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False)
    with writing(into.parent, setting="--into"):
        into.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(into, metadata={"Date": None} if into.suffix == ".svg" else None)


def _draw(axes: Axes, curves: Sequence[Curve], *, panel: str, title: str) -> None:
    for curve in curves:
        pairs = [(step, each) for step, each in zip(curve.steps, curve.values[panel], strict=True) if each is not None]
        axes.plot([step for step, _ in pairs], [each for _, each in pairs], linewidth=1.3, label=curve.label)
    axes.set(xlabel="step", ylabel=title)
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
