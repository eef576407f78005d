"""Loading model directories, and what is said about broken ones."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pipeline.engines.model_dir import load_model, load_tokenizer, named_state, parse_device
from pipeline.engines.tiny import make_tiny_model
from pipeline.exit_codes import ExitCode, exit_code_for
from schemas.errors import EngineError, ModelUnusable


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    make_tiny_model(tmp_path / "model", seed=0)
    return tmp_path / "model"


def load(path: Path) -> None:
    load_model(path, device="cpu", dtype="float32")


def test_loading_is_silent_and_keeps_every_weight(model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = load_model(model_dir, device="cpu", dtype="bfloat16")
    load_tokenizer(model_dir)
    assert capfd.readouterr() == ("", "")
    own, _ = named_state(model)
    saved = load_file(model_dir / "model.safetensors")
    assert set(saved) == set(own)
    assert all(torch.equal(own[name], saved[name].bfloat16()) for name in saved)
    assert not model.training


def test_an_absent_directory_and_a_file_are_named(tmp_path: Path) -> None:
    for loader in (load, load_tokenizer):
        with pytest.raises(EngineError, match="does not exist") as caught:
            loader(tmp_path / "nowhere")
        assert str(tmp_path / "nowhere") in caught.value.message
        assert "never downloaded" in caught.value.hint
    (tmp_path / "file").write_text("x")
    with pytest.raises(EngineError, match="is not a directory"):
        load(tmp_path / "file")
    with pytest.raises(EngineError, match=r"no config\.json"):
        load(tmp_path)


def test_a_directory_without_tokenizer_is_named(model_dir: Path) -> None:
    for file in model_dir.glob("tokenizer*"):
        file.unlink()
    load(model_dir)
    with pytest.raises(EngineError, match="has no tokenizer") as caught:
        load_tokenizer(model_dir)
    assert "save_pretrained" in caught.value.hint


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "never-heard-of"}', '{"model_type": "vit"}', "{}"])
def test_a_broken_config_is_an_engine_error(model_dir: Path, content: str) -> None:
    (model_dir / "config.json").write_text(content)
    with pytest.raises(EngineError, match="no causal language model can be loaded"):
        load(model_dir)


def test_a_broken_tokenizer_is_an_engine_error(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text("{")
    with pytest.raises(EngineError, match=r"tokenizer in .* cannot be loaded"):
        load_tokenizer(model_dir)


def test_missing_and_cut_weights_are_refused(model_dir: Path) -> None:
    weights = model_dir / "model.safetensors"
    whole = load_file(weights)
    save_file({name: tensor for name, tensor in whole.items() if "mlp" not in name}, weights, metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"lacks 6 of the model's tensors, model\.layers\.0\.mlp"):
        load(model_dir)
    wrong = {**whole, "model.norm.weight": torch.ones(3)}
    save_file(wrong, weights, metadata={"format": "pt"})
    with pytest.raises(EngineError, match="no causal language model can be loaded"):
        load(model_dir)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(EngineError, match="no causal language model can be loaded"):
        load(model_dir)
    weights.unlink()
    with pytest.raises(EngineError, match="no causal language model can be loaded"):
        load(model_dir)


def test_pickled_weights_and_code_of_the_directory_are_not_used(model_dir: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(model_dir, pickled)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="no causal language model can be loaded"):
        load(pickled)
    config = json.loads((model_dir / "config.json").read_text())
    config["model_type"] = "custom"
    config["auto_map"] = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    (model_dir / "config.json").write_text(json.dumps(config))
    (model_dir / "code.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    with pytest.raises(EngineError, match="no causal language model can be loaded"):
        load(model_dir)
    assert not (tmp_path / "was-run").exists()


def test_unknown_dtypes_and_devices_are_named(model_dir: Path) -> None:
    with pytest.raises(EngineError, match="float32, bfloat16, float16"):
        load_model(model_dir, device="cpu", dtype="int8")
    for device in ("gpu", "meta", f"cuda:{torch.cuda.device_count()}"):
        with pytest.raises(EngineError, match=device) as caught:
            parse_device(device)
        assert exit_code_for(caught.value) is ExitCode.USAGE  # a restart does not mend it


def test_a_directory_at_fault_is_a_mistake_and_one_that_cannot_be_read_may_mend(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelUnusable) as caught:
        load_model(model_dir / "absent", device="cpu", dtype="float32")
    assert exit_code_for(caught.value) is ExitCode.USAGE

    def stale(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", stale)
    with pytest.raises(EngineError, match="Stale") as unread:
        load_model(model_dir, device="cpu", dtype="float32")
    assert exit_code_for(unread.value) is ExitCode.ERROR
