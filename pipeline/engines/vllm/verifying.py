"""Whether a loaded model computes with exactly the published tensors.

Role: the check after a load, inside vLLM's worker, on what runs and not on what was asked for (promise 9).
Data in: modules, and the tensors each parameter is made of. Data out: nothing, or what is wrong.
How: a parameter that is kept as it is, is compared value by value. One that was repacked for a faster kernel cannot be
read back, so the kernel itself is asked: products with random sign vectors must equal those of the published matrix
(Freivalds, Probabilistic machines can use less running time, 1977), within the rounding of the dtype.
Failure: `VerifyError` that names the parameter; the caller must not serve the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_VECTORS = 8  # a wrong row stays unseen with a chance of 2**-8 at most, a wrong tensor practically never
OUTPUT_ULPS = 4.0  # the result is rounded to the dtype of the weights
SUM_ULPS = 64.0  # kernels add up in float32, in an order of their own


class VerifyError(Exception):
    """What is loaded is not what was published."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One parameter in the engine."""

    name: str
    parameter: Tensor  # what is stored; empty when only a repacked form is kept
    product: Callable[[Tensor], Tensor] | None  # x [n, in] -> x times the matrix, by the engine's own kernel


def verify(loaded: Loaded, expected: Tensor) -> None:
    """Compare one parameter with the tensor it should be.

    Args:
        expected: float tensor [out, in] or [n]; rows beyond it in the parameter are padding.

    Raises:
        VerifyError: they differ, or nothing can be compared.
    """
    stored = loaded.parameter
    if stored.numel():
        _verify_stored(loaded.name, stored, expected=expected)
    elif loaded.product is None:
        raise VerifyError(f"{loaded.name} is stored in a form that cannot be compared")
    if loaded.product is not None and expected.ndim == 2:
        _verify_product(loaded.name, loaded.product, expected=expected)


def _verify_stored(name: str, stored: Tensor, *, expected: Tensor) -> None:
    if stored.ndim != expected.ndim or stored.shape[1:] != expected.shape[1:] or len(stored) < len(expected):
        raise VerifyError(f"{name} has shape {tuple(stored.shape)}, published is {tuple(expected.shape)}")
    if not torch.equal(stored[: len(expected)].cpu(), expected.to(stored.dtype)):
        raise VerifyError(f"{name} holds other values than those published")


def _verify_product(name: str, product: Callable[[Tensor], Tensor], *, expected: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (NUM_VECTORS, expected.shape[1]), generator=generator).to(expected.dtype) * 2 - 1
    seen = product(signs)[:, : expected.shape[0]].double().cpu()
    exact = signs.double() @ expected.double().T
    rounding = torch.finfo(expected.dtype).eps * OUTPUT_ULPS * exact.abs()
    summing = torch.finfo(torch.float32).eps * SUM_ULPS * expected.double().abs().sum(dim=1)
    bound = rounding + summing
    wrong = (seen - exact).abs() > bound
    if bool(wrong.any()) or not bool(torch.isfinite(seen).all()):
        raise VerifyError(f"{name}: the engine's kernel computes with other values than those published")
