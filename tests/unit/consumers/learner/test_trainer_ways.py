"""The trainer with every algorithm, packed, in lower precision, with a reference model and with plug-ins."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from consumers.learner import forward
from consumers.learner.advantages import batch_advantages
from consumers.learner.algorithms import ALGORITHMS
from consumers.learner.batch import Batch
from consumers.learner.forward import Forward, check_packing, first_fit
from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.tensors import rows_of
from pipeline.engines.tiny import make_tiny_model
from schemas.errors import PluginError, SettingsError
from schemas.packed import pack_f32
from tests.unit.consumers.learner.test_trainer import batch, sample, trainer, weights


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32)
    return path


def with_reference(plain: Batch, *, value: float) -> Batch:
    groups = []
    for group in plain.groups:
        members = (
            replace(each, reference=pack_f32([value] * (len(each.sample.completion_tokens) // 4)))
            for each in group.members
        )
        groups.append(replace(group, members=tuple(members)))
    return replace(plain, groups=tuple(groups))


def test_packed_rows_change_nothing_but_rounding(model_dir: Path) -> None:
    padded, packed = trainer(model_dir), trainer(model_dir, packing=True)
    long = sample(0, [8] * 20)
    rows = rows_of([sample(1, [9, 10]), long, sample(2, [11] * 3), sample(3, [12])], device=padded.device)
    with torch.no_grad():
        one, other = Forward(padded.model).scores(rows), Forward(padded.model, packing=True).scores(rows)
    assert other.logprobs.tolist() == pytest.approx(one.logprobs.tolist(), abs=1e-5)
    assert other.entropy.tolist() == pytest.approx(one.entropy.tolist(), abs=1e-5)
    for step in (1, 2):
        first, second = (each.step(replace(batch(), step=step)) for each in (padded, packed))
        assert second.loss == pytest.approx(first.loss, rel=1e-4)
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)


def test_models_that_cannot_be_packed_are_refused(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = trainer(model_dir)
    one.model.train(False)
    check_packing(one.model)
    visible = forward._visible
    monkeypatch.setattr(forward, "_visible", lambda segments, *, dtype: visible(segments * 0, dtype=dtype))
    with pytest.raises(SettingsError, match="nats apart"):
        check_packing(one.model)
    monkeypatch.undo()
    one.model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(SettingsError, match="layers of type sliding_attention"):
        check_packing(one.model)


@pytest.mark.parametrize(
    ("lengths", "num_bins"), [([7], 1), ([5, 5, 5], 3), ([2, 9, 3, 4, 5, 4], 3), ([1] * 8 + [4], 3)]
)
def test_bins_hold_every_row_once_and_none_is_overfull(lengths: list[int], num_bins: int) -> None:
    taken = [
        (where, begin + at) for (where, begin), n in zip(first_fit(lengths), lengths, strict=True) for at in range(n)
    ]
    assert len(set(taken)) == sum(lengths)
    assert max(column for _, column in taken) < max(lengths)
    assert len({where for where, _ in taken}) == num_bins


@pytest.mark.parametrize("packing", [False, True])
def test_bfloat16_computes_near_and_keeps_weights_and_moments_in_float32(model_dir: Path, packing: bool) -> None:
    exact, mixed = trainer(model_dir), trainer(model_dir, compute_dtype="bfloat16", packing=packing)
    for step in (1, 2):
        first, second = (each.step(replace(batch(), step=step)) for each in (exact, mixed))
        assert second.loss == pytest.approx(first.loss, abs=0.05)
        assert second.loss != first.loss
    every = [*mixed.model.parameters(), *(each for state in mixed.optimizer.state.values() for each in state.values())]
    assert {each.dtype for each in every} == {torch.float32}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_takes_a_step_that_the_split_does_not_change(model_dir: Path, algorithm: AlgorithmName) -> None:
    whole = trainer(model_dir, algorithm=algorithm)
    split = trainer(model_dir, algorithm=algorithm, micro_batch_tokens=8)
    before = weights(whole).clone()
    one, many = whole.step(batch()), split.step(batch())
    assert many.loss == pytest.approx(one.loss, abs=1e-5)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
    assert not torch.equal(before, weights(whole))
    assert 0 < one.entropy <= math.log(whole.vocab_size)
    assert one.sampler_kl >= 0
    assert one.own.keys() == ({"pair_accuracy", "pair_margin"} if algorithm == "dpo" else set())


@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_the_reference_enters_the_loss_and_the_figures(model_dir: Path, algorithm: AlgorithmName) -> None:
    one = trainer(model_dir, algorithm=algorithm, loss=LossSettings(reference_kl=0.5))
    other = trainer(model_dir, algorithm=algorithm, loss=LossSettings(reference_kl=0.5))
    scored = with_reference(batch(), value=-1.0)
    plain, against = one.step(batch()), other.step(scored)
    assert plain.loss != against.loss
    assert "reference_kl" not in plain.own
    assert against.own["reference_kl"] > 0


def test_a_plug_in_gives_the_loss_and_the_advantages(model_dir: Path, tmp_path: Path) -> None:
    """As docs/guides/write-a-loss.md has it."""
    code = tmp_path / "mine.py"
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "write-a-loss.md").read_text()
    code.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)))
    one = trainer(model_dir, advantage=f"{code}:ranked", loss=LossSettings(function=f"{code}:squared_ratio"))
    before = weights(one).clone()
    assert one.step(batch()).grad_norm > 0
    assert not torch.equal(before, weights(one))


def test_parts_that_do_not_fit_are_refused(model_dir: Path) -> None:
    with pytest.raises(SettingsError, match="best and the worst"):
        trainer(model_dir, algorithm="dpo", minibatches=2)
    with pytest.raises(PluginError, match="no plug-in 'nonesuch'"):
        trainer(model_dir, advantage="nonesuch")


def test_advantages_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="3 advantages for the 4 members of group 0"):
        list(batch_advantages(batch(), lambda group: group.rewards[:3]))
    with pytest.raises(ValueError, match="not finite"):
        list(batch_advantages(batch(), lambda group: group.rewards * math.nan))
