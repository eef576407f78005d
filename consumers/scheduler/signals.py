"""What the scheduler knows, folded into one frozen snapshot.

Role: folds events, manifests, the ledger and lag into the input of the decision.
Data in and out: records with the local monotonic time at which they were read; a `Snapshot` out.
Invariants: ages are by the local clock only, a sender's clock is never compared with ours (promise 13); unknown is
None, never 0; an event older than one already seen of its instance changes nothing. A manifest counts as staged once
the ledger shows its step as trained in the surviving history, so a false one is never published.
Failure: none; a gauge that cannot be read is left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from consumers.scheduler.publish_cost import PublishCost
from consumers.scheduler.publish_lag import PublishLag
from consumers.scheduler.shares import Shares
from consumers.scheduler.snapshot import InstanceSeen, LagKey, Snapshot, Standing, owner_of
from consumers.scheduler.stage_clock import PhaseTimes, Rates
from pipeline.history import LedgerView
from schemas.records import StageEvent, Version

_DOMAIN = "domain"  # label in heartbeats


class Signals:
    """The folding side.

    Args:
        began_s: local time at which listening began.
        ledger: kept up to date by the caller.
        rate_window_s: rates are over this long.
    """

    def __init__(self, *, began_s: float, ledger: LedgerView, rate_window_s: float = 30.0) -> None:
        self._began_s = began_s
        self._times = PhaseTimes()
        self._rates = Rates(window_s=rate_window_s, began_s=began_s)
        self._shares = Shares(window_s=rate_window_s)
        self._ledger = ledger
        self._instances: dict[str, InstanceSeen] = {}
        self._stopped_s: dict[str, float] = {}
        self._staged: dict[Version, tuple[float | None, int | None]] = {}  # when it was seen, bytes on the way
        self._publish_lag = PublishLag()
        self._publish_cost = PublishCost()

    def add_event(self, event: StageEvent, *, now_s: float) -> None:
        """Take in one event, read at `now_s`; what an instance says after its good-bye does not bring it back."""
        if event.instance in self._stopped_s:
            return
        seen = self._instances.get(event.instance)
        if seen is not None and event.seq <= seen.seq:
            return
        self._times.add(event, now_s=now_s)
        self._shares.add(event, now_s=now_s)
        if event.stage == "rollout":
            self._publish_lag.add(event, newest=self._newest_made())
            self._publish_cost.add(event, sizes={version: size for version, (_, size) in self._staged.items()})
        if event.kind == "notice" and event.name == "stopped":
            self._instances.pop(event.instance, None)
            self._stopped_s[event.instance] = now_s
            self._forget(event.instance)
            return
        if seen is None:
            seen = InstanceSeen(
                stage=event.stage,
                instance=event.instance,
                phase="",
                phase_since_s=now_s,
                heard_s=now_s,
                began_s=now_s,
                seq=event.seq,
            )
        seen = replace(
            seen, heard_s=now_s, seq=event.seq, version=event.version if event.version is not None else seen.version
        )
        if event.kind == "heartbeat":
            finite = {name: value for name, value in event.gauges.items() if math.isfinite(value)}
            seen = replace(seen, gauges=finite, domain=event.details.get(_DOMAIN, seen.domain))
            self._rates.add(event.instance, owner_of(seen), gauges=finite, now_s=now_s)
        self._instances[event.instance] = _with_phase(seen, _phase_of(event), now_s=now_s)

    def add_manifest(self, version: Version, *, seen_s: float | None = None, num_bytes: int | None = None) -> None:
        """A version has a manifest, read at `seen_s`, and is so many bytes on the way."""
        self._staged.setdefault(version, (seen_s, num_bytes))

    def prune_manifest(self, version: Version) -> None:
        """Its manifest was taken back."""
        self._staged.pop(version, None)

    @property
    def listed(self) -> Collection[Version]:
        """Versions with a manifest, whoever wrote it."""
        return self._staged.keys()

    def forget_silent(self, *, now_s: float, after_s: float) -> list[str]:
        """Drop instances that were not heard of for longer than `after_s`; returns their names."""
        gone = [name for name, seen in self._instances.items() if seen.age_s(now_s) > after_s]
        for name in gone:
            del self._instances[name]
            self._forget(name)
        self._stopped_s = {name: at_s for name, at_s in self._stopped_s.items() if now_s - at_s <= after_s}
        return gone

    def reward_groups(self) -> list[str]:
        """Consumer groups of the rewards heard of."""
        rewards = (seen.reward for seen in self._instances.values())
        return sorted({reward.group for reward in rewards if reward is not None})

    def snapshot(self, *, now_s: float, lag: Mapping[LagKey, int | None], standing: Standing) -> Snapshot:
        """Everything, as of `now_s`."""
        instances = tuple(self._instances[name] for name in sorted(self._instances))
        times, newest = self._times.times(), self._newest_made()
        since_s, num_bytes = (None, None) if newest is None else self._staged[newest]
        return Snapshot(
            now_s=now_s,
            observed_s=now_s - self._began_s,
            instances=instances,
            stopped=frozenset(self._stopped_s),
            staged=tuple(sorted(version for version in self._staged if self._ledger.is_made(version))),
            horizon=self._ledger.horizon,
            newest_since_s=since_s,
            publish_s=self._publish_cost.publish_s(num_bytes, times=times),
            publish_lag=self._publish_lag.seen(),
            lag=dict(lag),
            times=times,
            rates=self._rates.per_s(now_s),
            late_rates=self._rates.per_s(now_s, part=0.5),
            shares=self._shares.of_phases(instances, now_s=now_s),
            slot_use=self._shares.of_slots(instances, now_s=now_s),
            standing=standing,
        )

    def _newest_made(self) -> Version | None:
        return max((version for version in self._staged if self._ledger.is_made(version)), default=None)

    def _forget(self, instance: str) -> None:
        self._publish_lag.forget(instance)
        self._times.forget(instance)
        self._rates.forget(instance)
        self._shares.forget(instance)


def _phase_of(event: StageEvent) -> str | None:
    """The phase an event shows; None when it shows none."""
    if event.kind == "phase_began":
        return event.name
    if event.kind == "heartbeat":
        return event.details.get("phase")
    return None


def _with_phase(seen: InstanceSeen, phase: str | None, *, now_s: float) -> InstanceSeen:
    if phase is None or phase == seen.phase:
        return seen
    return replace(seen, phase=phase, phase_since_s=now_s)
