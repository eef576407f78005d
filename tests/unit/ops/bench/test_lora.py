"""The bench's way of a version: bytes are those of what travels, and what comes out is what was trained."""

from __future__ import annotations

from pathlib import Path

import torch

from consumers.learner.lora_settings import LoraSettings
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import Trainer
from ops.bench.lora import Way
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import ModelSettings


def test_adapters_travel_alone_and_come_out_merged(tmp_path: Path) -> None:
    path = tmp_path / "model"
    make_tiny_model(path, seed=1, context_tokens=32)
    found = {}
    for name, lora in (("full", None), ("lora", LoraSettings(rank=4, alpha=8.0))):
        trainer = Trainer(LearnerSettings(lora=lora), ModelSettings(path=path, dtype="float32"), seed=1)
        way = Way(tmp_path / name)
        for step in range(2):
            for parameter in trainer.trained_parameters:
                parameter.data.add_(0.01)
            state = way.serve(trainer, step)
            expected = trainer.merged_state()
            assert all(torch.equal(state[tensor], expected[tensor]) for tensor in expected)
        way.close()
        found[name] = way.num_bytes
    assert found == {"full": [501_504] * 2, "lora": [45_056] * 2}
