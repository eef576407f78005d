"""What is to be traced, as it is written on the command line.

Data in: `12/3`, `12`, `1.140`, or with the run in front `demo/12/3`. Data out: a `Target`.
Failure: `TraceError`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.replay.select import parse_version
from schemas.errors import RlweaveError
from schemas.versions import Version

_FORMS = (
    "a sample is GROUP/MEMBER (demo 12/3, or demo/12/3), a prompt GROUP (demo 12), a version LINEAGE.STEP (demo 1.40)"
)


class TraceError(RlweaveError):
    """There is nothing of that name in the run, or it is no name."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One of the three kinds."""

    run: str
    group: int | None = None
    member: int | None = None
    version: Version | None = None


def parse_target(words: tuple[str, ...]) -> Target:
    """From `RUN ID`, or `RUN/ID` in one word.

    Raises:
        TraceError: another form.
    """
    given = " ".join(words)
    run, _, name = (words[0], "", words[1]) if len(words) == 2 else words[0].partition("/")
    name = name.removeprefix(f"{run}/")
    if (version := parse_version(name)) is not None:
        return Target(run=run, version=version)
    parts = name.split("/")
    if (
        len(words) > 2
        or not run
        or len(parts) > 2
        or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts)
    ):
        raise TraceError(f"{given!r:.200} names nothing that can be traced", hint=_FORMS)
    return Target(run=run, group=int(parts[0]), member=int(parts[1]) if len(parts) == 2 else None)
