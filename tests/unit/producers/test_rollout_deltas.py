"""Rollout producers that follow deltas: whatever happens, an engine ends on hash(N) or serves what it had (Case 36)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from blake3 import blake3

from pipeline.engines.base import StateTensor
from pipeline.engines.scripted import STEP_TENSOR, ScriptedEngine
from pipeline.weights.arrays import NumpyArray
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.manifest import all_chunks, build_manifest
from pipeline.weights.series import SeriesSettings, VersionSeries
from producers.rollout.stage import RolloutStage
from schemas.records import Manifest, StageEvent, Version
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.world import World, events_of, until
from topics.catalog import EVENTS, WEIGHTS


class BigEngine(ScriptedEngine):
    """A scripted engine with a large tensor beside the step; knows the digest of what it serves."""

    digest = ""
    num_loads = 0

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        super().load(version, {STEP_TENSOR: state[STEP_TENSOR]})
        ordered = (np.ascontiguousarray(np.asarray(state[name])) for name in sorted(state))
        self.digest = blake3(b"".join(array.tobytes() for array in ordered)).hexdigest()
        self.num_loads += 1


@dataclass
class Line:
    """A learner's hand: publishes versions as the publisher does."""

    world: World
    lineage: int = 1
    manifests: list[Manifest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.lineage)
        self.big = self.rng.integers(0, 2**16, 50_000, dtype=np.uint16).view(np.int16)
        settings = SeriesSettings(anchor_every=20, max_delta_share=0.5, wire_dtype=None)
        self.series = VersionSeries(settings, target=StoreTarget(store=self.world.store, chunk_bytes=16_384))

    def publish(self, step: int, *, change: bool = True, quiet: bool = False, **altered: object) -> Manifest:
        if change:
            self.big[self.rng.integers(0, self.big.size, 500)] += 1
        tensors: dict[str, NumpyArray] = {STEP_TENSOR: np.array([step], np.int64), "big": self.big}
        version = Version(lineage=self.lineage, step=step)
        encoded = self.series.encode(self.series.snapshot(tensors, ties={}), version=version)
        manifest = build_manifest(
            encoded.state,
            run=self.world.log.run,
            version=version,
            seeds=self.world.seeds,
            created_unix_ms=0,
            delta=encoded.delta,
        )
        self.manifests.append(manifest)
        self.world.write((WEIGHTS, replace(self.record_of(manifest), **altered), None))  # type: ignore[arg-type]
        if not quiet:
            self.world.command("publish", version=version)
        return manifest

    def record_of(self, manifest: Manifest) -> Manifest:
        """What goes on the topic."""
        return manifest

    def retire(self, *steps: int) -> None:
        """Tombstones, and the chunks that only these versions need are gone."""
        gone = {each.digest for m in self.manifests if m.version.step in steps for each in all_chunks(m)}
        kept = {each.digest for m in self.manifests if m.version.step not in steps for each in all_chunks(m)}
        for digest in gone - kept:
            self.world.store.path_of(digest).unlink()
        for step in steps:
            self.world.plain.write_raw(WEIGHTS, key=f"{self.lineage}.{step}".encode(), value=None, partition=0)


@pytest.fixture
def line(rollouts: Rollouts) -> Line:
    rollouts.world.lineage(1)
    return Line(rollouts.world)


@pytest.fixture
def engine() -> BigEngine:
    return BigEngine()


def serves(engine: BigEngine, manifest: Manifest) -> bool:
    """The right label over the right bytes, found in two independent ways."""
    assert engine.version != manifest.version or engine.digest == manifest.state_digest, "a mix is served"
    return engine.version == manifest.version


def num_deltas(world: World) -> list[float]:
    return [float(event.gauges["num_deltas"]) for event in notices(world, "swapped")]


def notices(world: World, name: str) -> list[StageEvent]:
    return [event for event in world.read(EVENTS) if isinstance(event, StageEvent) and event.name == name]


def received_bytes(rollouts: Rollouts, stage: RolloutStage) -> float:
    counts = rollouts.metrics_of(stage)
    return sum(value for name, value in counts.items() if "weight_bytes" in name and "received" in name)


def test_an_engine_that_keeps_up_fetches_one_state_and_then_deltas(
    rollouts: Rollouts, line: Line, engine: BigEngine
) -> None:
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    for step in range(23):  # over the anchor of version 20
        manifest = line.publish(step)
        until(stage, lambda wanted=manifest: serves(engine, wanted))  # type: ignore[misc]
    assert num_deltas(rollouts.world) == [0.0] + [1.0] * 22
    assert received_bytes(rollouts, stage) < 100_000 * 1.5


