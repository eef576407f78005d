"""A learner that ends in the middle of cloning: nothing of it is kept, so nothing of it is trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.learner.tensors import Rows
from consumers.learner.trainer import Trainer
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.stage import Stage
from schemas.records import Version
from tests.unit.consumers.learner.recorded_world import STEPS, recorded_run
from topics.clock import Deadline
from topics.memory import MemoryLog

NUM_CLONED = 3
SHAPE = TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1)


class Dies(Exception):
    """In the place of `kill -9`."""


def turn_on(stage: Stage) -> None:
    while True:
        stage.turn()


@pytest.mark.parametrize("in_order", [False, True])
def test_who_ends_in_the_middle_of_cloning_begins_it_again_and_comes_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_order: bool
) -> None:
    model = tmp_path / "model"
    make_tiny_model(model, seed=3, context_tokens=32, shape=SHAPE)
    log = MemoryLog(run="r", data_partitions=4)
    born = Version(lineage=2, step=0)
    run = recorded_run(log, tmp_path, model, cloning_steps=NUM_CLONED, born=born)
    cloned: list[int] = []
    clone = Trainer.clone

    def counted(trainer: Trainer, rows: Rows, number: int) -> float:
        if len(cloned) == NUM_CLONED - 1:
            raise Dies
        cloned.append(number)
        return clone(trainer, rows, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "clone", counted)
        stage, _ = run.learner()
        stage.start(deadline=Deadline.after(20))
        with pytest.raises(Dies):
            turn_on(stage)
        assert stage._loop is not None
        if in_order:
            stage._loop.save()
        stage._loop.close(in_order=in_order)
    assert cloned == [0, 1]
    assert list((tmp_path / "r").glob("checkpoints/*")) == []
    run.live(until=STEPS)
    history = run.history()
    assert list(history.facts) == [2], "the lineage that made no version is no part of the history"
    assert run.repeat(history).same, "which begins with the model as it was, and clones once from the first on"
