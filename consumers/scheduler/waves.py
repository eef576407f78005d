"""In which order engines load a version, so that a set share of them goes on generating: pure.

Role: the part of the built-in policy that publishes. All engines fetch and verify at once; a wave only gives leave to
load, which is when an engine stands still.
Data in and out: a `Snapshot` and the settings in; the publish command that should follow the one in force out.
Invariants: a command never makes more engines wait for each other than `num_at_once` allows; those that have leave
from the command before and have not used it yet are among them, and come first. A wave is released when those before
it serve the version (or a newer one), are silent or gone, or had leave for `wave_limit_s`. Waves that are not released
are cut anew at each release, so they follow who comes and goes. Engines that serve nothing yet generate nothing: they
load without leave (`producers.rollout.chooser`), nobody waits for them, and they get leave for more when they serve.
Failure: none. After a restart, what stands is held until the engines it names were heard, for at most `settle_s`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from consumers.scheduler.need import why_held
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Publishing, Snapshot
from pipeline.waves import is_released, is_target
from schemas.records import Version

_NONE = Version(lineage=0, step=0)  # older than any
_ROUNDING = 1e-9  # 0.1 * 30 is a little more than 3


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A rollout producer that counts."""

    name: str
    version: Version | None  # None: it serves nothing yet
    domain: str = ""

    def serves(self, version: Version) -> bool:
        """Whether it has come to this version."""
        return self.version is not None and self.version >= version


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to publish next, and why."""

    publish: Publishing
    reason: str


def next_publish(snapshot: Snapshot, settings: SchedulerSettings) -> Step | None:
    """A newer version, or the next wave of the one in force; None: nothing is due."""
    newest, standing = snapshot.newest_staged, snapshot.standing.publish
    if standing is not None and snapshot.horizon is not None and standing.version > snapshot.horizon:
        standing = None  # nobody made that version, so nobody follows the command
    if standing is not None and _is_unsettled(snapshot, standing, settle_s=settings.settle_s):
        return None
    crew = _Crew(snapshot, settings, standing=standing)
    if newest is not None and (standing is None or newest > standing.version):
        held = None if standing is None else why_held(snapshot, settings, standing=standing)
        if held is None:
            return crew.begin(newest)
    return None if standing is None else crew.release(standing)


def num_at_once(num_generating: int, share: float) -> int:
    """Engines that may stand still at a time, of those that generate; 1 at least, and never all of several."""
    num_kept = max(math.ceil(share * num_generating - _ROUNDING), 1)
    return max(1, num_generating - num_kept)


def _skipped(version: Version, *, after: Version | None) -> str:
    """For people: versions in between that were never published."""
    if after is None or after.lineage != version.lineage or version.step - after.step < 2:
        return ""
    return f"; after {after}, those in between are skipped"


class _Crew:
    """The engines there are, seen from one command in force."""

    def __init__(self, snapshot: Snapshot, settings: SchedulerSettings, *, standing: Publishing | None) -> None:
        self._now_s = snapshot.now_s
        self._limit_s = settings.wave_limit_s
        self._standing = standing
        engines = _in_order(_engines(snapshot, silence_s=settings.silence_s))
        self._warm = [engine for engine in engines if engine.version is not None]
        self._cold = [engine for engine in engines if engine.version is None]
        self._num_at_once = num_at_once(len(self._warm), settings.keep_generating_share)

    def begin(self, version: Version) -> Step:
        """Publish a newer version. Who has leave from before keeps it."""
        behind = [engine for engine in self._warm if not engine.serves(version)]
        out = [engine for engine in behind if self._is_out(engine)]
        rest = [engine for engine in behind if engine not in out]
        num_more = max(0, self._num_at_once - sum(not self._is_overdue(engine) for engine in out))
        first, later = rest[:num_more], (*self._cut(rest[num_more:]), *self._cut(self._cold))
        names = _names([*out, *first])
        publish = Publishing(
            version=version,
            waves=(names, *later) if names or later else (),
            released_s=self._leave(out, new=_names(first)),
        )
        said = f", in {len(publish.waves)} waves" if len(publish.waves) > 1 else ""
        skipped = _skipped(version, after=None if self._standing is None else self._standing.version)
        return Step(publish=publish, reason=f"version {version} is staged and is the newest{said}{skipped}")

    def release(self, standing: Publishing) -> Step | None:
        """The next wave of the version in force, when it is time for one."""
        if standing.wave >= len(standing.waves) - 1:
            return None
        out = [engine for engine in self._warm if self._is_out(engine)]
        if any(not self._is_overdue(engine) for engine in out):
            return None
        waiting = [engine for engine in self._warm if self._waits(engine, standing)]
        cold = [engine for engine in self._cold if self._waits(engine, standing)]
        if cold and not waiting:
            return None  # they need no leave
        new, *later = (*self._cut(waiting), *self._cut(cold)) or ((),)
        released = (*standing.released, *([new] if new else []))
        publish = replace(
            standing,
            waves=(*released, *later),
            wave=len(released) - 1,
            released_s=self._leave(out, new=new),
        )
        return Step(publish=publish, reason=_why(publish, late=_names(out), limit_s=self._limit_s))

    def _leave(self, out: Sequence[Engine], *, new: Sequence[str]) -> dict[str, float]:
        """Since when leave has not been used; what was given before counts, or an engine that keeps failing would be
        waited for at every version."""
        return {engine.name: self._since_s(engine.name) for engine in out} | dict.fromkeys(new, self._now_s)

    def _waits(self, engine: Engine, standing: Publishing) -> bool:
        """Whether an engine still needs leave for the version in force."""
        listed = any(engine.name in names for names in standing.released)
        return is_target(engine.name, targets=standing.targets) and not listed and not engine.serves(standing.version)

    def _is_out(self, engine: Engine) -> bool:
        """Whether an engine has leave for the version in force and does not serve it."""
        standing = self._standing
        if standing is None or engine.serves(standing.version):
            return False
        return is_released(engine.name, targets=standing.targets, waves=standing.waves, wave=standing.wave)

    def _is_overdue(self, engine: Engine) -> bool:
        return self._now_s - self._since_s(engine.name) >= self._limit_s

    def _since_s(self, name: str) -> float:
        since_s = None if self._standing is None else self._standing.released_s.get(name)
        return self._now_s if since_s is None else since_s

    def _cut(self, engines: Sequence[Engine]) -> list[tuple[str, ...]]:
        size = self._num_at_once
        return [_names(engines[begin : begin + size]) for begin in range(0, len(engines), size)]


def _is_unsettled(snapshot: Snapshot, standing: Publishing, *, settle_s: float) -> bool:
    """Whether engines that the command in force names may still be heard for the first time; those of an earlier
    lineage load without leave."""
    if snapshot.observed_s >= settle_s:
        return False
    if snapshot.horizon is not None and standing.version.lineage < snapshot.horizon.lineage:
        return False
    heard = {one.instance for one in snapshot.instances}
    return any(name not in heard and name not in snapshot.stopped for names in standing.waves for name in names)


def _engines(snapshot: Snapshot, *, silence_s: float) -> list[Engine]:
    """Rollout producers heard of lately."""
    return [
        Engine(name=one.instance, version=one.version, domain=one.domain)
        for one in snapshot.instances
        if one.stage == "rollout" and one.age_s(snapshot.now_s) <= silence_s
    ]


def _in_order(engines: Sequence[Engine]) -> list[Engine]:
    """Furthest behind first; of those equally far one of each domain, then the second of each; by name at last."""
    ranks: Counter[tuple[Version | None, str]] = Counter()
    keys: dict[str, tuple[Version, int, str]] = {}
    for engine in sorted(engines, key=lambda one: one.name):
        version = engine.version if engine.version is not None else _NONE
        keys[engine.name] = (version, ranks[version, engine.domain], engine.name)
        ranks[version, engine.domain] += 1
    return sorted(engines, key=lambda one: keys[one.name])


def _names(engines: Sequence[Engine]) -> tuple[str, ...]:
    return tuple(engine.name for engine in engines)


def _why(publish: Publishing, *, late: Sequence[str], limit_s: float) -> str:
    waited = f"; {', '.join(late)} had leave for {limit_s:g} s and did not use it" if late else ""
    return f"wave {publish.wave + 1} of {len(publish.waves)}: the engines before it are done or gone{waited}"
