"""A life as text and as JSON.

Data in: `Life`. Data out: lines; plain values.
Invariants: text of others has no control characters in it; the slowest hop is marked.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from ops.top.words import clock, plain
from ops.trace.life import Hop, Life

_MARK = "<- slowest"


def lines_of(life: Life) -> Iterator[str]:
    """For a terminal of 80 columns or more."""
    yield f"{life.kind} {plain(life.id)}: {plain(life.end)}"
    for name, value in life.facts.items():
        yield f"  {name}: {plain(value)}"
    yield f"  {life.whole_s:.3f} s in {len(life.hops)} hops"
    yield ""
    yield f"{'at':<12} {'took':>9}  hop"
    for hop in life.hops:
        mark = f"  {_MARK}" if hop is life.slowest else ""
        yield f"{_clock(hop.began_ms)} {hop.took_s:>7.3f} s  {plain(_named(hop))}{mark}"
        if hop.note:
            yield f"{'':<24}{plain(hop.note)}"
    if life.hops:
        yield f"{_clock(max(hop.ended_ms for hop in life.hops))} {'':>9}  end"
    if life.afterwards:
        yield "scored afterwards, which is no part of its life:"
    for each in life.afterwards:
        who = f" [{plain(_short(each.who))}]" if each.who else ""
        yield f"{_clock(each.last_ms)} {'':>9}  {plain(each.name)} (plug-in {plain(each.plugin_version)}){who}"
        if each.note:
            yield f"{'':<24}{plain(each.note)}"
    for name in life.unknown:
        yield f"not known: {plain(name)}"
    if life.num_clock_skews:
        yield f"clocks disagreed at {life.num_clock_skews} hop(s), which count as 0 s"


def as_json(life: Life) -> dict[str, object]:
    """All there is, with what each hop took."""
    slowest = life.slowest
    return {
        **{name: value for name, value in asdict(life).items() if name != "hops"},
        "whole_s": life.whole_s,
        "slowest": None if slowest is None else slowest.name,
        "hops": [_hop(hop) for hop in life.hops],
    }


def _named(hop: Hop) -> str:
    """With the process, without the random end of its name."""
    return f"{hop.name} [{_short(hop.who)}]" if hop.who else hop.name


def _short(who: str) -> str:
    return who.rpartition("-")[0] or who


def _hop(hop: Hop) -> dict[str, object]:
    return {**asdict(hop), "took_s": hop.took_s}


def _clock(at_ms: float) -> str:
    return f"{clock(at_ms)}.{int(at_ms) % 1000:03d}"
