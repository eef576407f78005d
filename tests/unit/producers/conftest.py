"""Fixtures of the producers' tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.engines.backends import Backend
from pipeline.engines.scripted import ScriptedEngine
from pipeline.environments.settings import EnvironmentSettings
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.stage import StageContext
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.state import decode_arrays
from pipeline.weights.tokens import load_or_create_token
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from tests.unit.producers.world import World, started
from topics.clock import Clock, ManualClock
from topics.log import Log
from topics.memory import MemoryLog

ROLLOUT_RUN = {"partitions": 4, "groups_per_step": 4, "group_size": 2, "max_staleness": 2, "max_steps": 100}


@dataclass
class Rollouts:
    """Makes rollout producers over scripted engines, beside a learner with a real peer server."""

    world: World
    stages: list[RolloutStage] = field(default_factory=list)

    def make(
        self,
        engine: ScriptedEngine,
        *,
        log: Log | None = None,
        slot: int = 0,
        start: bool = True,
        environment: Mapping[str, object] | None = None,
        fetch_deadline_s: float = 2.0,
        **fields: object,
    ) -> RolloutStage:
        settings = RolloutSettings.model_validate(
            {"engine": "scripted", "stagger_s": 1.0, "scheduler_silence_s": 5.0, "fetch_retry_s": 0.1, **fields}
        )
        stage = RolloutStage(
            self.world.context("rollout", log=log),
            RolloutSetup(
                rollout=settings,
                model=ModelSettings(path=Path("none")),
                weights=WeightsSettings(fetch_deadline_s=fetch_deadline_s),
                slot=slot,
                backend=Backend(engine=engine, decode=decode_arrays),
                environment=None if environment is None else EnvironmentSettings.model_validate(environment),
            ),
        )
        self.stages.append(stage)
        if start:
            started(stage)
        return stage

    def context_of(self, stage: RolloutStage) -> StageContext:
        return stage._context

    def metrics_of(self, stage: RolloutStage) -> dict[str, float]:
        return stage._context.metrics.snapshot()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def world_with_peer(log: Log, *, folder: Path, clock: Clock, fields: Mapping[str, object]) -> tuple[World, PeerServer]:
    """A world whose manifests name a running peer."""
    world = World(log=log, folder=folder, clock=clock, fields=fields)
    store = ChunkStore(world.run.folder / "weights" / "learner", max_bytes=2**30)
    peer = PeerServer(PeerSettings(stores=[store], token=load_or_create_token(world.run.folder / "peer-token")))
    world.seeds = (peer.start(),)
    return world, peer


@pytest.fixture
def rollouts(memory_log: MemoryLog, tmp_path: Path, clock: ManualClock) -> Iterator[Rollouts]:
    world, peer = world_with_peer(memory_log, folder=tmp_path, clock=clock, fields=ROLLOUT_RUN)
    made = Rollouts(world)
    yield made
    for stage in made.stages:
        if stage._parts is not None:
            stage._parts.weights.close()
    peer.stop()
