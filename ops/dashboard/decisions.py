"""The scheduler's commands, with decisions apart from the versions that it sends out all the time.

Data in: `CommandPicture`s, oldest first. Data out: rows for JSON, newest first; of publishes, of versions that were
skipped and of those overtaken between two waves the last one each, with how many there were.
Invariants: the reasons' own words say how many waves a version goes out in; words that are not understood count as one.
Failure: none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ops.live.picture import CommandPicture

MOST_DECISIONS = 12
_BEGUN = re.compile(r"is the newest, in (\d+) waves")
_WAVE = re.compile(r"wave (\d+) of (\d+):")
_SKIPS = "are skipped"
_VERSION = re.compile(r"\b(version|after) (\d+\.\d+)\b")  # shown as `v1.125`, apart from quantities


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A row."""

    at_ms: int
    what: str
    why: str
    version: str = ""  # that `what` is about
    num: int = 1  # of its kind, as far as commands are kept


def decisions(commands: Sequence[CommandPicture]) -> dict[str, list[Decision]]:
    """`decided`: newest first; `folded`: what recurs."""
    publishes = [each for each in commands if each.kind == "publish"]
    decided = [_decision(each) for each in commands if each.kind != "publish"]
    folded = [
        *_last([_decision(each) for each in publishes]),
        *_last(_overtaken(publishes)),
        *_last([_skip(each) for each in publishes if _SKIPS in each.reason]),
    ]
    return {"decided": decided[-MOST_DECISIONS:][::-1], "folded": folded}


def _last(rows: Sequence[Decision]) -> list[Decision]:
    return [Decision(**{**vars(rows[-1]), "num": len(rows)})] if rows else []


def _decision(each: CommandPicture) -> Decision:
    replicas = "" if each.replicas is None else f": {each.replicas}"
    what = f"{each.kind.replace('_', ' ')} to {each.target}{replicas}"
    return Decision(at_ms=each.at_ms, what=what, why=_VERSION.sub(r"\1 v\2", each.reason), version=each.version)


def _skip(each: CommandPicture) -> Decision:
    why = _VERSION.sub(r"\1 v\2", each.reason.rpartition("; ")[2])
    return Decision(at_ms=each.at_ms, what="versions skipped before", why=why, version=each.version)


def _overtaken(publishes: Sequence[CommandPicture]) -> list[Decision]:
    """Versions after which a newer one went out before their last wave did."""
    found = []
    version, wave, waves = "", 1, 1
    for each in publishes:
        if each.version != version:
            if version and wave < waves:
                why = f"v{each.version} was there before wave {wave + 1} of {waves} was let out"
                found.append(Decision(at_ms=each.at_ms, what="superseded", why=why, version=version))
            version, wave, waves = each.version, 1, 1
        if (begun := _BEGUN.search(each.reason)) is not None:
            waves = int(begun[1])
        elif (later := _WAVE.match(each.reason)) is not None:
            wave, waves = int(later[1]), int(later[2])
    return found
