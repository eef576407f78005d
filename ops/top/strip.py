"""What a process did over the last minute, as a strip of letters, with the legend.

Data in: spans of phases. Data out: a text of so many letters.
Invariants: a capital letter works, a small one waits, so a strip reads without colour; the letters of a strip are in
proportion to the time in each phase, however short the phases are: a cell shows the phase that is furthest behind what
it is owed, in the order of time.
Failure: none; a phase without a letter of its own is `?`, time in none is a blank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ops.live.picture import Span


@dataclass(frozen=True)
class Mark:
    """How a phase is shown."""

    letter: str
    word: str
    style: str = ""


_WORKS, _WAITS, _STOPS = "green", "yellow", "magenta"
MARKS: Mapping[str, Mark] = {
    "starting": Mark("*", "starting", _STOPS),
    "cloning": Mark("L", "cloning", _WORKS),
    "admitting": Mark("A", "admitting", _WORKS),
    "waiting_for_credit": Mark("c", "waits for credit", _WAITS),
    "generating": Mark("G", "generating", _WORKS),
    "parked": Mark("e", "waits for environment", _WAITS),
    "swapping": Mark("S", "loading weights", _STOPS),
    "waiting_for_prompts": Mark("p", "waits for prompts", _WAITS),
    "waiting_for_weights": Mark("w", "waits for weights", _WAITS),
    "scoring": Mark("R", "scoring", _WORKS),
    "waiting_for_samples": Mark("s", "waits for samples", _WAITS),
    "breaker_open": Mark("x", "paused by its breaker", _STOPS),
    "forward_backward": Mark("F", "forward/backward", _WORKS),
    "staging_weights": Mark("W", "staging weights", _STOPS),
    "publishing": Mark("P", "publishing", _STOPS),
    "checkpointing": Mark("K", "checkpointing", _STOPS),
    "reading": Mark("I", "reading", _WORKS),
    "waiting_for_data": Mark("d", "waits for data", _WAITS),
    "waiting_for_ranks": Mark("r", "waits for ranks", _WAITS),
    "waiting_for_peer": Mark("o", "waits for the peer", _WAITS),
    "evaluating": Mark("E", "evaluating", _WORKS),
    "fetching": Mark("f", "waits for a fetch", _WAITS),
    "waiting_for_versions": Mark("v", "waits for versions", _WAITS),
    "finished": Mark("=", "finished"),
    "serving": Mark("Y", "serving", _WORKS),
    "watching": Mark("M", "watching", _WORKS),
    "supervising": Mark("U", "supervising", _WORKS),
}
_UNKNOWN = Mark("?", "another phase")


def mark_of(phase: str) -> Mark:
    """How a phase is shown; empty: none."""
    return Mark(" ", "") if not phase else MARKS.get(phase, _UNKNOWN)


def strip(spans: Iterable[Span], *, began_ms: int, ended_ms: int, num_cells: int) -> list[str]:
    """The phase of each cell; empty where there is none."""
    if num_cells <= 0 or ended_ms <= began_ms:
        return []
    cells = _shares(list(spans), began_ms=began_ms, ended_ms=ended_ms, num_cells=num_cells)
    owed: dict[str, float] = {}
    found = []
    for cell in cells:
        for phase, share in cell.items():
            owed[phase] = owed.get(phase, 0.0) + share
        idle = max(0.0, 1.0 - sum(cell.values()))
        owed[""] = owed.get("", 0.0) + idle
        # Only what happened in this cell may be shown in it, or a phase would seem to go on after its end.
        here = [phase for phase in owed if phase in cell or (phase == "" and idle > 0.01)]
        chosen = max(here, key=lambda phase: owed[phase], default="")
        owed[chosen] = owed.get(chosen, 0.0) - 1.0
        found.append(chosen)
    return found


def legend(phases: Iterable[str]) -> list[str]:
    """`G generating` and so on, of the phases that are shown, each once, in the order in which they are given."""
    return list(dict.fromkeys(f"{mark.letter} {mark.word}" for mark in (mark_of(phase) for phase in phases if phase)))


def _shares(spans: Sequence[Span], *, began_ms: int, ended_ms: int, num_cells: int) -> list[dict[str, float]]:
    """Phase -> share of the cell, for each cell."""
    cells: list[dict[str, float]] = [{} for _ in range(num_cells)]
    width_ms = (ended_ms - began_ms) / num_cells
    for span in spans:
        first_ms = max(span.began_ms, began_ms)
        last_ms = ended_ms if span.ended_ms is None else min(ended_ms, span.ended_ms)
        if last_ms <= first_ms:
            continue
        first, last = (min(num_cells - 1, int((at_ms - began_ms) / width_ms)) for at_ms in (first_ms, last_ms))
        for index in range(first, last + 1):
            begin_ms, end_ms = began_ms + index * width_ms, began_ms + (index + 1) * width_ms
            within_ms = min(last_ms, end_ms) - max(first_ms, begin_ms)
            if within_ms > 0:
                cells[index][span.phase] = cells[index].get(span.phase, 0.0) + within_ms / width_ms
    return cells
