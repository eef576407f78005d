"""Which policy version an engine should serve: pure decisions over what the control topics say.

Role: follows the scheduler's publish command; goes its own way when the scheduler is silent or the engine falls behind.
Data in: manifests, lineages, commands, the version served; data out: the manifest to fetch, or none.
Invariants: only versions of the surviving history are served or fetched; an engine never goes back to an older
version, except to leave an abandoned branch (promise 3). Unasked fetches wait for a random part of `stagger_s` each, so
that engines do not storm the source together (design, section 4). Time is monotonic (promise 13).
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from pipeline.settings import RunSettings
from producers.control import Control
from producers.rollout.settings import RolloutSettings
from schemas.records import Manifest, Version
from topics.clock import Clock


class VersionChooser:
    """Decides for one engine.

    Args:
        rng: of this engine's own offsets.
    """

    def __init__(
        self, control: Control, *, run: RunSettings, settings: RolloutSettings, clock: Clock, rng: Random
    ) -> None:
        self._control = control
        self._run = run
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._unasked_s: float | None = None  # when the next unasked fetch may begin; None: none is needed
        self._served: Version | None = None

    @property
    def published(self) -> Mapping[Version, Manifest]:
        """Manifests that were not pruned: what the way to a version may lead over."""
        return self._control.manifests

    def survives(self, version: Version) -> bool:
        """Whether the surviving history contains the version."""
        return self._control.ledger.lineages.survives(version.lineage, version.step)

    def versions_behind(self, served: Version | None) -> int:
        """Published surviving versions that are newer than the one served; all of them when that one is void."""
        floor = served if served is not None and self.survives(served) else None
        alive = (version for version in self._control.manifests if self.survives(version))
        return sum(1 for version in alive if floor is None or version > floor)

    def may_take_prompts(self, served: Version | None) -> bool:
        """Whether samples made now could be trained: a published version of the surviving history, within the bound."""
        if served is None or not self.survives(served):
            return False
        return self._run.on_stale == "train" or self.versions_behind(served) <= self._run.max_staleness

    def is_useful(self, version: Version) -> bool:
        """Whether a fetch of this version is worth finishing: prompts could be taken with it."""
        return self.may_take_prompts(version)

    def is_degraded(self, served: Version | None) -> bool:
        """Whether the engine must look after itself: no word of the scheduler, or max(1, eta) versions behind."""
        if self._control.commands.silence_s >= self._settings.scheduler_silence_s:
            return True
        return self.versions_behind(served) >= max(1, self._run.max_staleness)

    def choose(self, served: Version | None) -> Manifest | None:
        """The version to fetch now; None: stay."""
        if served != self._served:
            self._served, self._unasked_s = served, None
        newest = self._control.newest_surviving()
        if newest is None or not self._is_forward(newest.version, served=served):
            self._unasked_s = None
            return None
        if self._unasked_is_due(served):
            return newest
        command = self._control.commands.latest("publish")
        asked = None if command is None or command.version is None else command.version
        if asked is None or not self._is_forward(asked, served=served):
            return None
        return self._control.manifests.get(asked)

    def _unasked_is_due(self, served: Version | None) -> bool:
        if not self.is_degraded(served):
            self._unasked_s = None
            return False
        now_s = self._clock.monotonic()
        if self._unasked_s is None:
            self._unasked_s = now_s + self._rng.uniform(0.0, self._settings.stagger_s)
        return now_s >= self._unasked_s

    def _is_forward(self, version: Version, *, served: Version | None) -> bool:
        if not self.survives(version):
            return False
        return served is None or version > served or not self.survives(served)
