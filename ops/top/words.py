"""Numbers, times and texts for a terminal.

Invariants: text of others has no control characters and no markup in it; a line is cut to its width, not wrapped.
"""

from __future__ import annotations

import math
import time

from rich.text import Text


def plain(text: str) -> str:
    """Text that is not ours: on one line, without control characters."""
    return "".join(mark if mark.isprintable() else "?" for mark in " ".join(text.split()))


def cut(text: Text, width: int) -> Text:
    """At most `width` cells, with a mark where something is left out."""
    copy = text.copy()
    copy.truncate(max(1, width), overflow="ellipsis")
    return copy


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Exactly `width` cells."""
    found = Text(text)
    found.truncate(max(1, width), overflow="ellipsis", pad=not right)
    return " " * (width - found.cell_len) + found.plain if right else found.plain


def number(value: float | None) -> str:
    """`-` for unknown, `0.75`, `24`, `1,300`, `2.1M`."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 10_000_000:
        return f"{value / 1e6:,.0f}M"
    if size >= 100_000:
        return f"{value / 1e3:,.0f}k"
    if size >= 10 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.2g}" if size < 1 else f"{value:.1f}"


def span(seconds: float | None) -> str:
    """`-` for unknown, `0.4 s`, `32 s`, `5 min`, `3 h`."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def size(num_bytes: float | None) -> str:
    """`-` for unknown, `512 B`, `3.1 kB`, `14 GB`."""
    if num_bytes is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def clock(at_ms: float) -> str:
    """Local time of day, `12:03:44`; `-` for a time of no calendar, which others may have written."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))
    except (ValueError, OverflowError):
        return "-"
