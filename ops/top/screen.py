"""A picture as a screen: what matters most first, and what has no room is left out, least important first.

Data in: a picture, a width, a height. Data out: lines, each within the width, at most as many as the height.
Invariants: the verdict, the pipeline and the processes are kept longest; what was left out is said on the last line.
Failure: none.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from itertools import islice

from rich.text import Text

from ops.live.measures import measures_of
from ops.live.picture import RunPicture, Verdict
from ops.live.verdict import judge
from ops.top import figures
from ops.top.diagram import pipeline
from ops.top.rows import afterwards_line, beside_line, process_lines
from ops.top.words import cut, plain, span

MOST_LISTED = 10  # commands, notices
_NAMES = {
    "balanced": "OK",
    "nobody": "DEAD",
    "stopped": "STOPPED",
    "missing": "MISSING",
    "credit": "TIGHT",
    "starting": "STARTS",
    "finished": "ENDED",
    "trouble": "NO BROKER",
}
_STILL = ("starting", "finished", "stopped", "nobody")  # said without since when
_CALM = ("balanced", "credit", "starting", "finished", "stopped")


@dataclass(kw_only=True)
class _Part:
    """Lines that belong together."""

    rank: int  # the higher, the sooner it goes
    lines: list[Text]
    least: int = 0  # lines that are left of it before it goes altogether
    kept: int = field(init=False)

    def __post_init__(self) -> None:
        self.kept = len(self.lines)


def screen(picture: RunPicture, *, width: int, height: int | None = None, keys: str = "") -> list[Text]:
    """The lines.

    Args:
        height: at most so many; None: all there are.
        keys: what may be typed, for the last line.
    """
    parts = _parts(picture, width=width)
    room = None if height is None else height - (1 if keys else 0)
    hidden = 0 if room is None else _fit(parts, room)
    lines = [cut(line, width) for part in parts for line in part.lines[: part.kept]]
    if keys:
        missing = f"; {hidden} lines more in a taller window" if hidden else ""
        lines.append(cut(Text(f"{keys}{missing}", style="dim"), width))
    return lines if height is None else lines[:height]


def _parts(picture: RunPicture, *, width: int) -> list[_Part]:
    verdict, measures = judge(picture), measures_of(picture)
    flow = pipeline(picture, measures, width=width, starved=verdict.kind) if picture.is_live else []
    processes, letters = process_lines(picture, width=width, starved=verdict.kind)
    legend = _wrapped(letters, width=width, indent="  ", style="dim")
    beside, lag, weights = beside_line(picture), figures.lag(picture), figures.weights(picture, measures)
    return [
        _Part(rank=0, lines=[figures.title(picture, width=width)], least=1),
        _Part(rank=0, lines=_verdict(verdict, width=width, now_ms=picture.now_ms), least=1),
        _Part(rank=2, lines=_wrapped(_advice(verdict), width=width, indent="    ", style=""), least=3),
        _Part(rank=9, lines=[Text()]),
        _Part(rank=1, lines=flow, least=3),
        _Part(rank=9, lines=[Text()] if flow else []),
        _Part(rank=1, lines=processes, least=min(len(processes), 6)),
        _Part(rank=3, lines=legend, least=2),
        _Part(rank=6, lines=[line for line in (beside, afterwards_line(picture)) if line is not None]),
        _Part(rank=8, lines=[Text()]),
        _Part(rank=4, lines=[] if lag is None else _folded(lag, width), least=1),
        _Part(rank=2, lines=[figures.rates(picture, measures)]),
        _Part(rank=2, lines=[] if weights is None else [weights]),
        _Part(rank=1 if picture.drops else 3, lines=[figures.lost(picture)], least=1 if picture.drops else 0),
        _Part(rank=7, lines=list(islice(figures.commands(picture), MOST_LISTED))),
        _Part(rank=7, lines=list(islice(figures.notices(picture), MOST_LISTED))),
    ]


def _fit(parts: list[_Part], room: int) -> int:
    """Take lines away until the rest has room; returns how many were."""
    whole = sum(part.kept for part in parts)
    for whole_parts in (False, True):
        for part in sorted(parts, key=lambda part: -part.rank):
            floor = 0 if whole_parts and part.rank > 0 else part.least
            over = sum(each.kept for each in parts) - room
            if over > 0:
                part.kept = max(floor if part.kept > floor else part.kept, part.kept - over)
    return whole - sum(part.kept for part in parts)


def _verdict(verdict: Verdict, *, width: int, now_ms: int) -> list[Text]:
    name = _NAMES.get(verdict.kind, f"SLOW: {verdict.kind.upper()}")
    since = [] if verdict.since_ms is None else [f"for {span((now_ms - verdict.since_ms) / 1000)}"]
    said = (["so far"] if verdict.is_provisional else []) + (since if verdict.kind not in _STILL else [])
    name += f" ({', '.join(said)})" if said else ""
    style = "bold green" if verdict.kind in _CALM else "bold red"
    lines = textwrap.wrap(plain(f"{name}  {verdict.text}"), max(1, width - 1))
    return [Text(f" {line}", style=style) for line in lines]


def _advice(verdict: Verdict) -> str:
    return plain(f"-> {verdict.advice}") if verdict.advice else ""


def _wrapped(text: str, *, width: int, indent: str, style: str) -> list[Text]:
    lines = textwrap.wrap(text, max(1, width - 1), initial_indent=" ", subsequent_indent=indent) if text else []
    return [Text(line, style=style) for line in lines]


def _folded(line: Text, width: int) -> list[Text]:
    """A line of figures, on two where it is long."""
    if line.cell_len <= width:
        return [line]
    rows = textwrap.wrap(line.plain, max(1, width - 1), subsequent_indent=" " * 8)
    return [Text.assemble((rows[0][:8], "dim"), rows[0][8:]), *(Text(row) for row in rows[1:])]
