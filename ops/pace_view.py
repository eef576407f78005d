"""What the scheduler's stage clock says of a run, as text for people.

Role: part of `rlweave status`.
Data in: the gauges of the scheduler's last heartbeat. Data out: lines of at most 80 columns.
Invariants: a gauge of another form is passed over; nothing is shown of a scheduler that says nothing.
Failure: none.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping

_PHASE = re.compile(r"phase_typical_s\{of=([^,{}]+),phase=([^,{}]+)\}\Z")
_SHARE = re.compile(r"phase_share\{of=([^,{}]+),phase=([^,{}]+)\}\Z")
_FLOW = re.compile(r"flow_per_s\{of=([^,{}]+),counter=([^,{}]+)\}\Z")
_COLUMNS, _NAME_COLUMNS = 80, 15
_NO_BREAK = "\u00a0"
_NOT_SHOWN = frozenset({"starting"})  # once in a life


def pace_lines(gauges: Mapping[str, float], *, run: str) -> Iterator[str]:
    """How long phases take and how fast records flow, by stage."""
    yield from _table("phases, median time", _by_owner(_PHASE, gauges, form="{:.3g} s"), run=run)
    yield from _table("phases, share of time lately", _by_owner(_SHARE, gauges, form="{:.0%}"), run=run)
    yield from _table("flows, per second", _by_owner(_FLOW, gauges, form="{:.4g}"), run=run)


def _by_owner(pattern: re.Pattern[str], gauges: Mapping[str, float], *, form: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in sorted(gauges.items()):
        match = pattern.match(name)
        if match is not None and name.isprintable() and match[2] not in _NOT_SHOWN:
            found.setdefault(match[1], []).append(f"{match[2]} {form.format(value)}")
    return found


def _table(title: str, rows: Mapping[str, list[str]], *, run: str) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield title
    indent = " " * _NAME_COLUMNS
    for owner, parts in rows.items():
        name = owner.removeprefix(f"rlweave.{run}.")
        if len(name) >= _NAME_COLUMNS:
            yield name
            name = ""
        whole = ", ".join(part.replace(" ", _NO_BREAK) for part in parts)
        lines = textwrap.wrap(whole, _COLUMNS, initial_indent=f"{name:<{_NAME_COLUMNS}}", subsequent_indent=indent)
        yield from (line.replace(_NO_BREAK, " ") for line in lines)
