"""Training adapters alone: what changes, what travels, what an engine makes of it, what a restart puts back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from consumers.learner import checkpoint
from consumers.learner.facts import INITIAL_STATE, Arithmetic, facts_of
from consumers.learner.lora import attach, merged_state
from consumers.learner.lora_settings import LoraSettings
from consumers.learner.publisher import Publisher, Staged
from consumers.learner.recovery import put_back, snapshot_of
from consumers.learner.settings import LearnerSettings, OptimizerSettings
from consumers.learner.tensors import rows_of
from consumers.learner.trainer import Trainer
from pipeline.engines.backends import Backend, BackendSettings, open_backend
from pipeline.engines.base import StateTensor
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.held import HeldState
from pipeline.weights.route import find_route
from schemas.errors import CheckpointError, SettingsError
from schemas.records import Manifest, Version
from tests.unit.consumers.learner.test_trainer import STATE, batch, sample
from topics.clock import SystemClock

LORA = LoraSettings(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32)
    return path


def lora_trainer(
    path: Path, *, lora: LoraSettings | None = LORA, seed: int = 5, fields: Mapping[str, object] | None = None
) -> Trainer:
    settings = LearnerSettings(lora=lora, optimizer=OptimizerSettings(learning_rate=1e-2))
    settings = settings.model_copy(update=fields)
    return Trainer(settings, ModelSettings(path=path, dtype="float32"), seed=seed)


def trained(path: Path, *, seed: int = 5, fields: Mapping[str, object] | None = None) -> Trainer:
    one = lora_trainer(path, seed=seed, fields=fields)
    for step in (1, 2):
        one.step(replace(batch(), step=step))
    return one


class Rig:
    """A publisher and an engine's view of what it publishes."""

    def __init__(self, folder: Path, one: Trainer, *, wire: str | None = None) -> None:
        (folder / "peer.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
        self.store = ChunkStore(folder / "store", max_bytes=2**30)
        names = {None: None, "BF16": "bfloat16"}
        settings = WeightsSettings.model_validate({"wire_dtype": names[wire]})
        adapting = one.adapting(wire_dtype=wire)
        self.one = one
        self.publisher = Publisher(settings, store=self.store, run="r", clock=SystemClock(), adapting=adapting)
        self.published: dict[Version, Manifest] = {}

    def publish(self, step: int) -> Staged:
        staged = self.publisher.stage(self.one.model, version=Version(lineage=1, step=step))
        self.published[staged.manifest.version] = staged.manifest
        return staged


def test_only_adapters_change_and_training_begins_at_the_base(model_dir: Path) -> None:
    full, one = lora_trainer(model_dir, lora=None), lora_trainer(model_dir)
    rows = rows_of([sample(0, [8, 9, 10])], device=one.device)
    with torch.no_grad():
        assert torch.equal(one._forward.logprobs(rows), full._forward.logprobs(rows))
    before = {name: tensor.clone() for name, tensor in named_state(one.model)[0].items()}
    one.step(batch())
    changed = {name for name, tensor in named_state(one.model)[0].items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    assert len(one.trained_parameters) == 2 * 7 * 2  # A and B of seven projections in two layers
    assert len(one.optimizer.state) == len(one.trained_parameters)


@pytest.mark.parametrize("fields", [{}, {"packing": True}, {"compute_dtype": "bfloat16"}], ids=str)
def test_training_repeats_bit_for_bit(model_dir: Path, fields: dict[str, object]) -> None:
    first = trained(model_dir, fields=fields).digest()
    assert trained(model_dir, fields=fields).digest() == first
    assert trained(model_dir, fields=fields, seed=6).digest() != first


@pytest.mark.parametrize(("wire", "dtype"), [(None, "float32"), ("BF16", "bfloat16")])
def test_an_engine_serves_what_the_learner_trained(
    model_dir: Path, tmp_path: Path, wire: str | None, dtype: str
) -> None:
    rig = Rig(tmp_path, trained(model_dir), wire=wire)
    backend = open_backend(
        "torch",
        BackendSettings(
            model=ModelSettings.model_validate({"path": model_dir, "dtype": dtype}), max_sequences=2, num_threads=1
        ),
    )
    held = HeldState[StateTensor](backend.decode, merge=backend.merge)
    for step in range(3):
        staged = rig.publish(step)
        route = find_route(staged.manifest, published=rig.published, held_digest=held.digest)
        assert (route.anchor is None) == (step > 0)  # deltas of adapters are deltas as any other
        state = held.advance(staged.manifest, route, store=rig.store)
        backend.engine.load(staged.manifest.version, state)
        for parameter in rig.one.trained_parameters:
            parameter.data.view(-1)[:2] += 0.5
    late = HeldState[StateTensor](backend.decode, merge=backend.merge)
    whole = late.advance(
        staged.manifest, find_route(staged.manifest, published=rig.published, held_digest=None), store=rig.store
    )
    assert all(torch.equal(torch.as_tensor(whole[name]), torch.as_tensor(state[name])) for name in state)
    assert all(entry.dtype == "F32" and ".lora_" in entry.name for entry in staged.manifest.tensors)
    assert staged.manifest.state_digest != staged.manifest.adapter.merged_digest  # type: ignore[union-attr]
    rig.publisher.close()
    backend.engine.close()


def test_log_probabilities_of_learner_and_engine_agree(model_dir: Path) -> None:
    one = trained(model_dir)
    engine = load_model(model_dir, device="cpu", dtype="float32")
    engine.load_state_dict(one.merged_state(), strict=False)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        served, learned = engine(input_ids=ids).logits, one.model(input_ids=ids).logits
        plain = load_model(model_dir, device="cpu", dtype="float32")(input_ids=ids).logits
    assert (served - learned).abs().max() < 1e-4 < (served - plain).abs().max()


def test_adapters_take_a_small_part_of_the_bytes(model_dir: Path, tmp_path: Path) -> None:
    rig = Rig(tmp_path, lora_trainer(model_dir))
    figures = rig.publish(0).figures
    assert figures.num_bytes == 4 * sum(each.numel() for each in rig.one.trained_parameters)
    assert figures.num_bytes < 0.1 * 4 * 125_376
    rig.publisher.close()


def test_a_checkpoint_holds_adapters_and_goes_on_bit_for_bit(model_dir: Path, tmp_path: Path) -> None:
    one = trained(model_dir)
    state = replace(STATE, base_digest=one.base_digest)
    path = checkpoint.save(tmp_path, snapshot_of(one, state=state))
    loaded = checkpoint.load(path)
    assert all(".lora_" in name for name in loaded.model)
    again = lora_trainer(model_dir, seed=77)
    put_back(again, loaded)
    for each in (one, again):
        each.step(replace(batch(), step=3))
    # The order of samples comes from the generator that was put back; layers have no dropout to draw.
    assert again.digest() == one.digest()


def test_a_checkpoint_of_another_base_or_without_adapters_is_refused(model_dir: Path, tmp_path: Path) -> None:
    one = lora_trainer(model_dir)
    snapshot = snapshot_of(one, state=replace(STATE, base_digest=one.base_digest))
    other = tmp_path / "other"
    make_tiny_model(other, seed=4, context_tokens=32)
    with pytest.raises(CheckpointError, match="adapters belong to base"):
        put_back(lora_trainer(other), snapshot)
    for lora in (None, LoraSettings(rank=5), LoraSettings(rank=4, target_modules=("q_proj",))):
        with pytest.raises(CheckpointError, match="another model"):
            put_back(lora_trainer(model_dir, lora=lora), snapshot)


def test_the_ledger_keeps_adapters_settings_and_the_base(model_dir: Path) -> None:
    one, model = lora_trainer(model_dir), ModelSettings(path=model_dir)
    settings = LearnerSettings(lora=LORA)
    arithmetic = Arithmetic.of(settings, model=model, weights=WeightsSettings(), seed=5)
    assert arithmetic.lora == LORA
    facts = facts_of(arithmetic, one, begins=True, first_anchor="")
    assert facts[INITIAL_STATE] == one.initial_digest() != one.state_digest(wire_dtype=None)
    assert one.state_digest(wire_dtype="BF16") == one.state_digest(wire_dtype=None)  # adapters are never cast


def test_layers_that_cannot_be_adapted_are_named(model_dir: Path) -> None:
    with pytest.raises(SettingsError, match=r"no linear layer named nope; it has down_proj, .*, v_proj$"):
        lora_trainer(model_dir, lora=LoraSettings(target_modules=("q_proj", "nope")))
    with pytest.raises(SettingsError, match="lm_head shares its weight"):
        lora_trainer(model_dir, lora=LoraSettings(target_modules=("lm_head",)))
    with pytest.raises(SettingsError, match="nothing to adapt"):
        attach(torch.nn.Embedding(3, 3), LORA, seed=1)


def test_backends_take_whole_models_as_before() -> None:
    backend: Backend = open_backend(
        "scripted", BackendSettings(model=ModelSettings(path=Path("none")), max_sequences=1, num_threads=1)
    )
    assert backend.merge.__name__ == "no_adapters"


def test_the_merged_model_of_full_training_is_its_own_state(model_dir: Path) -> None:
    one = lora_trainer(model_dir, lora=None)
    assert one.adapting(wire_dtype=None) is None
    assert one.base_digest == ""
    assert merged_state(one.model, None).keys() == named_state(one.model)[0].keys()
