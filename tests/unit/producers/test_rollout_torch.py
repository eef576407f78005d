"""The rollout producer over the real engine: a cold model directory, real weights through chunks, valid samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.engines.base import GenerationRequest, TokenArray
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.torch_engine import open_torch_engine
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.weights.manifest import build_manifest
from pipeline.weights.state import encode_state
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.packed import unpack_f32, unpack_i32
from schemas.records import PromptGroup, Sample, SamplingParams, Version
from schemas.validation import check_sample
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.world import World, started, until
from topics.catalog import PROMPTS, SAMPLES, WEIGHTS
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


def test_a_group_that_changes_torch_engines_is_what_one_engine_would_have_made(
    rollouts: Rollouts, model_dir: Path
) -> None:
    """Two are greedy, two are drawn; the second engine goes on from the tokens of the first."""
    world = rollouts.world
    threads = torch.get_num_threads()
    world.lineage(1)
    publish_model(world, model_dir, step=3)
    wanted = [replace(world.prompt(group), sampling=sampling(group)) for group in range(4)]
    for prompt in wanted:
        world.plain.write(PROMPTS, prompt)
    try:
        stages = [torch_stage(world, model_dir, slot=slot) for slot in range(2)]
        started(stages[0])
        until(stages[0], lambda: "running_sequences" in rollouts.metrics_of(stages[0]) and running(stages[0]) == 8)
        for _ in range(4):
            stages[0].turn()
        rollouts.context_of(stages[0]).retire.request("test")
        until(stages[0], lambda: stages[0].finished)
        stages[0].stop(deadline=Deadline.after(10))
        num_before = len(samples(world))
        started(stages[1])
        until(stages[1], lambda: len(samples(world)) == 8)
        assert rollouts.metrics_of(stages[1])["groups_resumed"] * 2 == 8 - num_before > 0
        stages[1].stop(deadline=Deadline.after(10))
        engine = open_torch_engine(TorchEngineSettings(model_dir=model_dir), version=Version(lineage=1, step=3))
        undisturbed = {
            (prompt.group, member): request_of_prompt(prompt, member, tokens=engine.encode_prompt(prompt).tokens)
            for prompt in wanted
            for member in range(2)
        }
        engine.submit(list(undisturbed.values()))
        made = {}
        while engine.num_running:
            made.update({each.request_id: each for each in engine.step()})
        for sample in samples(world):
            check_sample(sample, group_size=2)
            whole = made[f"{sample.group}/{sample.member}"]
            assert unpack_i32(sample.completion_tokens).tolist() == whole.tokens.tolist()
            assert (sample.completion_text, sample.finish_reason) == (whole.text, whole.finish_reason)
            np.testing.assert_allclose(unpack_f32(sample.logprobs or b""), whole.logprobs, atol=2e-5)
    finally:
        torch.set_num_threads(threads)


def sampling(group: int) -> SamplingParams:
    return SamplingParams(max_tokens=40, temperature=float(group % 2))


def running(stage: RolloutStage) -> int:
    return stage._started().backend.engine.num_running


def torch_stage(world: World, model_dir: Path, *, slot: int) -> RolloutStage:
    setup = RolloutSetup(
        rollout=RolloutSettings(max_sequences=16, hand_over_s=0),
        model=ModelSettings(path=model_dir),
        weights=WeightsSettings(),
        slot=slot,
    )
    return RolloutStage(world.context("rollout"), setup)


def request_of_prompt(prompt: PromptGroup, member: int, *, tokens: TokenArray) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"{prompt.group}/{member}",
        prompt_tokens=tokens,
        sampling=prompt.sampling,
        seed=prompt.seed + member,
    )
