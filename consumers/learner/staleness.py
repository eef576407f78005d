"""How old is too old: the rules of promise 7, as pure functions of versions and steps.

Role: decides; the assembler acts. The bound is enforced where a batch is cut (`is_over`); `is_hopeless` (evict) and
`must_wait_for` only save work or samples.
Data in and out: versions, steps and ages in; yes or no out.
Invariants: an age is learner step minus birth step, so it grows by one per step whatever the lineage: along the
surviving path steps never go back. No clock.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.history import Lineages
from schemas.reasons import Reason
from schemas.records import Version, VersionRun


@dataclass(frozen=True, kw_only=True)
class StalenessRule:
    """The bound and what it means."""

    max_age: int  # eta, in versions
    on_stale: Literal["drop", "wait", "train"] = "drop"
    evict_margin: int = 0  # versions beyond eta an incomplete group is still left alone

    def is_over(self, age: int) -> bool:
        """Whether a group of this age may not be trained."""
        return self.on_stale != "train" and age > self.max_age

    def reason_of(self, age: int | None) -> Reason:
        """Why a valid member of this age is not trained when its group is dropped."""
        return Reason.STALE if age is not None and self.is_over(age) else Reason.GROUP_DROPPED

    def must_wait_for(self, birth_step: int, *, step: int) -> bool:
        """Whether one more step would push a group born at `birth_step` over the bound, which `wait` does not allow.

        A group that is over it already is not helped by waiting.
        """
        return self.on_stale == "wait" and step - birth_step == self.max_age

    def is_hopeless(self, birth_step: int, *, step: int) -> bool:
        """Whether an incomplete group of this birth can only end as stale."""
        return self.on_stale != "train" and step - birth_step > self.max_age + self.evict_margin


def version_problem(runs: tuple[VersionRun, ...], *, lineages: Lineages, step: int) -> Reason | None:
    """Why a sample with these version runs may not be trained by a learner at `step`; None: it may.

    Every run counts: a single stretch of tokens from a branch that does not survive spoils the sample.
    """
    for run in runs:
        version = run.version
        if not lineages.is_known(version.lineage):
            return Reason.FUTURE_VERSION
        if not lineages.survives(version.lineage, version.step):
            return Reason.ABANDONED_BRANCH
        if version.step > step:
            return Reason.FUTURE_VERSION
    return None


def age_of(version: Version | None, *, lineages: Lineages, step: int) -> int | None:
    """Age in versions at `step`; None without a version, or when the version is on no surviving path or ahead."""
    if version is None or version.step > step or not lineages.survives(version.lineage, version.step):
        return None
    return step - version.step