def test_a_late_joiner_at_version_30(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    manifests = [line.publish(step, quiet=True) for step in range(31)]
    stage = rollouts.make(engine)
    rollouts.world.command("publish", version=manifests[30].version)
    until(stage, lambda: serves(engine, manifests[30]))
    assert num_deltas(rollouts.world) == [10.0], "the anchor of version 20 and what came after it"


def test_killed_at_20_and_back_at_25(rollouts: Rollouts, line: Line) -> None:
    first = BigEngine()
    stage = rollouts.make(first, scheduler_silence_s=1e6)
    for step in range(20):
        line.publish(step, quiet=True)
    before = line.publish(20)
    until(stage, lambda: serves(first, before))
    stage._started().weights.close()  # as `kill -9`: what it had on disk stays
    rollouts.stages.remove(stage)
    for step in range(21, 25):
        line.publish(step, quiet=True)
    last = line.publish(25)
    second = BigEngine()
    again = rollouts.make(second, scheduler_silence_s=1e6)
    until(again, lambda: serves(second, last))
    assert num_deltas(rollouts.world)[-1] == 5.0
    assert received_bytes(rollouts, again) < 20_000, "the anchor of version 20 was on its disk"


def test_three_versions_behind_with_a_delta_pruned(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Case 36."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    for step in range(1, 22):
        line.publish(step, quiet=True)
    line.retire(1)
    last = line.publish(22)
    until(stage, lambda: serves(engine, last))
    assert num_deltas(rollouts.world) == [0.0, 2.0]
    assert notices(rollouts.world, "delta_refused") == []


def test_the_right_number_but_one_altered_tensor(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Case 36: the state in memory is not what its version says; it is noticed, and ends on hash(N)."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    held = stage._started().weights._staging._held
    held._tensors["big"][777] += 1  # type: ignore[index]
    second = line.publish(1)
    until(stage, lambda: serves(engine, second))
    assert len(notices(rollouts.world, "delta_refused")) == 1


def test_a_delta_of_another_history_is_not_applied(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Case 36: the learner was restarted from an older checkpoint and publishes other bytes as 2.3."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    for step in range(5):
        line.publish(step, quiet=True)
    before = line.publish(5)
    until(stage, lambda: serves(engine, before))
    rollouts.world.lineage(2, parent=1, branch_step=3)
    restored = Line(rollouts.world, lineage=2)
    anchor = restored.publish(3)
    assert anchor.encoding == "full"
    until(stage, lambda: serves(engine, anchor))
    after = restored.publish(4)
    until(stage, lambda: serves(engine, after))
    assert num_deltas(rollouts.world)[-1] == 1.0


def test_a_delta_read_twice_and_one_read_late(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Case 36: the same manifest and command again change nothing; an older one is not gone back to."""
    world = rollouts.world
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    manifests = [line.publish(0)]
    until(stage, lambda: serves(engine, manifests[0]))
    manifests += [line.publish(1, quiet=True), line.publish(2)]
    until(stage, lambda: serves(engine, manifests[2]))
    for again in (manifests[2], manifests[1]):
        world.write((WEIGHTS, again, None))
        world.command("publish", version=again.version)
    for _ in range(30):
        stage.turn()
    assert serves(engine, manifests[2])
    assert engine.num_loads == 2


def test_a_delta_whose_result_is_another_leaves_the_old_version(
    rollouts: Rollouts, line: Line, engine: BigEngine
) -> None:
    """A publisher at fault: no way leads to hash(N). The old version is served and stamped, with a notice."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    line.publish(1, state_digest="00" * 32)
    until(stage, lambda: len(notices(rollouts.world, "fetch_failed")) > 0)
    assert serves(engine, first)
    line.retire(1)
    for step in range(2, 20):
        line.publish(step, quiet=True)
    healed = line.publish(20)  # the next anchor
    until(stage, lambda: serves(engine, healed))


@pytest.mark.parametrize("damage", ["bit", "cut", "absent", "exchanged"])
def test_a_damaged_chunk_of_a_delta(rollouts: Rollouts, line: Line, engine: BigEngine, damage: str) -> None:
    """Case 41: in the only source. The old version is served until the chunk is whole again, then N is."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    second = line.publish(1, quiet=True)
    path = line.world.store.path_of(second.chunks[0].digest)
    whole = path.read_bytes()
    path.unlink()
    if damage != "absent":
        other = line.world.store.path_of(first.chunks[0].digest).read_bytes()
        path.write_bytes({"bit": whole[:-1] + bytes([whole[-1] ^ 1]), "cut": whole[:-1], "exchanged": other}[damage])
    rollouts.world.command("publish", version=second.version)
    until(stage, lambda: len(notices(rollouts.world, "fetch_failed")) > 0)
    assert serves(engine, first)
    path.write_bytes(whole)
    until(stage, lambda: serves(engine, second))


def test_an_altered_cache_file_of_a_delta_is_fetched_again(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Case 41: on the engine's own disk, between fetch and apply of a later route."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    second = line.publish(1)
    until(stage, lambda: serves(engine, second))
    staging = stage._started().weights._staging
    own = staging._store.path_of(second.chunks[0].digest)
    own.write_bytes(b"rot")
    staging._held.forget()  # so that the way leads over this delta again
    third = line.publish(2)
    until(stage, lambda: serves(engine, third))
    assert num_deltas(rollouts.world)[-1] == 2.0


def test_a_delta_that_is_nowhere_any_more_is_gone_around(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Its manifest is still listed and no peer has it: after the time limit the way over an anchor is tried."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    for step in range(1, 21):
        line.publish(step, quiet=True)
    line.world.store.path_of(line.manifests[5].chunks[0].digest).unlink()
    last = line.publish(21)
    until(stage, lambda: serves(engine, last))
    assert num_deltas(rollouts.world) == [0.0, 1.0]
    assert len(events_of(rollouts.world.log, "fetch_failed")) == 1


def test_an_empty_delta_is_loaded_under_its_own_name(rollouts: Rollouts, line: Line, engine: BigEngine) -> None:
    """Case 37. The step is part of the content here, so the content repeats by publishing the same step's bytes."""
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    tensors: dict[str, NumpyArray] = {STEP_TENSOR: np.array([0], np.int64), "big": line.big}
    version = Version(lineage=1, step=1)
    encoded = line.series.encode(line.series.snapshot(tensors, ties={}), version=version)
    manifest = build_manifest(
        encoded.state, run=line.world.log.run, version=version, seeds=(), created_unix_ms=0, delta=encoded.delta
    )
    assert manifest.state_digest == first.state_digest
    line.world.write((WEIGHTS, manifest, None))
    line.world.command("publish", version=version)
    until(stage, lambda: serves(engine, manifest))
    assert engine.num_loads == 2
