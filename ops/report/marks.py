"""Colours and small marks that all figures share.

Invariants: colours are stand-ins that `ops.report.figures` turns into CSS variables, see paper.mplstyle; a line in a
legend differs from the others by its dashes as well, so that nobody has to tell colours apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOREGROUND, MUTED, GRID = "#010101", "#020202", "#030303"
COLOURS = ("#040401", "#040402", "#040403", "#040404", "#040405", "#040406")
Dashes: TypeAlias = "str | tuple[float, tuple[float, ...]]"
_DASHES: tuple[Dashes, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (7, 2)), (0, (2, 2)))
_GAP_BINS = 3
_FEW = 80  # points up to which each has a mark


def line(axes: Axes, places: Sequence[float], *, values: Sequence[float], colour: str, label: str = "") -> None:
    """A curve; with few points each is marked."""
    axes.plot(
        places,
        values,
        color=colour,
        linestyle=_DASHES[COLOURS.index(colour)],
        linewidth=1.5,
        marker="o" if len(places) < _FEW else None,
        markersize=2.5,
        label=label or None,
    )


def with_gaps(times: Sequence[float], values: Sequence[float], /, *, width_s: float) -> tuple[list[float], list[float]]:
    """The same with a hole where nothing was heard for several bins, so that no line is drawn across it."""
    shown_times, shown_values = list(times[:1]), list(values[:1])
    for (before, after), value in zip(pairwise(times), values[1:], strict=True):
        if after - before > _GAP_BINS * width_s:
            shown_times.append((before + after) / 2)
            shown_values.append(math.nan)
        shown_times.append(after)
        shown_values.append(value)
    return shown_times, shown_values


def dashes(index: int) -> Dashes:
    """The dashes of the curve with this number in a legend."""
    return _DASHES[index % len(_DASHES)]


def legend(axes: Axes, *, columns: int = 4) -> None:
    """Above the figure."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, handlelength=2.0, columnspacing=1.2)


def nothing(axes: Axes, why: str) -> None:
    """In place of a figure."""
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=MUTED)
    axes.set_axis_off()
