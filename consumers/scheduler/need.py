"""Whether anybody needs a version that was staged: a pure function.

Role: need-driven publishing. `waves` asks it before it publishes a newer version; a version that is held is skipped as
soon as a newer one takes its place.
Data in: a snapshot with a publish command in force. Data out: why the newest staged version is not published yet; None:
publish it.
Invariants: no hold lets an engine come to the bound. While a version is held one more is made, and while that one
travels as many more as the learner makes in that time; an engine that would then lack max(1, max_staleness) or more is
a reason to publish now. From that many on engines fetch by themselves, so they are never driven to it. What is not
known (a time, an age, the bound) is a reason to publish, and so is an engine that serves nothing, or a version of
another lineage. Where publishing is cheap, by `publish_cheap_share` of a step, every version is published. After the
last step no sample can use a version, so none is published.
Failure: none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Publishing, Snapshot
from consumers.scheduler.stage_clock import STEP
from schemas.records import Version

# A version that comes within this part of the time that a publish takes is worth waiting for: engines then serve it
# sooner than if they had to fetch this one first.
_SOON_SHARE = 0.25


def why_held(snapshot: Snapshot, settings: SchedulerSettings, *, standing: Publishing) -> str | None:
    """See the module."""
    newest = snapshot.newest_staged
    if newest is None:
        return None
    if is_without_use(snapshot):
        return "no sample can be made with it any more"
    engines = [
        one for one in snapshot.instances if one.stage == "rollout" and one.age_s(snapshot.now_s) <= settings.silence_s
    ]
    behind = _behind(engines, newest)
    step, publish_s = snapshot.times.get(STEP), snapshot.publish_s
    if behind is None or step is None or publish_s is None or not is_safe(snapshot, behind=behind):
        return None
    within = settings.publish_within_versions
    if behind <= within:
        return f"no engine is more than {behind} behind, {within} are allowed"
    if publish_s < settings.publish_cheap_share * step.typical_s:
        return None
    return _fetching(snapshot, engines, standing=standing, limit_s=settings.wave_limit_s) or _soon(snapshot)


def is_without_use(snapshot: Snapshot) -> bool:
    """Whether the run has done its last step."""
    return snapshot.steps_left == 0


def is_safe(snapshot: Snapshot, *, behind: int) -> bool:
    """Whether engines that lack so many versions may wait for the next one; what is not known is no."""
    step, publish_s, bound = snapshot.times.get(STEP), snapshot.publish_s, snapshot.max_staleness
    if step is None or publish_s is None or bound is None or step.typical_s <= 0:
        return False
    made_meanwhile = publish_s / step.typical_s
    return math.isfinite(made_meanwhile) and behind + 1 + math.ceil(made_meanwhile) < max(1, bound)


def _behind(engines: Sequence[InstanceSeen], newest: Version) -> int | None:
    """Versions that the engine furthest behind lacks; None: there is no engine, or one that cannot be compared."""
    lags: list[int] = []
    for one in engines:
        if one.version is None or one.version.lineage != newest.lineage:
            return None
        lags.append(max(0, newest.step - one.version.step))
    return max(lags, default=None)


def _fetching(
    snapshot: Snapshot, engines: Sequence[InstanceSeen], *, standing: Publishing, limit_s: float
) -> str | None:
    """Engines that are still bringing in the version in force; one that takes too long holds nothing up."""
    names = [
        one.instance
        for one in engines
        if one.version is not None
        and one.version < standing.version
        and snapshot.now_s - standing.released_s.get(one.instance, snapshot.now_s) < limit_s
    ]
    return f"{', '.join(names)} still fetches or loads {standing.version}" if names else None


def _soon(snapshot: Snapshot) -> str | None:
    """Whether the next version will be there in a moment; one that is overdue is not waited for."""
    step, publish_s, since_s = snapshot.times.get(STEP), snapshot.publish_s, snapshot.newest_since_s
    if step is None or publish_s is None or since_s is None:
        return None
    wait_s = since_s + step.typical_s - snapshot.now_s
    if not 0 <= wait_s <= _SOON_SHARE * publish_s:
        return None
    return f"the next one is due in {wait_s:.2g} s, and a publish takes {publish_s:.2g} s"
