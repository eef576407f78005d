"""A restart beside a broker that does not know every topic yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engines.tiny import TinyShape, make_tiny_model
from tests.unit.consumers.learner.recorded_world import recorded_run
from topics.memory import MemoryLog
from topics.memory.log import MemoryAdmin


def test_a_topic_that_is_not_known_for_a_moment_is_not_called_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the learner ends, and a person is told to move its checkpoints away."""
    make_tiny_model(
        tmp_path / "model", seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1)
    )
    run = recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, tmp_path / "model")
    run.live(until=3)
    whole, num_asked = MemoryAdmin.topic_ids, 0

    def just_back(admin: MemoryAdmin) -> dict[str, str]:
        nonlocal num_asked
        num_asked += 1
        return {name: each for name, each in whole(admin).items() if name != "prompts" or num_asked > 1}

    monkeypatch.setattr(MemoryAdmin, "topic_ids", just_back)
    run.die_at_once()
    assert num_asked > 1
