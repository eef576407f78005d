"""The rollout producer over the real engine: a cold model directory, real weights through chunks, valid samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.weights.manifest import build_manifest
from pipeline.weights.state import encode_state
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.packed import unpack_f32
from schemas.records import Sample, Version
from schemas.validation import check_sample
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.world import World, started, until
from topics.catalog import SAMPLES, WEIGHTS
from topics.clock import Deadline


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    make_tiny_model(path, seed=0)
    return path


def publish_model(world: World, model_dir: Path, *, step: int) -> None:
    """Publish the weights of the directory as a version."""
    tensors, ties = named_state(load_model(model_dir, device="cpu", dtype="float32"))
    state = encode_state(tensors, ties=ties, wire_dtype=None, store=world.store)
    version = Version(lineage=1, step=step)
    manifest = build_manifest(state, run=world.log.run, version=version, seeds=world.seeds, created_unix_ms=0)
    world.write((WEIGHTS, manifest, None))
    world.command("publish", version=version)


def samples(world: World) -> list[Sample]:
    return [record for record in world.read(SAMPLES) if isinstance(record, Sample)]


def test_torch_engine_through_the_stage(rollouts: Rollouts, model_dir: Path) -> None:
    world = rollouts.world
    threads = torch.get_num_threads()
    setup = RolloutSetup(
        rollout=RolloutSettings(max_sequences=16),
        model=ModelSettings(path=model_dir),
        weights=WeightsSettings(),
    )
    stage = RolloutStage(world.context("rollout"), setup)
    try:
        world.lineage(1)
        world.prompts(*range(4), max_tokens=8)
        started(stage)
        for _ in range(5):
            stage.turn()
        assert samples(world) == []
        publish_model(world, model_dir, step=3)
        until(stage, lambda: len(samples(world)) == 8)
        for sample in samples(world):
            check_sample(sample, group_size=2)
            assert {run.version for run in sample.version_runs} == {Version(lineage=1, step=3)}
            assert len(unpack_f32(sample.logprobs or b"")) == len(sample.loss_mask)
            assert sample.prompt_text == "4 + 3 ="
    finally:
        stage.stop(deadline=Deadline.after(10))
        torch.set_num_threads(threads)
