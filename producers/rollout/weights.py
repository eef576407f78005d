"""Keeps an engine on the right weights.

Role: chooser, background staging and the load between two decode steps, put together.
Data in: control topics, chunks of peers; data out: an engine that serves a published version.
Invariants: the engine generates while a version is fetched and verified; the pause covers the load only (promise 10);
the version reported is the engine's own, after the load (promise 9). A version that is staged is loaded when the
engine's wave is released; until then the next one that is asked for takes its place (`Staging`: the state staged last
is changed in place by the next fetch). A fetch is superseded when what it brings has become useless (void, or beyond
the staleness bound); one that is still of use is finished first, since a link slower than the steps would otherwise
never finish one.
Failure: a failed fetch or load leaves the old version serving, is told once as a notice, and is tried again with a
pause that doubles.
"""

from __future__ import annotations

from pipeline.engines.base import Engine
from pipeline.flow import WeightHops
from pipeline.stage import StageContext
from pipeline.weights.staging import Staged, Staging
from producers.rollout.chooser import VersionChooser
from producers.rollout.settings import RolloutSettings
from schemas.errors import EngineError, FetchCancelled, RlweaveError
from schemas.records import Version

MOST_BEHIND = 64
_MAX_DOUBLING = 20.0  # of the pause after a failure


class WeightSync:
    """See the module. Called from the engine's thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        chooser: VersionChooser,
        staging: Staging,
        context: StageContext,
        settings: RolloutSettings,
    ) -> None:
        self._engine = engine
        self._chooser = chooser
        self._staging = staging
        self._context = context
        self._settings = settings
        self._hops = WeightHops(context.metrics, clock=context.clock)
        self._pause_s = settings.fetch_retry_s
        self._not_before_s = context.clock.monotonic()
        self._ready: Staged | None = None  # staged, and held back
        self._arrived_s = 0.0  # when it was

    @property
    def may_take_prompts(self) -> bool:
        """Whether the engine serves a version whose samples can be trained."""
        return self._chooser.may_take_prompts(self._engine.version)

    @property
    def behind(self) -> str:
        """Published versions that the engine lacks; a label, so they end at `MOST_BEHIND`."""
        return str(min(self._chooser.versions_behind(self._engine.version), MOST_BEHIND))

    def advance(self) -> None:
        """Load what is staged when that is allowed, and begin the fetch that is due. Never waits for a fetch."""
        staged = self._staging.poll()
        if staged is not None:
            self._arrived(staged)
        self._load_ready()
        fetching = self._staging.version
        if fetching is not None and not self._chooser.is_useful(fetching):
            self._context.events.notice("fetch_superseded", details={"version": str(fetching)})
            self._staging.cancel()
            fetching = None
        if fetching is None and self._context.clock.monotonic() >= self._not_before_s:
            self._begin()
        self._report()

    def close(self) -> None:
        """Give up what is being fetched."""
        self._staging.close()

    def _arrived(self, staged: Staged) -> None:
        if staged.refused is not None:
            details = {"version": str(staged.manifest.version), "why": staged.refused}
            self._context.events.notice("delta_refused", details=details)
        if staged.error is not None:
            if not isinstance(staged.error, FetchCancelled):
                self._failed("fetch_failed", version=staged.manifest.version, error=staged.error)
            return
        if staged.result is not None:
            self._context.metrics.observe("fetch_s", staged.result.seconds)
            self._context.metrics.count("weight_bytes", staged.result.bytes_fetched, direction="received")
            for notice in staged.result.notices:
                self._context.events.notice("peer_fault", details={"fault": notice})
        self._hops.fetched(seen_s=self._chooser.seen_s(staged.manifest.version))
        self._ready, self._arrived_s = staged, self._context.clock.monotonic()

    def _load_ready(self) -> None:
        ready = self._ready
        if ready is not None and self._chooser.may_load(ready.manifest.version, served=self._engine.version):
            self._ready = None
            self._load(ready)

    def _begin(self) -> None:
        """Begin to fetch what is wanted now, unless that is what is held back already."""
        target = self._chooser.choose(self._engine.version)
        held = None if self._ready is None else self._ready.manifest.version
        if target is None or target.version == held:
            return
        if held is not None:
            self._ready = None  # its tensors are about to be changed
            self._context.events.notice("stage_superseded", details={"version": str(held), "by": str(target.version)})
        chooser = self._chooser
        self._staging.begin(target, published=chooser.published, rate_bytes_s=chooser.rate_bytes_s)

    def _load(self, staged: Staged) -> None:
        version, clock = staged.manifest.version, self._context.clock
        if staged.state is None:
            return
        with self._context.events.phase("swapping"):
            began_s = clock.monotonic()
            try:
                self._engine.load(version, staged.state)
            except EngineError as error:
                self._failed("load_failed", version=version, error=error)
                return
            self._context.metrics.observe("swap_pause_s", clock.monotonic() - began_s)
            self._context.events.version = self._engine.version  # what is told of the swap tells the new version
        self._hops.serving(staged.manifest, seen_s=self._chooser.seen_s(version))
        self._pause_s = self._settings.fetch_retry_s
        held_s = max(0.0, began_s - self._arrived_s)
        gauges = {"num_deltas": float(staged.num_deltas), "held_s": held_s, **_fetched(staged)}
        self._context.events.notice("swapped", details={"version": str(version)}, **gauges)

    def _failed(self, name: str, *, version: Version, error: RlweaveError) -> None:
        details = {"version": str(version), "error": error.message, "hint": error.hint}
        self._context.events.notice(name, details=details, retry_in_s=self._pause_s)
        self._not_before_s = self._context.clock.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._settings.fetch_retry_s * _MAX_DOUBLING)

    def _report(self) -> None:
        served, metrics = self._engine.version, self._context.metrics
        self._context.events.version = served
        metrics.gauge("versions_behind", self._chooser.versions_behind(served))
        if served is not None:
            metrics.gauge("version_step", served.step)
            metrics.gauge("version_lineage", served.lineage)


def _fetched(staged: Staged) -> dict[str, float]:
    """What the scheduler reckons a publish by."""
    return {} if staged.result is None else {"fetch_s": staged.result.seconds}
