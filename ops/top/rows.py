"""The processes: what each does now, a strip of its last minute, its version and how much of its time it waits.

Data in: a picture. Data out: lines of the width, and the legend of the letters in them.
Invariants: processes that stopped or have a successor are counted, not shown; those that only serve the others share a
line.
Failure: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from ops.live.picture import ProcessPicture, RunPicture
from ops.top.strip import legend, mark_of, strip
from ops.top.words import padded, plain, span

STRIP_S = 60.0
_NAME, _PHASE, _VERSION, _WAITS = 14, 18, 8, 6
_BESIDE = frozenset({"scheduler", "peer", "supervisor"})
_ENDED = ("stopped", "gone")


def process_lines(picture: RunPicture, *, width: int) -> tuple[list[Text], str]:
    """A heading, then a line for each process that matters to the flow; and what the letters in them mean."""
    cells = max(10, width - _NAME - _PHASE - _VERSION - _WAITS - 5)
    heading = f"{'process':<{_NAME}} {'now':<{_PHASE}} {padded('last minute', cells)} {'waits':>{_WAITS}} "
    lines = [Text(f"{heading}{'version':>{_VERSION}}", style="dim")]
    shown, phases = _shown(picture), set[str]()
    began_ms = picture.now_ms - round(STRIP_S * 1000)
    for process in shown:
        if process.stage not in _BESIDE:
            marks = strip(process.spans, began_ms=began_ms, ended_ms=picture.now_ms, num_cells=cells)
            phases.update(marks)
            lines.append(_line(process, picture, shown=shown, marks=marks))
    return lines, ", ".join(legend(phases))


def beside_line(picture: RunPicture) -> Text | None:
    """Scheduler, peers and supervisor in a line, and how many ended; None: there are none."""
    parts = [
        f"{plain(process.name)} {_now(process, picture)}" for process in _shown(picture) if process.stage in _BESIDE
    ]
    shown = {process.instance for process in _shown(picture)}
    counts = Counter[str](process.standing for process in picture.processes if process.instance not in shown)
    parts += [f"{counts[word]} {word}" for word in _ENDED if counts[word]]
    return Text(f"beside: {', '.join(parts)}", style="dim") if parts else None


def _shown(picture: RunPicture) -> list[ProcessPicture]:
    """Of a run that is over, those that took part last."""
    alive = [process for process in picture.processes if process.standing not in _ENDED]
    if alive or not picture.processes:
        return alive
    last_ms = max(process.heard_ms for process in picture.processes)
    return [process for process in picture.processes if process.heard_ms > last_ms - round(STRIP_S * 1000)]


def _line(
    process: ProcessPicture, picture: RunPicture, *, shown: Sequence[ProcessPicture], marks: Sequence[str]
) -> Text:
    line = Text(f"{padded(_name(process, shown), _NAME)} ")
    alive = process.standing == "at work"
    line.append(padded(_now(process, picture), _PHASE), style="" if alive else "bold red")
    line.append(" ")
    for phase in marks:
        mark = mark_of(phase)
        line.append(mark.letter, style=mark.style)
    waits = sum(process.waits.values())
    line.append(f" {waits:>{_WAITS}.0%}" if process.shares else " " * (_WAITS + 1))
    version = "-" if process.version is None else str(process.version)
    line.append(f" {padded(version, _VERSION, right=True)}")
    return line


def _name(process: ProcessPicture, shown: Sequence[ProcessPicture]) -> str:
    """With its slot where there are several of its name."""
    alike = [each for each in shown if each.name == process.name]
    if len(alike) < 2:
        return plain(process.name)
    hosts = {each.host for each in alike}
    return plain(f"{process.name} {process.slot}" + (f"@{process.host}" if len(hosts) > 1 else ""))


def _now(process: ProcessPicture, picture: RunPicture) -> str:
    if process.standing == "not heard":
        return f"silent {span((picture.now_ms - process.heard_ms) / 1000)}"
    if process.standing != "at work":
        return process.standing
    mark = mark_of(process.phase)
    return plain(mark.word if mark.letter != "?" else process.phase)
