"""A version that is low-rank adapters, for other tools: merged into its base, or as `peft` keeps adapters.

Role: the part of `rlweave export` that runs trained with `[learner.lora]` need.
Data in: a manifest, its verified bytes, the base's directory. Data out: the merged model as a state; files of an
adapter folder (https://huggingface.co/docs/peft/developer_guides/checkpoint).
Invariants: merged bytes have the digest that the learner said and engines checked; an adapter file holds the canonical
stream as it travelled, float32, behind a header.
Failure: `WeightsError` for a version that is a whole model, or another base; `EngineError` when the base cannot be
loaded.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from pipeline.model_folder import safetensors_header
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import Manifest

ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."  # of every name in such a file


def merged(manifest: Manifest, state: WireState, *, model: Path, dtype: str) -> WireState:
    """The whole model: the state itself, or the base with the adapters merged.

    Args:
        model: directory of the base.
        dtype: in which engines hold it.

    Raises:
        WeightsError: another base, or another result than the learner had.
        EngineError: the base cannot be loaded.
    """
    if manifest.adapter is None:
        return state
    from pipeline.engines.model_dir import load_model, named_state  # noqa: PLC0415 - heavy
    from pipeline.weights.adapters import BaseModel, Merger, adapter_tensors  # noqa: PLC0415 - heavy
    from pipeline.weights.state import tensor_entries  # noqa: PLC0415

    own, _ = named_state(load_model(model, device="cpu", dtype=dtype))
    whole = Merger(lambda: BaseModel.of(own, wire_dtype=None))(manifest, adapter_tensors(state))
    return WireState.over(tensor_entries(dict(whole), ties={}, wire_dtype=None), whole)


def check_is_adapter(manifest: Manifest) -> None:
    """Raises: WeightsError: the version is a whole model."""
    if manifest.adapter is None:
        raise WeightsError(
            f"version {manifest.version} is a whole model, not adapters; nothing was exported",
            hint="leave --adapter out; only runs with [learner.lora] have adapters",
        )


def adapter_header(state: WireState) -> bytes:
    """Head of an adapter file over the state's bytes."""
    return safetensors_header({_PREFIX + entry.name: (entry.dtype, entry.shape) for entry in state.entries})


def adapter_config(manifest: Manifest, *, model: Path) -> bytes:
    """What `peft` reads beside the tensors.

    Raises:
        WeightsError: the version is a whole model.
    """
    adapter = manifest.adapter
    if adapter is None:
        raise WeightsError(f"version {manifest.version} is a whole model, not adapters")
    modules = {tensor.name.rpartition(".lora_")[0].rpartition(".")[2] for tensor in manifest.tensors}
    alpha = int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha  # some readers take whole numbers only
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": adapter.rank,
        "lora_alpha": alpha,
        "target_modules": sorted(modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }
    return orjson.dumps(values, option=orjson.OPT_INDENT_2)
