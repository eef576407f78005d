"""The way of policy versions from the optimizer to the engines.

Data in: manifests with the time of their record; events of the learner, the scheduler and the rollouts, each with its
time. Data out: `VersionPicture`s.
Invariants: at most `MOST` versions are kept, and when there are more every second one of the older half is let go, so
the picture of a long run reaches back to its beginning; the first time counts.
Failure: none; a version that cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ops.live.picture import ProcessPicture, VersionPicture
from schemas.records import Manifest, StageEvent, Version

MOST = 256
_MOST_ENGINES = 64


@dataclass
class _Way:
    trained_ms: int | None = None
    staged_ms: int | None = None
    published_ms: int | None = None
    commanded_ms: int | None = None
    served_ms: dict[str, int] = field(default_factory=dict)
    num_bytes: int | None = None
    encoding: str = ""
    fetched_s: dict[str, float] = field(default_factory=dict)
    fetched_bytes: dict[str, int] = field(default_factory=dict)


class Versions:
    """Call `add_manifest` and `add_event`."""

    def __init__(self) -> None:
        self._ways: dict[Version, _Way] = {}
        self._served: dict[str, Version] = {}  # instance -> the newest it said

    @property
    def newest(self) -> Version | None:
        """The newest version with a manifest."""
        return max((version for version, way in self._ways.items() if way.published_ms is not None), default=None)

    def add_manifest(self, manifest: Manifest, *, unix_ms: int) -> None:
        """A manifest became readable; `unix_ms` of its record."""
        way = self._way(manifest.version)
        if way.published_ms is None:
            way.published_ms = unix_ms
            way.encoding, way.num_bytes = manifest.encoding, num_bytes_of(manifest)

    def add_event(self, event: StageEvent, *, at_ms: int) -> None:
        """What a process said, when."""
        if event.stage == "learner":
            self._add_learner(event, at_ms=at_ms)
        elif event.stage == "rollout" and event.version is not None:
            self._add_served(event.version, instance=event.instance, at_ms=at_ms)
            if event.name == "swapped":
                self._add_fetched(event, version=event.version)
        elif event.stage == "scheduler" and event.name == "commanded" and event.details.get("kind") == "publish":
            version = parse_version(event.details.get("version", ""))
            if version is not None:
                way = self._way(version)
                way.commanded_ms = at_ms if way.commanded_ms is None else way.commanded_ms

    def pictures(self) -> tuple[VersionPicture, ...]:
        """All that are kept, oldest first."""
        return tuple(
            VersionPicture(
                version=version,
                trained_ms=way.trained_ms,
                staged_ms=way.staged_ms,
                published_ms=way.published_ms,
                commanded_ms=way.commanded_ms,
                served_ms=dict(way.served_ms),
                num_bytes=way.num_bytes,
                encoding=way.encoding,
                fetched_s=dict(way.fetched_s),
                fetched_bytes=dict(way.fetched_bytes),
            )
            for version, way in sorted(self._ways.items())
        )

    def _add_learner(self, event: StageEvent, *, at_ms: int) -> None:
        """The optimizer's step ends where staging begins; until the new version is published, the old one is told."""
        if event.kind == "phase_began" and event.name == "staging_weights" and event.version is not None:
            way = self._way(Version(lineage=event.version.lineage, step=event.version.step + 1))
            way.trained_ms = at_ms if way.trained_ms is None else way.trained_ms
        elif event.kind == "phase_began" and event.name == "publishing" and event.version is not None:
            way = self._way(Version(lineage=event.version.lineage, step=event.version.step + 1))
            way.staged_ms = at_ms if way.staged_ms is None else way.staged_ms

    def _add_served(self, version: Version, *, instance: str, at_ms: int) -> None:
        if self._served.get(instance) == version:
            return
        if instance not in self._served and len(self._served) >= _MOST_ENGINES:
            self._served.pop(next(iter(self._served)))
        self._served[instance] = version
        self._way(version).served_ms.setdefault(instance, at_ms)

    def _add_fetched(self, event: StageEvent, *, version: Version) -> None:
        """An engine that passed over versions fetches what they changed, too."""
        seconds, num = event.gauges.get("fetch_s"), event.gauges.get("num_deltas", 0.0)
        if seconds is None or not 0 <= num < MOST:
            return
        steps = range(version.step - max(1, int(num)) + 1, version.step + 1)
        ways = [self._ways.get(Version(lineage=version.lineage, step=step)) for step in steps]
        if num == 0 and self._way(version).encoding == "delta":
            return  # it took the whole, whose size is not known here
        sizes = [way.num_bytes for way in ways if way is not None and way.num_bytes is not None]
        if len(sizes) == len(ways):
            self._way(version).fetched_s[event.instance] = seconds
            self._way(version).fetched_bytes[event.instance] = sum(sizes)

    def _way(self, version: Version) -> _Way:
        if version not in self._ways:
            if len(self._ways) >= MOST:
                self._thin()
            self._ways[version] = _Way()
        return self._ways[version]

    def _thin(self) -> None:
        for version in sorted(self._ways)[: MOST // 2 : 2]:
            del self._ways[version]


def versions_behind(processes: Iterable[ProcessPicture], versions: Sequence[VersionPicture]) -> float | None:
    """Versions by which the engine furthest behind lacks the newest one, both as of this picture; None: not known."""
    newest = max((each.version for each in versions if each.published_ms is not None), default=None)
    served = [each.version for each in processes if each.stage == "rollout" and each.standing == "at work"]
    if newest is None or not served or any(each is None or each.lineage != newest.lineage for each in served):
        return None
    return float(max(max(0, newest.step - each.step) for each in served if each is not None))


def parse_version(text: str) -> Version | None:
    """`1.140` as a version; None: it is none."""
    lineage, point, step = text.partition(".")
    if point and lineage.isdecimal() and step.isdecimal() and len(text) < 32:
        return Version(lineage=int(lineage), step=int(step))
    return None


def num_bytes_of(manifest: Manifest) -> int:
    """Bytes that an engine fetches which has the version's base."""
    if manifest.delta_bytes:
        return manifest.delta_bytes
    parts = manifest.delta_chunks if manifest.delta_chunks else manifest.chunks
    return sum(chunk.num_bytes for chunk in parts) if parts else manifest.num_bytes
