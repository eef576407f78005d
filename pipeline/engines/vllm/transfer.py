"""The transfer engine that vLLM's worker runs: from a sealed file into the model.

Role: our part of vLLM's weight-transfer interface (`WeightTransferEngine`); runs in the worker process.
Data in: the path of a sealed safetensors file: the state, and `verifying.prints_of` its matrices where the check is on.
Data out: the model's parameters.
Order of one update: (1) open the file and check its seals; (2) trace every parameter and check every shape; nothing was
changed so far; (3) vLLM's layerwise reload, since linear weights are repacked after a load; (4) check that vLLM took
every tensor; (5) compare what runs with what was published.
Invariants: all of it happens inside one `update_weights`, so that an update is never left open.
Failure: the message of a `RuntimeError` begins with `REFUSED` (nothing was changed) or `BROKEN` (weights may be a mix).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from pipeline.engines.vllm.plugin import BROKEN, REFUSED
from pipeline.engines.vllm.sealed import PRINTS_PREFIX, is_sealed
from pipeline.engines.vllm.tracing import Placed, TraceError, trace
from pipeline.engines.vllm.verifying import Loaded, VerifyError, verify

# What vLLM's weight loaders raise for a state at fault.
LOADER_ERRORS = (ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError, RuntimeError, OSError)


class _Mapper(Protocol):
    def _map_name_with_shard(self, key: str) -> Placed: ...


class _QuantMethod(Protocol):
    def process_weights_after_loading(self, layer: nn.Module) -> None: ...

    @property
    def apply(self) -> Callable[..., Tensor]: ...  # (layer, x, bias=None)


class _Loads(Protocol):
    def load_weights(self, weights: Iterator[tuple[str, Tensor]]) -> set[str] | None: ...


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing is set up beforehand."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One whole state."""

    path: str
    ties: dict[str, str] = field(default_factory=dict)  # published alias -> owner
    verify: bool = True


class SealedFileTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """See the module."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    model: nn.Module

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to do: each update names its file."""

    def start_weight_update(self) -> None:
        """Nothing to do: an update is one call."""

    def update_weights(self, update_info: dict[str, object]) -> None:
        """As the base class, without its synchronisation of an accelerator where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Steps (1) to (5) of the module.

        Raises:
            RuntimeError: see the module.
        """
        try:
            with _open(update_info.path) as (published, prints):
                parts = _trace(self.model, published, ties=update_info.ties)
                self._load(published)
                if update_info.verify:
                    _verify(self.model, published, parts=parts, prints=prints)
        except (TraceError, SafetensorError, OSError) as error:
            raise RuntimeError(f"{REFUSED}{error}") from error
        except (VerifyError, _LoadError) as error:
            raise RuntimeError(f"{BROKEN}{error}") from error

    def finish_weight_update(self) -> None:
        """Nothing to do: an update is one call."""

    def shutdown(self) -> None:
        """Nothing is held."""

    @torch.no_grad()
    def _load(self, published: Mapping[str, Tensor]) -> None:
        initialize_layerwise_reload(self.model)
        try:
            taken = cast(_Loads, self.model).load_weights(iter(published.items()))
        except LOADER_ERRORS as error:
            raise _LoadError(f"vLLM's loader failed: {type(error).__name__}: {error}") from error
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
            _repack_tied(self.model)
        missed = {name for name, _ in self.model.named_parameters()} - (taken if taken is not None else set())
        if taken is not None and missed:
            raise _LoadError(f"vLLM did not load {', '.join(sorted(missed)[:5])}")


class _LoadError(Exception):
    """The loader failed half-way."""


def _repack_tied(model: nn.Module) -> None:
    """A module that shares another one's weight loads nothing, so its repacked copy would stay that of the old one."""
    owned: set[int] = set()
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        if id(weight) in owned and hasattr(module, "cpu_linear"):
            cast(_QuantMethod, module.quant_method).process_weights_after_loading(module)
        owned.add(id(weight))


@contextmanager
def _open(path: str) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """The file's tensors and the prints by tensor name, mapped and not copied."""
    with open(path, "rb", buffering=0) as file:
        if not is_sealed(file.fileno()):
            raise OSError(f"{path} is not sealed; it could change while it is read")
        with safe_open(f"/proc/{os.getpid()}/fd/{file.fileno()}", framework="pt", device="cpu") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
            prints = {name: found.pop(name) for name in list(found) if name.startswith(PRINTS_PREFIX)}
            yield found, {name.removeprefix(PRINTS_PREFIX): tensor for name, tensor in prints.items()}


def _trace(model: nn.Module, published: Mapping[str, Tensor], *, ties: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Parts of every parameter, their shapes checked.

    Raises:
        TraceError: a name or a shape does not fit.
    """
    mapper = cast("_Mapper | None", getattr(model, "hf_to_vllm_mapper", None))

    def place(name: str) -> Placed:
        return (name, None) if mapper is None else mapper._map_name_with_shard(name)

    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    packed = cast("Mapping[str, list[str]]", getattr(model, "packed_modules_mapping", {}))
    return trace(parameters, published, ties=ties, place=place, packed=packed)


@torch.no_grad()
def _verify(
    model: nn.Module,
    published: Mapping[str, Tensor],
    *,
    parts: Mapping[str, Sequence[str]],
    prints: Mapping[str, Tensor],
) -> None:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        module = model.get_submodule(name.rpartition(".")[0])
        known = [prints[part] for part in parts[name] if part in prints]
        verify(
            Loaded(name=name, parameter=parameter, product=_product(module, name=name)),
            [published[part] for part in parts[name]],
            prints=known if len(known) == len(parts[name]) else None,
        )


def _product(module: nn.Module, *, name: str) -> Callable[[Tensor], Tensor] | None:
    """The module's own matrix product, where it keeps a repacked form beside or instead of its weight."""
    method = getattr(module, "quant_method", None)
    if not name.endswith(".weight") or method is None or not hasattr(module, "cpu_linear"):
        return None
    apply = cast(_QuantMethod, method).apply
    return lambda x: apply(module, x, None)
