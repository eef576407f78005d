"""From a wished number of replicas to scale commands: the rules that hold whatever the policy wishes.

Role: shared by the policies that scale.
Data in: a snapshot, and a wish per target. Data out: drafts of kind `scale`.
Invariants: within the bounds of the run file and the room that the others leave in a pool; up by half of what there is
at most (at least by one), down by one; not before the last change has been carried out, and not within its cool-down,
which is longer for going down, and longest for what takes long to start; nothing while a wish is unknown, or in the
first seconds of listening.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Scalable, Snapshot
from consumers.scheduler.stage_clock import STARTING


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How many replicas there should be, and why."""

    replicas: int
    reason: str
    assumed: Mapping[str, str] = field(default_factory=dict)


class Wishes(Protocol):
    """What a policy wishes for one target; None: it is not known, or as it is."""

    def __call__(self, snapshot: Snapshot, target: Scalable, *, settings: SchedulerSettings) -> Wish | None: ...


def scale(snapshot: Snapshot, settings: SchedulerSettings, *, wishes: Wishes) -> Iterator[CommandDraft]:
    """Drafts for what is to change."""
    if snapshot.observed_s < max(settings.settle_s, settings.rate_window_s):
        return
    for target in snapshot.fleet:
        wish = wishes(snapshot, target, settings=settings)
        if wish is None:
            continue
        now = snapshot.replicas_wanted(target)
        replicas = _bounded(wish.replicas, now=now, least=target.least, most=snapshot.room(target))
        if replicas == now or _must_wait(snapshot, target, up=replicas > now, settings=settings):
            continue
        yield CommandDraft(
            target=target.target,
            kind="scale",
            replicas=replicas,
            reason=f"{now} to {replicas}: {wish.reason}",
            assumed={"replicas": str(now), **wish.assumed},
        )


def _bounded(wished: int, *, now: int, least: int, most: int) -> int:
    """What may be commanded now on the way to a wish."""
    within = min(max(wished, now - 1), now + max(1, now // 2))
    return max(min(within, most), least)


def _must_wait(snapshot: Snapshot, target: Scalable, *, up: bool, settings: SchedulerSettings) -> bool:
    if snapshot.replicas_heard(target, silence_s=settings.silence_s) != snapshot.replicas_wanted(target):
        return True
    last = snapshot.standing.scale.get(target.target)
    cool_down_s = settings.scale_up_cool_down_s if up else _keep_s(snapshot, target, settings=settings)
    return last is not None and snapshot.now_s < last.at_s + cool_down_s


def _keep_s(snapshot: Snapshot, target: Scalable, *, settings: SchedulerSettings) -> float:
    """How long processes that are too many are kept: as long as a few starts of one take, where that was measured."""
    start = snapshot.times.get((target.stage, STARTING))
    warm_s = 0.0 if start is None else settings.keep_warm_starts * start.typical_s
    return max(settings.scale_down_cool_down_s, warm_s)
