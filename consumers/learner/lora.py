"""Low-rank adapters in the learner: the base stays as it is, two thin matrices beside each weight are trained.

Role: gives a loaded model its adapters, and says what of a model is trained state (LoRA, arXiv 2106.09685).
Data in: a model, `LoraSettings`, the run's seed. Data out: the same model with `LoraLinear` in place of the linear
layers that are named; y = x W' + (alpha / rank) (x A') B'.
Invariants: A is drawn from the seed and the layer's name, B is zero, so training begins at the base; parameters of the
base have no gradient and their names and ties stay as they were; adapters are float32 whatever the base is. Without
adapters the trained state is the whole model.
Failure: `SettingsError` for layers that are not there, are not linear, or share their weight with another one.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.nn import functional

from consumers.learner.lora_settings import ALL_LINEAR, LoraSettings
from pipeline.engines.model_dir import model_outline, named_state
from pipeline.weights.adapters import LORA_A, LORA_B, BaseModel
from pipeline.weights.scale import Scale
from schemas.errors import SettingsError

_HEADS = ("lm_head", "embed_out", "score")  # "all-linear" leaves out what makes logits, as peft does


class LoraLinear(nn.Linear):
    """A linear layer over the parameters of another one, with an adapter beside it.

    Args:
        linear: its weight and bias are used, not copied.
        generator: A is drawn from it.
    """

    def __init__(self, linear: nn.Linear, scale: Scale, *, generator: torch.Generator) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self._factor = scale.factor
        device = linear.weight.device
        drawn = torch.empty(scale.rank, linear.in_features)
        drawn.uniform_(-1.0, 1.0, generator=generator).div_(math.sqrt(linear.in_features))  # Kaiming's, as in the paper
        self.lora_A = _matrix(drawn.to(device))
        self.lora_B = _matrix(torch.zeros(linear.out_features, scale.rank, device=device))

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] to [..., out], dtype of the base."""
        a, b = self.lora_A.weight.to(input.dtype), self.lora_B.weight.to(input.dtype)
        added = functional.linear(functional.linear(input, a), b)
        return functional.linear(input, self.weight, self.bias) + added * self._factor


def attach(model: nn.Module, settings: LoraSettings, *, seed: int) -> None:
    """Freeze a model and give it adapters.

    Raises:
        SettingsError: see the module.
    """
    targets = _targets(model, settings)
    model.requires_grad_(False)
    for name, linear in targets.items():
        key = blake3(f"{seed}/lora/{name}".encode()).digest(length=8)
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LoraLinear(linear, settings.scale, generator=generator))


def check_targets(path: Path, settings: LoraSettings) -> None:
    """See that the model of a directory has the layers that are named; no weights are read.

    Raises:
        SettingsError: see the module.
        ModelUnusable: the directory describes no model.
    """
    _targets(model_outline(path), settings)


def trained_state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What training changes, as `named_state` gives it: the adapters of a model that has some, else all of it."""
    own, ties = named_state(model)
    adapters = {name: tensor for name, tensor in own.items() if _is_adapter(name)} if has_adapters(model) else {}
    return (adapters, {}) if adapters else (own, ties)


def base_of(model: nn.Module, *, wire_dtype: str | None) -> BaseModel:
    """The frozen part of a model with adapters, cast to the dtype of the wire."""
    own, _ = named_state(model)
    base = {name: tensor for name, tensor in own.items() if not _is_adapter(name)}
    return BaseModel.of(base, wire_dtype=wire_dtype)


def merged_state(model: nn.Module, settings: LoraSettings | None) -> dict[str, Tensor]:
    """The whole model as engines compute with it, without tied names."""
    if settings is None:
        return named_state(model)[0]
    adapters = {name: tensor.cpu() for name, tensor in trained_state(model)[0].items()}
    return base_of(model, wire_dtype=None).merged(adapters, settings.scale)


def has_adapters(model: nn.Module) -> bool:
    """Whether `attach` was called on it."""
    return any(isinstance(module, LoraLinear) for module in model.modules())


def _is_adapter(name: str) -> bool:
    return name.endswith((LORA_A, LORA_B))


def _matrix(values: Tensor) -> nn.Linear:
    """A linear layer of these weights, so that names are those of other tools."""
    layer = nn.Linear(values.shape[1], values.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(values)
    return layer


def _targets(model: nn.Module, settings: LoraSettings) -> dict[str, nn.Linear]:
    """The layers that get adapters, by name."""
    linear = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    wanted = settings.target_modules
    _, ties = named_state(model)
    shared = {*ties, *ties.values()}
    if wanted == ALL_LINEAR:
        found = {name: module for name, module in linear.items() if name.rpartition(".")[2] not in _HEADS}
    else:
        unknown = sorted(set(wanted) - {name.rpartition(".")[2] for name in linear})
        if unknown:
            usual = {name.rpartition(".")[2] for name in linear if f"{name}.weight" not in shared}
            raise SettingsError(
                f"learner.lora.target_modules: the model has no linear layer named {', '.join(unknown)}; "
                f"it has {', '.join(sorted(usual - set(_HEADS))) or 'none that could be named'}",
                hint=f'name some of these, or "{ALL_LINEAR}"',
            )
        found = {name: module for name, module in linear.items() if name.rpartition(".")[2] in wanted}
    if not found:
        raise SettingsError("[learner.lora]: the model has no plain linear layers, so there is nothing to adapt")
    for name in found:
        if f"{name}.weight" in shared:
            raise SettingsError(
                f"learner.lora.target_modules: {name} shares its weight with another layer, which an adapter would "
                "change as well",
                hint="leave it out",
            )
    return found
