"""The trainer: deterministic, split-independent, careful with numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from consumers.learner import checkpoint
from consumers.learner.batch import Batch, TrainGroup, TrainMember
from consumers.learner.forward import Forward
from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.recovery import put_back, snapshot_of
from consumers.learner.settings import LearnerSettings, OptimizerSettings
from consumers.learner.tensors import micro_batches, rows_of
from consumers.learner.trainer import Trainer
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import ModelSettings
from schemas.errors import EngineError, TrainingError
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import Sample, SamplingParams, Version, VersionRun

VERSION = Version(lineage=1, step=0)
STATE = checkpoint.LearnerState(
    lineage=1,
    step=1,
    positions={},
    topic_ids={},
    closed={"watermark": 0, "above": []},
    num_cloning_steps=0,
    threads=1,
    first_anchor="",
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32)
    return path


def trainer(
    model_dir: Path,
    *,
    minibatches: int = 1,
    micro_batch_tokens: int = 16_384,
    packing: bool = False,
    compute_dtype: Literal["model", "bfloat16"] = "model",
    algorithm: AlgorithmName = "grpo",
    advantage: str | None = None,
    loss: LossSettings | None = None,
) -> Trainer:
    settings = LearnerSettings(
        micro_batch_tokens=micro_batch_tokens,
        optimizer=OptimizerSettings(learning_rate=1e-3),
        loss=LossSettings(minibatches=minibatches) if loss is None else loss,
        packing=packing,
        compute_dtype=compute_dtype,
        algorithm=algorithm,
        advantage=advantage,
    )
    return Trainer(settings, ModelSettings(path=model_dir), seed=11)


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:-1", "meta"])
def test_a_device_that_is_none_is_named(model_dir: Path, device: str) -> None:
    """Wherever the name comes from: recorded mode has it from the ledger."""
    with pytest.raises(EngineError, match=repr(device)):
        Trainer(LearnerSettings(), ModelSettings(path=model_dir, device=device), seed=11)


def sample(member: int, tokens: Sequence[int], *, group: int = 0, prompt: Sequence[int] = (5, 6, 7)) -> Sample:
    count = len(tokens)
    return Sample(
        run="t",
        group=group,
        member=member,
        attempt="a",
        producer="p",
        prompt_tokens=pack_i32(list(prompt)),
        completion_tokens=pack_i32(list(tokens)),
        logprobs=pack_f32([-3.0] * count),
        loss_mask=pack_u8([1] * count),
        version_runs=(VersionRun(num_tokens=count, version=VERSION),),
        sampling=SamplingParams(),
        seed=0,
        started_unix_ms=0,
        finished_unix_ms=0,
    )


def batch(*, rewards: Sequence[float] = (1.0, 0.0, 0.5, 0.0)) -> Batch:
    rows = [[8, 9], [10, 11, 12], [13], [14, 15, 16, 17]]
    groups = []
    for number, length in ((0, 3), (3, 5)):
        members = tuple(
            TrainMember(
                sample=sample(member, tokens, group=number, prompt=range(4, 4 + length)),
                reward=reward,
                rewards=(),
                version=VERSION,
                age=0,
            )
            for member, (tokens, reward) in enumerate(zip(rows, rewards, strict=True))
        )
        groups.append(TrainGroup(group=number, attempt="a", members=members, age=0))
    return Batch(step=1, groups=tuple(groups))


def weights(of: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.model.parameters()])


def test_the_same_batch_gives_the_same_bits(model_dir: Path) -> None:
    first, second = trainer(model_dir), trainer(model_dir)
    first.step(batch())
    second.step(batch())
    assert torch.equal(weights(first), weights(second))


def test_what_the_environment_said_trains_nothing_and_its_log_probabilities_are_not_looked_at(model_dir: Path) -> None:
    plain, other, without = (trainer(model_dir) for _ in range(3))
    stats = plain.step(_masked(batch(), logprob=0.0))
    assert stats.num_tokens == batch().num_samples
    other.step(_masked(batch(), logprob=-9.0))
    assert torch.equal(weights(plain), weights(other))
    without.step(batch())
    assert not torch.equal(weights(plain), weights(without))


def test_a_mask_that_was_left_out_trains_every_token(model_dir: Path) -> None:
    plain, without = trainer(model_dir), trainer(model_dir)
    plain.step(batch())
    without.step(_changed(batch(), lambda each: replace(each, loss_mask=b"")))
    assert torch.equal(weights(plain), weights(without))


def _masked(whole: Batch, *, logprob: float) -> Batch:
    """Only the last token of each completion is the model's own; the others have this log-probability."""

    def change(each: Sample) -> Sample:
        count = len(each.completion_tokens) // 4 - 1
        return replace(each, loss_mask=pack_u8([0] * count + [1]), logprobs=pack_f32([logprob] * count + [-3.0]))

    return _changed(whole, change)


