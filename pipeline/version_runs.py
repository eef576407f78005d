"""Which version made which tokens, of completions that are put together.

Data in and out: `VersionRun`s, as in a sample. Invariants: no token is lost or made up. Failure: none.
"""

from __future__ import annotations

from dataclasses import replace

from schemas.records import VersionRun


def join_runs(first: tuple[VersionRun, ...], then: tuple[VersionRun, ...]) -> tuple[VersionRun, ...]:
    """One list of runs; two that meet and say the same become one."""
    if not first or not then:
        return first or then
    last, following = first[-1], then[0]
    if replace(last, num_tokens=following.num_tokens) != following:
        return (*first, *then)
    return (*first[:-1], replace(last, num_tokens=last.num_tokens + following.num_tokens), *then[1:])
