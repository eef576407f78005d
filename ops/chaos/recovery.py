"""Waits until a run has got over a fault, and measures how long that took.

A run has got over it when (1) every process of it has been heard since the fault ended and is past its start, and
(2) so many steps were trained since then that every stage has had a part in one: a group that is trained must have been
admitted, sampled, scored and joined, and only so many may be open at a time.
Time to recover: from the end of the fault to the first step after (1). Stall: the longest time without a step, from
the moment the fault was brought about.
Failure: none; past its limit the wait ends with what every process was doing: a hang, with names.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise

from ops.chaos.world import World

_POLL_S = 0.1
_MOST_SCALE = 4.0


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a run got over a fault."""

    recovery_s: float
    stall_s: float
    hang: str = ""  # what was waited for; empty: the run goes on


def wait_recovered(world: World, *, began_s: float, healed_s: float) -> Recovery:
    """See the module.

    Args:
        began_s: when the fault was brought about, on the monotonic clock.
        healed_s: when it ended.

    Raises:
        RunEnded: the run ended by itself.
    """
    limit_s = world.settings.limits.recovery_s * busy_scale()
    back_s: float | None = None
    while True:
        world.check_running()
        absent = absent_programs(world, since_s=healed_s)
        if back_s is None and not absent:
            back_s = time.monotonic()
        num_steps = 0 if back_s is None else world.watch.num_steps(since_s=back_s)
        if num_steps >= world.settings.limits.proof_steps:
            break
        if time.monotonic() - healed_s > limit_s:
            return _hang(world, began_s=began_s, healed_s=healed_s, absent=absent)
        time.sleep(_POLL_S)
    first_s = world.watch.step_times(since_s=healed_s if back_s is None else back_s)[0]
    return Recovery(recovery_s=first_s - healed_s, stall_s=_stall_s(world, began_s=began_s, end_s=first_s))


def absent_programs(world: World, *, since_s: float) -> list[str]:
    """Programs without a process that was heard since then and is past its start."""
    absent = []
    for name in world.crew.names():
        seen = world.watch.seen(world.crew.pid(name))
        if seen.heard_s < since_s or not seen.is_past_start:
            absent.append(name)
    return absent


def busy_scale() -> float:
    """How much longer things take than on an idle machine: its load per core, between 1 and 4."""
    cores = os.cpu_count()
    return min(_MOST_SCALE, max(1.0, os.getloadavg()[0] / (1 if cores is None else cores)))


def _hang(world: World, *, began_s: float, healed_s: float, absent: list[str]) -> Recovery:
    now_s = time.monotonic()
    doing = []
    for name in world.crew.names():
        seen = world.watch.seen(world.crew.pid(name))
        heard = f"heard {now_s - seen.heard_s:.0f} s ago" if seen.heard_s else "never heard"
        doing.append(f"{name} {seen.phase or '-'} ({heard}, turn {seen.turn_age_s:.0f} s)")
    missing = f"not back: {', '.join(absent)}; " if absent else ""
    steps = world.watch.num_steps(since_s=healed_s)
    text = f"{steps} steps in {now_s - healed_s:.0f} s after the fault; {missing}{'; '.join(doing)}"
    stall_s = _stall_s(world, began_s=began_s, end_s=now_s)
    return Recovery(recovery_s=now_s - healed_s, stall_s=stall_s, hang=text)


def _stall_s(world: World, *, began_s: float, end_s: float) -> float:
    times = [began_s, *(at_s for at_s in world.watch.step_times(since_s=began_s) if at_s < end_s), end_s]
    return max(later - earlier for earlier, later in pairwise(times))
