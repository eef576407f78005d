"""The policy of the benchmark: `stage_aware` decides how many rollouts there are, the script when a slot is lent.

Role: a policy plug-in.
Data in and out: see `consumers.scheduler.policy`.
Invariants: where the run has a pool, rollouts and ranks are commanded together and as the script says; else
`stage_aware` has its way.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from consumers.scheduler import stage_aware
from consumers.scheduler.policy import CommandDraft, Policy
from consumers.scheduler.policy import decide as decide_static
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Snapshot
from ops.bench.elastic.script import Prompter


def following(folder: Path) -> Policy:
    """The policy that follows the script in a folder."""
    prompter = Prompter(folder)

    def decide(snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
        if snapshot.slots is None:
            return stage_aware.decide(snapshot, settings)
        return [*decide_static(snapshot, settings), *lending(snapshot, is_lent=prompter.now().is_lent)]

    return decide


def lending(snapshot: Snapshot, *, is_lent: bool) -> Iterator[CommandDraft]:
    """Commands that bring a slot to the learner, or back."""
    for target in snapshot.fleet:
        more = (1 if target.target == "learner" else -1) if is_lent else 0
        now, wanted = snapshot.replicas_wanted(target), target.initial + more
        if now != wanted:
            reason = f"{now} to {wanted}: a slot is {'lent' if is_lent else 'given back'}"
            yield CommandDraft(target=target.target, kind="scale", replicas=wanted, reason=reason)
