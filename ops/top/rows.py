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

from ops.live.crew import told
from ops.live.picture import ProcessPicture, RunPicture
from ops.top.strip import legend, mark_of, strip
from ops.top.words import clock, padded, plain, span

STRIP_S = 60.0
_NAME, _PHASE, _VERSION, _WAITS = 14, 18, 8, 9
_LEAST_SHARE = 0.01  # of waiting, to be told apart
_BESIDE = frozenset({"scheduler", "peer", "supervisor"})
_ENDED = ("stopped", "gone")


def process_lines(picture: RunPicture, *, width: int, starved: str = "") -> tuple[list[Text], str]:
    """A heading, then a line for each process that matters to the flow; and what the letters in them mean, those of
    the `starved` stage and of the rollouts first."""
    cells = max(10, width - _NAME - _PHASE - _VERSION - _WAITS - 5)
    heading = f"{'process':<{_NAME}} {'now':<{_PHASE}} {padded('last minute', cells)} {'waits':>{_WAITS}} "
    lines = [Text(f"{heading}{'version':>{_VERSION}}", style="dim")]
    shown, phases = _shown(picture), list[tuple[int, int, str]]()
    began_ms = picture.now_ms - round(STRIP_S * 1000)
    for process in shown:
        if process.stage not in _BESIDE:
            marks = strip(process.spans, began_ms=began_ms, ended_ms=picture.now_ms, num_cells=cells)
            rank = 0 if process.stage == starved else 1 if process.stage == "rollout" else 2
            phases += [(rank, -num, phase) for phase, num in Counter(marks).items() if phase]
            lines.append(_line(process, picture, shown=shown, marks=marks))
    return lines, ", ".join(legend(phase for _, _, phase in sorted(phases)))


def beside_line(picture: RunPicture) -> Text | None:
    """Scheduler, peers and supervisor in a line, and how many ended; None: there are none."""
    parts = [
        f"{plain(process.name)} {_now(process, picture)}" for process in _shown(picture) if process.stage in _BESIDE
    ]
    shown = {process.instance for process in _shown(picture)}
    counts = Counter(_ending(process) for process in picture.processes if process.instance not in shown)
    parts += [f"{num} {word}" for word, num in sorted(counts.items())]
    return Text(f"beside: {', '.join(parts)}", style="dim") if parts else None


def afterwards_line(picture: RunPicture) -> Text | None:
    """Who joined after the run's end, and when it was last heard; None: nobody did."""
    if not picture.afterwards:
        return None
    last_ms = max(process.heard_ms for process in picture.afterwards)
    is_on = any(process.standing == "at work" for process in picture.afterwards)
    when = "still at work" if is_on else f"last at {clock(last_ms)}"
    return Text(f"afterwards: {plain(told(picture.afterwards))} ({when})", style="dim")


def _ending(process: ProcessPicture) -> str:
    """How one that is not shown ended."""
    why = f" ({plain(process.ended)})" if process.ended else ""
    return f"{'replaced' if process.is_replaced else process.standing}{why}"


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
    line.append(f" {_waits(process) if process.shares else '':>{_WAITS}}")
    version = "-" if process.version is None else str(process.version)
    line.append(f" {padded(version, _VERSION, right=True)}")
    return line


def _waits(process: ProcessPicture) -> str:
    """`95%`; `w 40 p 55` of one that waits for two things, the most of both."""
    reasons = sorted(process.waits.items(), key=lambda each: -each[1])[:2]
    if len(reasons) < 2 or reasons[1][1] < _LEAST_SHARE:
        return f"{sum(process.waits.values()):.0%}"
    parts = [f"{mark_of(phase).letter} {100 * share:.0f}" for phase, share in reasons]
    return " ".join(parts)


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
