"""Recorded mode repeats every algorithm, plug-in and reference model bit for bit, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.learner.loss_settings import LossSettings
from consumers.learner.settings import LearnerSettings
from pipeline.engines.tiny import TinyShape, make_tiny_model
from schemas.errors import NotRepeatable
from tests.unit.consumers.learner.recorded_world import OPTIMIZER, STEPS, recorded_run
from topics.catalog import REFERENCE_SCORES
from topics.memory import MemoryLog


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.mark.parametrize(
    ("has_reference", "learner"),
    [
        (True, LearnerSettings(loss=LossSettings(reference_kl=0.1, minibatches=2))),
        (True, LearnerSettings(algorithm="dpo", packing=True)),
        (False, LearnerSettings(algorithm="gspo", compute_dtype="bfloat16")),
    ],
)
def test_whatever_it_was_trained_with_comes_out_the_same(
    tmp_path: Path, model: Path, has_reference: bool, learner: LearnerSettings
) -> None:
    log = MemoryLog(run="r", data_partitions=4)
    learner = learner.model_copy(update={"optimizer": OPTIMIZER})
    run = recorded_run(log, tmp_path, model, learner=learner, has_reference=has_reference)
    for until in (3, STEPS):
        run.live(until=until)
    verdict = run.repeat()
    assert verdict.same
    assert verdict.last_step == STEPS
    if has_reference:
        log.delete_records({(REFERENCE_SCORES.name, partition): 2 for partition in range(4)})
        with pytest.raises(NotRepeatable, match="samples or reference-scores any more"):
            run.repeat()


def test_plug_ins_are_those_of_the_folder_or_nothing_is_repeated(tmp_path: Path, model: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def half(group):\n    return group.rewards - 0.5\n")
    log = MemoryLog(run="r", data_partitions=4)
    settings = LearnerSettings(optimizer=OPTIMIZER, advantage=f"{mine}:half")
    run = recorded_run(log, tmp_path, model, learner=settings)
    run.live(until=2)
    assert "mine" not in str(run.history().facts)
    assert run.repeat().same
    run.learner_settings = LearnerSettings(optimizer=OPTIMIZER)
    with pytest.raises(NotRepeatable, match="plug-ins"):
        run.repeat()
