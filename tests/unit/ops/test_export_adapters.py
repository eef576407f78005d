"""Exports of a run that trains adapters: the merged model, and a folder in the form of `peft`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ops.export import ExportForm, export_version
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import make_tiny_model
from schemas.errors import WeightsError
from schemas.records import Manifest
from tests.unit.consumers.learner.test_lora import Rig, trained
from tests.unit.ops.test_export import Run


class LoraRun:
    """A run's folder with one version of adapters."""

    def __init__(self, root: Path, *, wire: str | None) -> None:
        self.model_dir, self.folder, self.target = root / "model", root / "run", root / "out"
        make_tiny_model(self.model_dir, seed=3, context_tokens=32)
        self.one = trained(self.model_dir)
        places = self.folder / "weights"  # the rig keeps its store in a folder of its own there
        places.mkdir(parents=True)
        self.rig = Rig(places, self.one, wire=wire)
        self.rig.publish(2)
        self.rig.publisher.close()

    def export(self, form: ExportForm) -> Manifest:
        return export_version(
            self.rig.published, None, target=self.target, model=self.model_dir, folder=self.folder, form=form
        )


@pytest.mark.parametrize(("wire", "dtype"), [(None, "float32"), ("BF16", "bfloat16")])
def test_the_merged_model_loads_and_is_what_engines_serve(tmp_path: Path, wire: str | None, dtype: str) -> None:
    run = LoraRun(tmp_path, wire=wire)
    done = run.export(ExportForm(dtype=dtype))
    own, _ = named_state(load_model(run.target, device="cpu", dtype=dtype))
    adapting = run.one.adapting(wire_dtype=wire)
    assert adapting is not None
    adapters = {name: tensor for name, tensor in named_state(run.one.model)[0].items() if ".lora_" in name}
    expected = adapting.base.merged(adapters, adapting.scale)
    assert own.keys() == expected.keys()
    assert all(torch.equal(own[name], expected[name]) for name in own)
    origin = json.loads((run.target / "rlweave.json").read_text())
    assert done.adapter is not None
    assert origin["merged_digest"] == done.adapter.merged_digest


def test_the_adapter_folder_is_that_of_peft(tmp_path: Path) -> None:
    run = LoraRun(tmp_path, wire=None)
    run.export(ExportForm(adapter=True))
    tensors = load_file(run.target / "adapter_model.safetensors")
    own, _ = named_state(run.one.model)
    assert tensors.keys() == {f"base_model.model.{name}" for name in own if ".lora_" in name}
    assert all(torch.equal(tensor, own[name.removeprefix("base_model.model.")]) for name, tensor in tensors.items())
    config = json.loads((run.target / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8)
    assert config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )


def test_a_whole_model_has_no_adapters_to_export(tmp_path: Path) -> None:
    run = Run(tmp_path, wire_dtype=None)
    with pytest.raises(WeightsError, match="whole model, not adapters"):
        export_version(
            run.published,
            None,
            target=run.target,
            model=run.model_dir,
            folder=run.folder,
            form=ExportForm(adapter=True),
        )
    assert not run.target.exists()
