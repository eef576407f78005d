"""Low-rank adapters to a frozen base model: what a version is when only they are trained.

Role: one definition of merging for learner, engines and export (LoRA, arXiv 2106.09685; docs/design/0014-lora.md).
Data in: a base model by name, in the dtypes that engines hold; adapters as they travelled, in float32:
`<module>.lora_A.weight` [rank, in] and `<module>.lora_B.weight` [out, rank] for a weight `<module>.weight` [out, in].
Data out: the merged model, by the names of the base; digests of base and merged model.
The order, the same on every machine because each step is one rounded float32 operation per element and none is a sum of
a library's own order: D = B[:, 0] A[0, :]; D = D + B[:, k] A[k, :] for k = 1 .. rank - 1; D = (alpha / rank) D, with
the factor rounded to float32; W' = W + D in float32, rounded to the dtype of W.
Invariants: the base is never written to; tensors without an adapter are the base's own; nothing is given out whose
digest is not the one that the manifest names.
Failure: `WeightsError` for adapters that do not fit the base, another base, or another result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from blake3 import blake3
from torch import Tensor

from pipeline.weights.arrays import pieces, wire_dtype_of
from pipeline.weights.scale import Scale
from pipeline.weights.state import stream_digest
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import AdapterOf, Manifest

T = TypeVar("T")
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
_BLOCK_ELEMENTS = 2**16  # of a product at a time: it stays in the processor's cache over all ranks
_WIRE_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A frozen base, in plain memory.

    Args:
        own: tensors by name, on the CPU, in the dtypes that engines hold; tied names left out.
    """

    own: Mapping[str, Tensor]

    @classmethod
    def of(cls, own: Mapping[str, Tensor], *, wire_dtype: str | None) -> BaseModel:
        """From tensors of any device, cast to the dtype of the wire; memory is shared where nothing has to change."""

        def cast(tensor: Tensor) -> Tensor:
            dtype = tensor.dtype if wire_dtype is None or not tensor.is_floating_point() else _WIRE_DTYPES[wire_dtype]
            return tensor.detach().to(device="cpu", dtype=dtype)

        return cls({name: cast(tensor) for name, tensor in sorted(own.items())})

    @cached_property
    def digest(self) -> str:
        """As a manifest would have it for the base; computed once."""
        return stream_digest(self.own, ties={}, wire_dtype=None)

    def merged(self, adapters: Mapping[str, Tensor], scale: Scale) -> dict[str, Tensor]:
        """The model with the adapters merged; tensors without one are the base's own memory.

        Raises:
            WeightsError: they do not fit the base.
        """
        return dict(self.merging(adapters, scale))

    def merging(self, adapters: Mapping[str, Tensor], scale: Scale) -> Iterator[tuple[str, Tensor]]:
        """As `merged`, one tensor after the other, in order of their names.

        Raises:
            WeightsError: they do not fit the base.
        """
        modules = check_adapters(self.own, adapters, rank=scale.rank)
        for name, tensor in self.own.items():
            module = name.removesuffix(".weight")
            if module in modules and name.endswith(".weight"):
                yield name, merge(tensor, a=adapters[module + LORA_A], b=adapters[module + LORA_B], scale=scale)
            else:
                yield name, tensor


