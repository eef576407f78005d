"""What an audit can find, and the collector that counts all of it but keeps only examples.

Invariants: every finding is counted; at most `KEPT_PER_KIND` of a kind, or as many as asked for, are kept as text, so a
lost topic does not fill memory with findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

KEPT_PER_KIND = 100


class Kind(StrEnum):
    """Kinds of findings, in the order they are shown."""

    MISSING_PROMPT = "missing_prompt"
    MISSING_SAMPLE = "missing_sample"
    MISSING_REWARD = "missing_reward"
    MISSING_REFERENCE = "missing_reference_score"
    MISSING_LEDGER = "missing_ledger_record"
    MISSING_MANIFEST = "missing_manifest"
    TRAINED_TWICE = "trained_twice"
    CLOSED_TWICE = "closed_twice"
    OVER_AGE = "over_age"
    VERSION_NOT_SURVIVING = "version_not_surviving"
    WRONG_MEMBERS = "wrong_members"
    MIXED_ATTEMPTS = "mixed_attempts"
    WRONG_VERSION = "wrong_version"
    UNKNOWN_LINEAGE = "unknown_lineage"
    OPEN_AFTER_SEAL = "open_after_seal"
    REPEATED = "repeated_record"
    WRONG_PARTITION = "wrong_partition"
    UNBALANCED = "unbalanced"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not accounted for."""

    kind: Kind
    what: str  # the id: `run/group/member`, `run/group`, `ledger[3] seq 17`, a version
    why: str  # what says that it should be otherwise

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}: {self.why}"


class Findings:
    """Collects findings.

    Args:
        kept_per_kind: how many are kept as text.
    """

    def __init__(self, *, kept_per_kind: int = KEPT_PER_KIND) -> None:
        self._kept_per_kind = kept_per_kind
        self.counts: dict[Kind, int] = {}
        self._kept: dict[Kind, list[Finding]] = {}

    def add(self, kind: Kind, what: str, *, why: str) -> None:
        """Add one."""
        self.add_all(kind, [what], describe=lambda _: (what, why))

    def add_all(self, kind: Kind, rows: Iterable[object], *, describe: Callable[[int], tuple[str, str]]) -> None:
        """Add one per row; `describe(index)` gives (what, why) and is called for the kept ones only."""
        num_rows = sum(1 for _ in rows)
        if num_rows == 0:
            return
        self.counts[kind] = self.counts.get(kind, 0) + num_rows
        kept = self._kept.setdefault(kind, [])
        for index in range(min(num_rows, self._kept_per_kind - len(kept))):
            what, why = describe(index)
            kept.append(Finding(kind=kind, what=what, why=why))

    @property
    def num_total(self) -> int:
        """All findings, kept or not."""
        return sum(self.counts.values())

    def kept(self) -> tuple[Finding, ...]:
        """The kept ones, in the order of their kinds."""
        return tuple(finding for kind in Kind for finding in self._kept.get(kind, ()))
