"""Turns over the real engine: what it sampled is what the learner computes for the same row, turn by turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from consumers.learner.forward import Forward
from consumers.learner.tensors import rows_of
from pipeline.engines.model_dir import load_model
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.torch_engine import open_torch_engine
from pipeline.environments.episodes import open_episodes
from pipeline.environments.settings import EnvironmentSettings
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from producers.rollout.generator import Generator
from schemas.packed import unpack_i32, unpack_u8
from schemas.records import PromptGroup, Sample, SamplingParams, Version
from schemas.validation import check_sample
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog


def played(model_dir: Path, folder: Path) -> list[Sample]:
    """Two groups of four that guess a number, three turns of two tokens each."""
    engine = open_torch_engine(TorchEngineSettings(model_dir=model_dir), version=Version(lineage=1, step=0))
    run = RunSettings(name="t", dir=folder, group_size=4)
    context = make_context(MemoryLog(run="t", data_partitions=1), run=run, stage="rollout", clock=SystemClock())
    settings = EnvironmentSettings(plugin="guess", options={"high": 7}, max_turns=3, template="={text} ")
    episodes = open_episodes(settings, engine=engine, context=context)
    generator = Generator[int](engine, context=context, max_failures=1, episodes=episodes)
    for group in range(2):
        prompt = PromptGroup(
            run="t",
            group=group,
            group_size=4,
            text="0-7?",
            sampling=SamplingParams(max_tokens=2, temperature=0.7),
            seed=10 * group,
            source="test",
            source_index=group,
            epoch=0,
            created_unix_ms=0,
        )
        generator.add(prompt, ticket=group)
    deadline = Deadline.after(30)
    found: list[Sample] = []
    while generator.num_groups:
        deadline.check("two groups to be through")
        found += [sample for finished in generator.advance() for sample in finished.samples]
    episodes.close()
    return found


def test_log_probabilities_are_the_learners_own_and_what_was_heard_is_masked(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", seed=0)
    found = played(tmp_path / "model", tmp_path)
    assert len(found) == 8
    for sample in found:
        check_sample(sample, group_size=4)
        assert len(unpack_i32(sample.turns)) == 3 or sample.environment_facts["ended"] == "done"
    rows = rows_of(found, device=torch.device("cpu"))
    with torch.no_grad():
        computed = Forward(load_model(tmp_path / "model", device="cpu", dtype="float32")).logprobs(rows)
    trains = rows.loss_mask[rows.completion] == 1
    assert 0 < int((~trains).sum()) < len(trains)
    assert torch.allclose(computed[trains], rows.behaviour_logprobs[rows.completion][trains], atol=1e-5)
    assert torch.all(rows.behaviour_logprobs[rows.completion][~trains] == 0)


def test_the_same_seeds_play_the_same_game_whatever_answers_first(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", seed=0)
    games = [
        {(sample.group, sample.member): (sample.completion_tokens, sample.loss_mask) for sample in found}
        for found in (played(tmp_path / "model", tmp_path / name) for name in "ab")
    ]
    assert games[0] == games[1]
    heard = [np.flatnonzero(unpack_u8(mask) == 0).tolist() for _, mask in games[0].values()]
    assert any(heard)
