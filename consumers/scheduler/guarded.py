"""A policy that may be anybody's, so that none of its faults ends the scheduler.

Role: between the scheduler and the function it was given.
Data in: a snapshot. Data out: drafts of commands, checked in kind; those of `static` when the policy failed.
Invariants: weights are published and the heartbeat goes on whatever the policy does; a failure is told with its reason
at once, and at most once a minute while it lasts.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from consumers.scheduler.policy import CommandDraft, Policy
from consumers.scheduler.policy import decide as decide_static
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Snapshot
from pipeline.plugins import told

_TELL_EVERY_S = 60.0
_MAX_CHARS = 300  # of a reason


class GuardedPolicy:
    """See the module.

    Args:
        policy: the function.
        tell: called with the reason of a failure.
    """

    def __init__(self, policy: Policy, *, tell: Callable[[str], None]) -> None:
        self._policy = policy
        self._tell = tell
        self._told_s: float | None = None

    def decide(self, snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
        """What the policy decides, or `static` in its place."""
        try:
            return _checked(self._policy(snapshot, settings))
        except Exception as error:  # noqa: BLE001 - the function may be anybody's
            if self._told_s is None or snapshot.now_s >= self._told_s + _TELL_EVERY_S:
                self._told_s = snapshot.now_s
                self._tell(told(error)[:_MAX_CHARS])
            return decide_static(snapshot, settings)


def _checked(found: object) -> list[CommandDraft]:
    """Raises: TypeError: it is no list of drafts."""
    if not isinstance(found, list) or not all(isinstance(each, CommandDraft) for each in found):
        raise TypeError(f"a policy returns a list of CommandDraft, this one returned {found!r:.100}")
    if any(not isinstance(each.replicas, int | None) for each in found):
        raise TypeError("replicas of a CommandDraft is a whole number, or None")
    return cast("list[CommandDraft]", found)
