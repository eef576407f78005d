"""Several ranks train what one rank trains: same batches, same weights but for rounding, same bits on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from consumers.learner.batch import Batch, BatchPlan, PlannedGroup, TrainGroup, TrainMember
from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.ranks import gradients as gradients_module
from consumers.learner.ranks.gradients import GroupTeam, check_replicated
from consumers.learner.ranks.group import RankGroup
from consumers.learner.settings import LearnerSettings, OptimizerSettings
from consumers.learner.step_stats import StepStats
from consumers.learner.tensors import rows_of
from consumers.learner.trainer import Trainer
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.settings import ModelSettings
from schemas.errors import RanksDiverged, SettingsError, TrainingError
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import Sample, SamplingParams, Version, VersionRun
from tests.unit.consumers.learner.ranks.crew import HashStore, together

VERSION = Version(lineage=1, step=0)
STEPS = 3
_LOADING = threading.Lock()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


def trainer(model_dir: Path, *, minibatches: int = 1, algorithm: AlgorithmName = "grpo") -> Trainer:
    settings = LearnerSettings(
        algorithm=algorithm,
        micro_batch_tokens=64,
        optimizer=OptimizerSettings(learning_rate=1e-3, weight_decay=0.1),
        loss=LossSettings(minibatches=minibatches),
    )
    with _LOADING:  # the loader patches torch while it works, and the ranks of a test are threads
        return Trainer(settings, ModelSettings(path=model_dir), seed=11)


def group_of(number: int, *, random: np.random.Generator) -> TrainGroup:
    members = []
    for member in range(4):
        tokens = random.integers(4, 30, size=int(random.integers(1, 7)))
        sample = Sample(
            run="r",
            group=number,
            member=member,
            attempt="a",
            producer="p",
            prompt_tokens=pack_i32(random.integers(4, 30, size=3)),
            completion_tokens=pack_i32(tokens),
            logprobs=pack_f32([-3.0] * len(tokens)),
            loss_mask=pack_u8([1] * len(tokens)),
            version_runs=(VersionRun(num_tokens=len(tokens), version=VERSION),),
            sampling=SamplingParams(),
            seed=0,
            started_unix_ms=0,
            finished_unix_ms=0,
        )
        reward = float(random.random())
        members.append(TrainMember(sample=sample, reward=reward, rewards=(), version=VERSION, age=0))
    return TrainGroup(group=number, attempt="a", members=tuple(members), age=0)


def batches() -> list[list[TrainGroup]]:
    random = np.random.default_rng(5)
    return [[group_of(step * 8 + number, random=random) for number in range(5)] for step in range(STEPS)]


def share(groups: Sequence[TrainGroup], *, step: int, rank: int, owner: dict[int, int]) -> Batch:
    plan = tuple(PlannedGroup(group=each.group, size=len(each.members)) for each in groups)
    own = tuple(each for each in groups if owner[each.group] == rank)
    return Batch(step=step, groups=own, plan=BatchPlan(run="r", groups=plan))


def weights(of: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.model.parameters()])


def alone(model_dir: Path, *, minibatches: int, algorithm: AlgorithmName = "grpo") -> tuple[torch.Tensor, StepStats]:
    one = trainer(model_dir, minibatches=minibatches, algorithm=algorithm)
    stats = [one.step(Batch(step=step, groups=tuple(groups))) for step, groups in enumerate(batches(), start=1)]
    return weights(one), stats[-1]


@pytest.mark.parametrize("minibatches", [1, 3])
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("spread", ["even", "all_on_the_last", "two_hold_all"])
def test_the_weights_are_those_of_one_rank(model_dir: Path, minibatches: int, num_ranks: int, spread: str) -> None:
    def owner_of(number: int) -> int:
        return {"even": number % num_ranks, "all_on_the_last": num_ranks - 1, "two_hold_all": number % 2}[spread]

    owner = {each.group: owner_of(each.group) for groups in batches() for each in groups}

    def work(group: RankGroup) -> tuple[torch.Tensor, StepStats, bytes]:
        one = trainer(model_dir, minibatches=minibatches)
        one.team = GroupTeam(group, compare_every=1, step=0)
        for step, groups in enumerate(batches(), start=1):
            stats = one.step(share(groups, step=step, rank=group.rank, owner=owner))
        return weights(one), stats, one.digest()

    wanted, wanted_stats = alone(model_dir, minibatches=minibatches)
    found = together(num_ranks, work)
    assert len({digest for _, _, digest in found}) == 1
    assert torch.allclose(found[0][0], wanted, rtol=0, atol=1e-6), (found[0][0] - wanted).abs().max()
    for _, stats, _ in found:
        assert stats.num_tokens == wanted_stats.num_tokens
        for name in ("loss", "grad_norm", "reward_mean", "clipped_share", "mismatch_mean"):
            assert getattr(stats, name) == pytest.approx(getattr(wanted_stats, name), abs=1e-5), name


@pytest.mark.parametrize("algorithm", ["dr_grpo", "rloo", "gspo", "dpo", "sft"])
def test_every_normaliser_counts_over_all_ranks(model_dir: Path, algorithm: AlgorithmName) -> None:
    owner = {each.group: each.group % 2 for groups in batches() for each in groups}

    def work(group: RankGroup) -> tuple[torch.Tensor, StepStats]:
        one = trainer(model_dir, algorithm=algorithm)
        one.team = GroupTeam(group, compare_every=1, step=0)
        for step, groups in enumerate(batches(), start=1):
            stats = one.step(share(groups, step=step, rank=group.rank, owner=owner))
        return weights(one), stats

    wanted, wanted_stats = alone(model_dir, minibatches=1, algorithm=algorithm)
    found, stats = together(2, work)[0]
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5), (found - wanted).abs().max()
    assert stats.loss == pytest.approx(wanted_stats.loss, abs=1e-5)
    assert stats.own == pytest.approx(wanted_stats.own, abs=1e-5)


def test_a_window_is_open_while_gradients_are_under_way_and_not_before_or_after(model_dir: Path) -> None:
    def work(group: RankGroup) -> list[str]:
        seen: list[str] = []
        sum_tensor = group.sum_tensor

        @contextmanager
        def syncing() -> Iterator[None]:
            seen.append("open")
            yield
            seen.append("closed")

        def noted(tensor: torch.Tensor) -> None:
            seen.append("sum")
            sum_tensor(tensor)

        group.sum_tensor = noted  # type: ignore[method-assign]
        one = trainer(model_dir)
        one.team = GroupTeam(group, compare_every=1, step=0, syncing=syncing)
        groups = batches()[0]
        one.step(share(groups, step=1, rank=group.rank, owner={each.group: each.group % 2 for each in groups}))
        return seen

    for seen in together(2, work):
        assert seen[0] == "open"
        assert seen[-1] == "closed"
        assert set(seen[1:-1]) == {"sum"}


def test_small_buckets_change_no_bit(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(group: RankGroup) -> torch.Tensor:
        one = trainer(model_dir)
        one.team = GroupTeam(group, compare_every=1, step=0)
        groups = batches()[0]
        one.step(share(groups, step=1, rank=group.rank, owner={each.group: each.group % 2 for each in groups}))
        return weights(one)

    large = together(2, work)
    monkeypatch.setattr(gradients_module, "BUCKET_ELEMENTS", 1000)
    assert torch.equal(together(2, work)[0], large[0])


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_cloning_is_that_of_one_rank(model_dir: Path, num_ranks: int) -> None:
    samples = [member.sample for groups in batches() for each in groups for member in each.members][:7]

    def clone(one: Trainer) -> tuple[list[float], torch.Tensor]:
        rows = rows_of(samples, device=one.device)
        losses = [one.clone(rows, number) for number in range(3)]
        one.reset_optimizer()
        return losses, weights(one)

    def work(group: RankGroup) -> tuple[list[float], torch.Tensor]:
        one = trainer(model_dir)
        one.team = GroupTeam(group, compare_every=1, step=0)
        return clone(one)

    losses, wanted = clone(trainer(model_dir))
    for found_losses, found in together(num_ranks, work):
        assert found_losses == pytest.approx(losses, abs=1e-5)
        assert torch.allclose(found, wanted, rtol=0, atol=2e-6)


def test_fewer_rows_than_ranks_leave_some_with_none(model_dir: Path) -> None:
    samples = [batches()[0][0].members[0].sample]

    def work(group: RankGroup) -> bytes:
        one = trainer(model_dir)
        one.team = GroupTeam(group, compare_every=1, step=0)
        one.clone(rows_of(samples, device=one.device), 0)
        return one.digest()

    assert len(set(together(3, work))) == 1


def test_a_rank_whose_weights_differ_is_named_and_the_last_equal_step_as_well(model_dir: Path) -> None:
    owner = {each.group: each.group % 3 for groups in batches() for each in groups}

    def work(group: RankGroup) -> str:
        one = trainer(model_dir)
        one.team = GroupTeam(group, compare_every=1, step=0)
        one.step(share(batches()[0], step=1, rank=group.rank, owner=owner))
        if group.rank == 2:
            with torch.no_grad():
                next(iter(one.model.parameters()))[0, 0] += 1e-7
        with pytest.raises(RanksDiverged, match=r"rank\(s\) 2 .* equal after step 1"):
            one.step(share(batches()[1], step=2, rank=group.rank, owner=owner))
        return "ended"

    assert together(3, work) == ["ended"] * 3


def test_a_step_that_is_not_finite_ends_all_ranks_and_not_one_of_them(model_dir: Path) -> None:
    """Only rank 1 holds samples; the number that spoils the step is in its part."""
    owner = dict.fromkeys([each.group for each in batches()[0]], 1)

    def work(group: RankGroup) -> str:
        one = trainer(model_dir)
        one.team = GroupTeam(group, compare_every=1, step=0)
        if group.rank == 1:
            with torch.no_grad():
                next(iter(one.model.parameters()))[:] = float("nan")
        with pytest.raises(TrainingError, match="not finite"):
            one.step(share(batches()[0], step=1, rank=group.rank, owner=owner))
        return "ended"

    assert together(2, work) == ["ended"] * 2


def test_a_share_that_does_not_fit_the_plan_is_refused(model_dir: Path) -> None:
    group = batches()[0][0]
    plan = BatchPlan(run="r", groups=(PlannedGroup(group=group.group, size=4, absent=(1,)),))
    with pytest.raises(ValueError, match="4 members, the plan says 3"):
        trainer(model_dir).step(Batch(step=1, groups=(group,), plan=plan))


def test_sharded_parameters_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - slow, and for this test only
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        sharded = torch.nn.Parameter(distribute_tensor(torch.zeros(2), mesh, [Shard(0)]))
        with pytest.raises(SettingsError, match="1 of 2 parameters are sharded"):
            check_replicated([torch.nn.Parameter(torch.zeros(2)), sharded])
    finally:
        dist.destroy_process_group()
