"""Policy versions: which weights made a token.

Role: what samples, outcomes, events, commands and manifests name weights by; told again by `schemas.records`.
Data in and out: plain values.
Invariants: order is (lineage, step).
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, order=True)
class Version:
    """A policy version. Order is (lineage, step): engines follow a higher lineage to a lower step (promise 3)."""

    lineage: int  # grows by one with every restore of the learner; the first is 1
    step: int  # optimizer steps behind these weights in this history; cloning steps do not count

    def __str__(self) -> str:
        return f"{self.lineage}.{self.step}"


@dataclass(frozen=True, kw_only=True)
class VersionRun:
    """A stretch of consecutive completion tokens made by one policy version."""

    num_tokens: int
    version: Version
    verified: bool = True  # False: nothing shows that the engine computed with this version's weights (promise 9)


def birth_version(runs: tuple[VersionRun, ...]) -> Version:
    """The version that decides a sample's age: the oldest of its runs.

    Raises:
        ValueError: `runs` is empty.
    """
    return min(run.version for run in runs)