def merge(weight: Tensor, *, a: Tensor, b: Tensor, scale: Scale) -> Tensor:
    """W' of one weight, in the order of the module text.

    Args:
        weight: [out, in], any floating dtype, on the CPU.
        a: float32 [rank, in].
        b: float32 [out, rank].

    Returns:
        [out, in], dtype of `weight`, memory of its own.
    """
    merged = torch.empty_like(weight)
    rows = max(1, _BLOCK_ELEMENTS // max(1, weight.shape[1]))
    for begin in range(0, weight.shape[0], rows):
        part = b[begin : begin + rows]
        product = torch.mul(part[:, 0:1], a[0:1])
        for k in range(1, scale.rank):
            product.add_(torch.mul(part[:, k : k + 1], a[k : k + 1]))
        product.mul_(scale.factor)
        merged[begin : begin + rows] = product.add_(weight[begin : begin + rows].to(torch.float32))
    return merged


def check_adapters(base: Mapping[str, Tensor], adapters: Mapping[str, Tensor], *, rank: int) -> frozenset[str]:
    """Names of the modules with an adapter.

    Raises:
        WeightsError: one of a pair is absent, or a name, shape or dtype does not fit.
    """
    modules = frozenset(name.removesuffix(end) for name in adapters for end in (LORA_A, LORA_B) if name.endswith(end))
    expected = {module + end for module in modules for end in (LORA_A, LORA_B)}
    if not modules or expected != set(adapters):
        odd = sorted(expected ^ set(adapters))
        raise WeightsError(f"the adapters are not pairs of lora_A and lora_B: {', '.join(odd[:3]) or 'there are none'}")
    for module in sorted(modules):
        weight = base.get(f"{module}.weight")
        if weight is None or weight.dim() != 2 or not weight.is_floating_point():
            raise WeightsError(f"there are adapters for {module}, of which the base has no floating matrix")
        wanted = {module + LORA_A: (rank, weight.shape[1]), module + LORA_B: (weight.shape[0], rank)}
        for name, shape in wanted.items():
            seen = adapters[name]
            if tuple(seen.shape) != shape or seen.dtype != torch.float32:
                raise WeightsError(f"{name} is {seen.dtype} {list(seen.shape)}, it has to be float32 {list(shape)}")
    return modules


@dataclass(frozen=True, kw_only=True)
class Adapting:
    """What the learner says of its adapters: the base they belong to and how they count."""

    base: BaseModel
    scale: Scale

    def describe(self, state: WireState) -> AdapterOf:
        """Of adapters as they travel; merges once, for the digest, holding one tensor at a time.

        Raises:
            WeightsError: they do not fit the base.
        """
        hasher = blake3()
        for _, tensor in self.base.merging(adapter_tensors(state), self.scale):
            for piece in pieces(tensor, dtype=wire_dtype_of(tensor, wire_dtype=None)):
                hasher.update(piece)
        return AdapterOf(
            base_digest=self.base.digest,
            merged_digest=hasher.hexdigest(),
            rank=self.scale.rank,
            alpha=self.scale.alpha,
        )


class Merger:
    """Whole models from fetched states, for an engine.

    Args:
        load: gives the base; called once, when the first adapters come.
    """

    def __init__(self, load: Callable[[], BaseModel]) -> None:
        self._load = load
        self._base: BaseModel | None = None

    def __call__(self, manifest: Manifest, state: Mapping[str, T]) -> Mapping[str, T | Tensor]:
        """The state itself where it is a whole model; else the base with these adapters, checked by digest.

        Raises:
            WeightsError: another base, adapters that do not fit it, or another result than the manifest names.
            EngineError: the base cannot be loaded.
        """
        adapter = manifest.adapter
        if adapter is None:
            return state
        if self._base is None:
            self._base = self._load()
        if self._base.digest != adapter.base_digest:
            raise WeightsError(
                f"version {manifest.version} is adapters to base {adapter.base_digest}, the model directory here holds "
                f"{self._base.digest}; it is not loaded",
                hint="give every host the same files in model.path, and the same model.dtype or weights.wire_dtype",
            )
        tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
        merged = self._base.merged(tensors, Scale(rank=adapter.rank, alpha=adapter.alpha))
        digest = stream_digest(merged, ties={}, wire_dtype=None)
        if digest != adapter.merged_digest:
            raise WeightsError(
                f"version {manifest.version} merged is {digest} here, the learner has {adapter.merged_digest}; it is "
                "not loaded"
            )
        return merged


def adapter_tensors(state: WireState) -> dict[str, Tensor]:
    """Float32 tensors over a wire state's own memory."""
    found = {}
    for entry, buffer in zip(state.entries, state.buffers, strict=True):
        if entry.dtype != "F32":
            raise WeightsError(f"adapter {entry.name} is {entry.dtype}; adapters travel as F32")
        found[entry.name] = torch.from_numpy(buffer.data).view(torch.float32).view(entry.shape)
    return found
