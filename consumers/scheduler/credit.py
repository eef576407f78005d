"""Which publish lag the prompt producer is to reckon with: a pure function.

Role: commands the measured d (kind `credit`, target `prompts`), with hysteresis.
Data in: a snapshot. Data out: d, whole versions, which a command carries as `rate`; or nothing.
Invariants: unknown changes nothing, so a restarted scheduler leaves what stands until it has seen enough. d goes up at
once, since groups that would be too old are being made meanwhile; it goes down by one, when almost none of the groups
exceeded the lower value (`_CLEAR_SHARE`, a fifth of what raised it) and `credit_hold_s` after the last change. It is
never commanded beyond max_staleness + 1, from which on it has no further effect. From max_staleness on a single batch
may be open, so that engines and learner wait for each other by turns: that costs more than it saves unless
`_LOCKSTEP_SHARE` of the groups are too late without it. The prompt producer takes the larger
of this and `run.publish_lag_versions`, so no command raises the credit above what the run file allows.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consumers.scheduler.publish_lag import LATE_SHARE, LagSeen
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Snapshot

_CLEAR_SHARE = 0.01  # of groups; below it a lower lag is safe from being exceeded by more than 5 % soon
_LOCKSTEP_SHARE, _CLEAR_LOCKSTEP_SHARE = 0.25, 0.1  # the same two for a credit of one batch


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to reckon with next, and why."""

    lag: int
    reason: str
    assumed: Mapping[str, str]


def next_credit(snapshot: Snapshot, settings: SchedulerSettings) -> Step | None:
    """The command that should follow the one in force; None: it is right, or nothing better is known."""
    seen, standing = snapshot.publish_lag, snapshot.standing.credit
    lag = _wanted(snapshot, settings)
    if lag is None:
        return None
    was = "none" if standing is None else str(standing.lag)
    before = "" if standing is None else f", before on {standing.lag}"
    versions = "version" if seen.versions == 1 else "versions"
    return Step(
        lag=lag,
        reason=f"groups are begun up to {seen.versions} {versions} behind: the credit counts on {lag}{before}",
        assumed={"publish_lag": was, "measured": str(seen.versions), "at_swap": str(seen.at_swap)},
    )


def is_too_late(snapshot: Snapshot) -> bool | None:
    """Whether versions arrive so late that what is made with them is too old at once; None: not known."""
    at_swap, bound = snapshot.publish_lag.at_swap, snapshot.max_staleness
    return None if at_swap is None or bound is None else at_swap >= bound + 1


class LateAlarm:
    """Tells once when versions begin to arrive too late.

    Args:
        tell: called with the lag in versions and the bound.
    """

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self._tell = tell
        self._told = False

    def look(self, snapshot: Snapshot) -> None:
        """Call with each snapshot."""
        late, at_swap, bound = is_too_late(snapshot), snapshot.publish_lag.at_swap, snapshot.max_staleness
        if late and not self._told and at_swap is not None and bound is not None:
            self._tell(at_swap, bound)
        if late is not None:
            self._told = late


def _wanted(snapshot: Snapshot, settings: SchedulerSettings) -> int | None:
    """The lag to command; None: leave it."""
    seen, standing, bound = snapshot.publish_lag, snapshot.standing.credit, snapshot.max_staleness
    if bound is None:
        return None
    measured = _reckoned(seen, bound=bound, share=LATE_SHARE, lockstep_share=_LOCKSTEP_SHARE)
    clear = _reckoned(seen, bound=bound, share=_CLEAR_SHARE, lockstep_share=_CLEAR_LOCKSTEP_SHARE)
    if measured is None or clear is None:
        return None
    now = 0 if standing is None else standing.lag
    if measured > now or now > bound + 1:  # more than that has no effect, and would take long to come down from
        return measured
    is_held = standing is None or snapshot.now_s < standing.at_s + settings.credit_hold_s
    return now - 1 if clear < now and not is_held else None


def _reckoned(seen: LagSeen, *, bound: int, share: float, lockstep_share: float) -> int | None:
    """The lag that at most this share of the groups exceeds; None: too little was seen."""
    lag, often = seen.beyond(share), seen.beyond(lockstep_share)
    if lag is None or often is None:
        return None
    return min(lag, bound + 1) if lag < bound else min(max(often, bound - 1), bound + 1)
