"""The reference consumer over the memory log: every sample once, the trainer's own numbers, commits behind records."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from consumers.learner.forward import Forward
from consumers.learner.tensors import rows_of
from consumers.reference.settings import ReferenceSettings, reference_group
from consumers.reference.stage import ReferenceStage
from pipeline.engines.model_dir import load_model
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.settings import ModelSettings, RunSettings
from pipeline.stage import make_context
from schemas.packed import pack_i32, unpack_f32
from schemas.records import ReferenceScore, Sample, SamplingParams
from tests.unit.consumers.learner.material import sample
from tests.unit.consumers.rewards.helpers import read_all, write_samples
from topics.catalog import REFERENCE_SCORES, SAMPLES
from topics.clock import Deadline
from topics.memory import MemoryLog


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


def started(log: MemoryLog, model: Path) -> ReferenceStage:
    run = RunSettings(name="r", dir=Path("runs"), partitions=2)
    settings = ReferenceSettings(batch_tokens=16)
    stage = ReferenceStage(make_context(log, run=run, stage="reference"), settings, model=ModelSettings(path=model))
    stage.start(deadline=Deadline.after(60))
    return stage


def scores(log: MemoryLog) -> list[ReferenceScore]:
    return [record for record in read_all(log, REFERENCE_SCORES) if isinstance(record, ReferenceScore)]


def turn_until(stage: ReferenceStage, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, "the condition did not come true"
        stage.turn()


def made(group: int, member: int) -> Sample:
    tokens = pack_i32([3 + member, 4 + group])
    return replace(sample(group, member), completion_tokens=tokens, sampling=SamplingParams(temperature=0.5))


def test_every_sample_gets_the_numbers_that_the_trainer_would_compute(model: Path) -> None:
    log = MemoryLog(run="r", data_partitions=2)
    wanted = [made(group, member) for group in range(3) for member in range(2)]
    write_samples(log, wanted)
    stage = started(log, model)
    turn_until(stage, lambda: len(scores(log)) == 6)
    stage.stop(deadline=Deadline.after(5))
    forward = Forward(load_model(model, device="cpu", dtype="float32"))
    found = {(each.group, each.member): each for each in scores(log)}
    for each in wanted:
        with torch.no_grad():
            expected = forward.logprobs(rows_of([each], device=torch.device("cpu"))).tolist()
        score = found[each.group, each.member]
        assert score.attempt == each.attempt
        assert unpack_f32(score.logprobs or b"").tolist() == pytest.approx(expected, abs=1e-5)
    assert len({each.model_digest for each in found.values()}) == 1
    lags = log.admin().lag(reference_group("r"), [SAMPLES])
    assert [each.lag_records for each in lags] == [0, 0]
    again = started(log, model)
    again.turn()
    again.stop(deadline=Deadline.after(5))
    assert len(scores(log)) == 6, "a restart scored again"


def test_what_cannot_be_scored_has_a_reason_and_what_is_no_completion_gets_nothing(model: Path) -> None:
    log = MemoryLog(run="r", data_partitions=2)
    strange = replace(made(0, 0), completion_tokens=pack_i32([3, 9_000]))
    write_samples(log, [strange, sample(1, 0, failure="engine_failed"), sample(1, 1, logprobs=None), made(2, 0)])
    stage = started(log, model)
    turn_until(stage, lambda: len(scores(log)) == 2)
    stage.stop(deadline=Deadline.after(5))
    found = {each.group: each for each in scores(log)}
    assert found[0].logprobs is None
    assert found[0].failure == "the reference model cannot take it: out_of_vocabulary"
    assert found[2].failure is None
    assert [each.lag_records for each in log.admin().lag(reference_group("r"), [SAMPLES])] == [0, 0]
