"""Whether a loaded model computes with exactly the published tensors.

Role: the check after a load, inside vLLM's worker, on what runs and not on what was asked for (promise 9).
Data in: modules, and the tensors each parameter is made of. Data out: nothing, or what is wrong.
How: a parameter that is kept as it is, is compared value by value. One that was repacked for a faster kernel cannot be
read back, so the kernel itself is asked: products with random sign vectors must equal those of the published matrix
(Freivalds, Probabilistic machines can use less running time, 1977), within the rounding of the dtype. What the products
should be (`prints_of`) is computed before the pause, beside generation, and travels with the state.
Failure: `VerifyError` that names the parameter; the caller must not serve the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

NUM_VECTORS = 8  # a wrong row stays unseen with a chance of 2**-8 at most, a wrong tensor practically never
OUTPUT_ULPS = 4.0  # the result is rounded to the dtype of the weights
SUM_ULPS = 64.0  # kernels add up in float32, in an order of their own, and so do we
_BLOCK_ROWS = 4096  # converted to float32 at a time


class VerifyError(Exception):
    """What is loaded is not what was published."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One parameter in the engine."""

    name: str
    parameter: Tensor  # what is stored; empty when only a repacked form is kept
    product: Callable[[Tensor], Tensor] | None  # x [n, in] -> x times the matrix, by the engine's own kernel


def prints_of(matrix: Tensor) -> Tensor:
    """What a matrix's products should be, and how far rounding may take them from it.

    Args:
        matrix: float [out, in].

    Returns:
        float32 [NUM_VECTORS + 1, out]: the products with the sign vectors, then the sums of absolute values.
    """
    prints = torch.empty(NUM_VECTORS + 1, matrix.shape[0])
    signs = _signs(matrix.shape[1])
    for start in range(0, matrix.shape[0], _BLOCK_ROWS):
        rows = matrix[start : start + _BLOCK_ROWS].to(device="cpu", dtype=torch.float32)
        prints[:-1, start : start + len(rows)] = signs @ rows.T
        prints[-1, start : start + len(rows)] = rows.abs().sum(dim=1)
    return prints


def verify(loaded: Loaded, parts: Sequence[Tensor], *, prints: Sequence[Tensor] | None = None) -> None:
    """Compare one parameter with the tensors it should be.

    Args:
        parts: float tensors [out, in] or [n], one after the other along the first axis; rows beyond them in the
            parameter are padding.
        prints: `prints_of` each part; None: they are computed.

    Raises:
        VerifyError: they differ, or nothing can be compared.
    """
    stored = loaded.parameter
    if stored.numel():
        _verify_stored(loaded.name, stored, parts=parts)
    elif loaded.product is None:
        raise VerifyError(f"{loaded.name} is stored in a form that cannot be compared")
    if loaded.product is not None and parts[0].ndim == 2:
        known = prints if prints is not None else [prints_of(part) for part in parts]
        _verify_product(loaded.name, loaded.product, parts=parts, prints=torch.cat(list(known), dim=1))


def _verify_stored(name: str, stored: Tensor, *, parts: Sequence[Tensor]) -> None:
    num_rows = sum(len(part) for part in parts)
    shape = (num_rows, *parts[0].shape[1:])
    if stored.ndim != len(shape) or stored.shape[1:] != shape[1:] or len(stored) < num_rows:
        raise VerifyError(f"{name} has shape {tuple(stored.shape)}, published is {shape}")
    start = 0
    for part in parts:
        if not torch.equal(stored[start : start + len(part)].cpu(), part.to(stored.dtype)):
            raise VerifyError(f"{name} holds other values than those published")
        start += len(part)


def _verify_product(name: str, product: Callable[[Tensor], Tensor], *, parts: Sequence[Tensor], prints: Tensor) -> None:
    dtype = parts[0].dtype
    seen = product(_signs(parts[0].shape[1]).to(dtype))[:, : prints.shape[1]].float().cpu()
    exact, sums = prints[:-1], prints[-1]
    bound = torch.finfo(dtype).eps * OUTPUT_ULPS * exact.abs() + torch.finfo(torch.float32).eps * SUM_ULPS * sums
    wrong = (seen - exact).abs() > bound
    if bool(wrong.any()) or not bool(torch.isfinite(seen).all()):
        raise VerifyError(f"{name}: the engine's kernel computes with other values than those published")


@lru_cache(maxsize=16)
def _signs(num_columns: int) -> Tensor:
    """float32 [NUM_VECTORS, columns] of 1 and -1, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (NUM_VECTORS, num_columns), generator=generator).float() * 2 - 1
