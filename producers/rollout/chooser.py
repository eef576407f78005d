"""Which policy version an engine should serve: pure decisions over what the control topics say.

Role: follows the scheduler's publish command; goes its own way when the scheduler is silent or the engine falls behind.
Data in: manifests, ledger, commands, the version served; data out: the manifest to fetch, or none; whether a version
that was fetched may be loaded.
Invariants: only versions that the surviving history contains and has come to are served or fetched; an engine never
goes back to an older version, except to leave an abandoned branch (promise 3). Everybody a command is for fetches at
once; the load waits for the own wave, except in an engine whose samples cannot be trained, and in one that must look
after itself. Unasked fetches and loads wait for a random part of `stagger_s` each, so that engines neither storm the
source nor pause together (design, section 4). Time is monotonic (promise 13).
Failure: none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from pipeline.settings import RunSettings
from pipeline.waves import is_released, is_target
from producers.control import Control
from producers.rollout.settings import RolloutSettings
from schemas.records import Command, Manifest, Version
from topics.clock import Clock

RECEIVING = "weights"  # traffic class of a fetch


class VersionChooser:
    """Decides for one engine.

    Args:
        instance: the engine's name in commands.
        rng: of this engine's own offsets.
    """

    def __init__(
        self, control: Control, *, instance: str, run: RunSettings, settings: RolloutSettings, clock: Clock, rng: Random
    ) -> None:
        self._control = control
        self._instance = instance
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

    def seen_s(self, version: Version) -> float | None:
        """See `Control`."""
        return self._control.seen_s(version)

    def survives(self, version: Version) -> bool:
        """Whether the surviving history contains the version, and has come to it."""
        return self._control.ledger.is_made(version)

    @property
    def rate_bytes_s(self) -> float | None:
        """Most bytes per second that the publish command lets a fetch take; None: no limit."""
        command = self._control.commands.latest("publish")
        rate = None if command is None else command.rates.get(RECEIVING)
        return rate if rate is not None and 0 < rate < math.inf else None

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
        self._note(served)
        newest = self._control.newest_surviving()
        if newest is None or not self._is_forward(newest.version, served=served):
            self._unasked_s = None
            return None
        if self._unasked_is_due(served):
            return newest
        command, asked = self._publish()
        if command is None or asked is None or not self._is_forward(asked, served=served):
            return None
        return self._control.manifests.get(asked) if is_target(self._instance, targets=command.targets) else None

    def may_load(self, version: Version, *, served: Version | None) -> bool:
        """Whether `version`, fetched and verified, may take the place of `served` now.

        An older one than the command's may too, once the own wave is released: what is behind becomes less so.
        """
        self._note(served)
        if not self._is_forward(version, served=served):
            return False
        if served is None or not self.survives(served):
            return True  # nothing it makes could be trained, so its pause takes nothing away
        if self._unasked_is_due(served):
            return True
        command, asked = self._publish()
        if command is None or asked is None or version > asked:
            return False
        return is_released(self._instance, targets=command.targets, waves=command.waves, wave=command.wave)

    def _publish(self) -> tuple[Command | None, Version | None]:
        """The publish command in force and its version; nothing when that version does not exist."""
        command = self._control.commands.latest("publish")
        asked = None if command is None else command.version
        return (command, asked) if asked is not None and self.survives(asked) else (None, None)

    def _note(self, served: Version | None) -> None:
        """A version newly served begins a new offset."""
        if served != self._served:
            self._served, self._unasked_s = served, None

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