def _changed(whole: Batch, change: Callable[[Sample], Sample]) -> Batch:
    groups = [
        replace(group, members=tuple(replace(each, sample=change(each.sample)) for each in group.members))
        for group in whole.groups
    ]
    return replace(whole, groups=tuple(groups))


def test_dropout_is_a_function_of_the_step_so_a_restored_trainer_draws_what_the_first_one_drew(
    model_dir: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    assert "attention_dropout" in config
    (path / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.3}))
    whole, plain = trainer(path), trainer(model_dir)
    plain.step(batch())
    whole.step(batch())
    assert not torch.equal(weights(whole), weights(plain)), "dropout did nothing"
    saved = checkpoint.save(tmp_path / "checkpoints", snapshot_of(whole, state=STATE))
    whole.step(replace(batch(), step=2))
    torch.rand(100)  # other work of the process draws from the same generator
    restored = trainer(path)
    put_back(restored, checkpoint.load(saved))
    restored.step(replace(batch(), step=2))
    assert restored.digest() == whole.digest()


def test_micro_batches_change_nothing_but_rounding(model_dir: Path) -> None:
    whole, split = trainer(model_dir), trainer(model_dir, micro_batch_tokens=16)
    before = weights(whole).clone()
    one, many = whole.step(batch()), split.step(batch())
    assert many.loss == pytest.approx(one.loss, abs=1e-6)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
    assert one.num_tokens == many.num_tokens == 20
    assert not torch.equal(before, weights(whole))


def test_no_signal_moves_nothing(model_dir: Path) -> None:
    one = trainer(model_dir)
    before = weights(one).clone()
    one.step(batch(rewards=(0.5, 0.5, 0.5, 0.5)))
    assert torch.equal(before, weights(one))


def test_better_samples_become_likelier(model_dir: Path) -> None:
    one = trainer(model_dir)
    rows = rows_of([sample(0, [8, 9], prompt=range(4, 7))], device=torch.device("cpu"))
    with torch.no_grad():
        before = Forward(one.model).logprobs(rows).sum().item()
    for _ in range(5):
        one.step(batch())
    with torch.no_grad():
        assert Forward(one.model).logprobs(rows).sum().item() > before


def test_padding_and_company_do_not_change_log_probabilities(model_dir: Path) -> None:
    one = trainer(model_dir)
    short, long = sample(0, [8, 9]), sample(1, [10, 11, 12, 13, 14], prompt=range(4, 20))
    with torch.no_grad():
        alone = Forward(one.model).logprobs(rows_of([short], device=one.device))
        together = Forward(one.model).logprobs(rows_of([long, short], device=one.device))
    assert together[-2:].tolist() == pytest.approx(alone.tolist(), abs=1e-5)


def test_a_non_finite_step_raises_and_leaves_the_weights(model_dir: Path) -> None:
    one = trainer(model_dir)
    with torch.no_grad():
        next(iter(one.model.parameters()))[0, 0] = float("nan")
    before = weights(one).clone()
    with pytest.raises(TrainingError, match="not finite"):
        one.step(batch())
    assert torch.equal(torch.nan_to_num(before), torch.nan_to_num(weights(one)))


def test_minibatches_make_several_updates_of_one_step(model_dir: Path) -> None:
    one, four = trainer(model_dir), trainer(model_dir, minibatches=4)
    before, stats = one.step(batch()), four.step(batch())
    assert (before.num_tokens, stats.num_tokens) == (20, 20)
    # Mismatch is told of the policy at the start of the step; the later parts of it meet one that has moved.
    assert stats.mismatch_mean == pytest.approx(before.mismatch_mean, abs=1e-5)
    assert before.clipped_share == 0.0 < stats.clipped_share
    assert not torch.equal(weights(one), weights(four))


def test_micro_batch_spans_cover_all_rows_once() -> None:
    rows = rows_of([sample(i, [8] * (1 + i)) for i in range(6)], device=torch.device("cpu"))
    spans = list(micro_batches(rows, max_tokens=14))
    assert [i for begin, end in spans for i in range(begin, end)] == list(range(6))
    assert all((end - begin) == 1 or (end - begin) * (3 + end) <= 14 for begin, end in spans)
