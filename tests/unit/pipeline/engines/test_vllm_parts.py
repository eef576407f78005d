"""What the vLLM engine is made of, without vLLM: sealed files, the map of parameters, the check of what runs."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.engines.vllm.sealed import is_sealed, seal
from pipeline.engines.vllm.tracing import Placed, TraceError, trace
from pipeline.engines.vllm.verifying import Loaded, VerifyError, prints_of, verify

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
PUBLISHED = [f"l.{part}_proj.weight" for part in ("q", "k", "v", "o")] + ["embed.weight"]
PARAMETERS = ["l.qkv_proj.weight", "l.o_proj.weight", "embed.weight"]


def same(name: str) -> Placed:
    return name, None


def test_a_sealed_file_is_safetensors_and_cannot_be_changed() -> None:
    state = {"b": torch.randn(3, 5), "a": torch.arange(4, dtype=torch.int64), "c": torch.randn(7).bfloat16()}
    sealed = seal(state, name="1.2")
    with safe_open(sealed.path, framework="pt") as opened:
        for name, tensor in state.items():
            assert torch.equal(opened.get_tensor(name), tensor)
    fd = os.open(sealed.path, os.O_RDWR)
    try:
        assert is_sealed(fd)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1)
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 8, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    sealed.close()
    sealed.close()
    assert not os.path.exists(sealed.path)


def test_an_ordinary_file_is_not_sealed() -> None:
    fd = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    assert not is_sealed(fd)
    os.close(fd)


@pytest.mark.parametrize("mapped", [False, True], ids=["declared", "by vLLM's mapper"])
def test_fused_parameters_have_their_parts_in_order(mapped: bool) -> None:
    def place(name: str) -> Placed:
        for part in ("q", "k", "v"):
            if f".{part}_proj." in name:
                return name.replace(f"{part}_proj", "qkv_proj"), part
        return name, None

    found = trace(PARAMETERS, PUBLISHED, ties={}, place=place if mapped else same, packed={} if mapped else PACKED)
    assert found["l.qkv_proj.weight"] == ("l.q_proj.weight", "l.k_proj.weight", "l.v_proj.weight")
    assert found["l.o_proj.weight"] == ("l.o_proj.weight",)


def test_a_tied_parameter_is_made_of_its_owner() -> None:
    found = trace(
        [*PARAMETERS, "head.weight"], PUBLISHED, ties={"head.weight": "embed.weight"}, place=same, packed=PACKED
    )
    assert found["head.weight"] == ("embed.weight",)
    trace(PARAMETERS, PUBLISHED, ties={"head.weight": "embed.weight"}, place=same, packed=PACKED)


@pytest.mark.parametrize(
    ("parameters", "published", "said"),
    [
        (PARAMETERS, PUBLISHED[:-1], "in the engine and not published: embed.weight"),
        (PARAMETERS, [*PUBLISHED, "new.weight"], "published and not in the engine: new.weight"),
        ([*PARAMETERS, "scale"], PUBLISHED, "in the engine and not published: scale"),
    ],
)
def test_what_has_no_counterpart_is_named(parameters: list[str], published: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        trace(parameters, published, ties={}, place=same, packed=PACKED)


def product_of(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ weight.T


@pytest.mark.parametrize("known", [False, True], ids=["computed here", "computed before"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_repacked_matrix_is_checked_by_its_products(dtype: torch.dtype, known: bool) -> None:
    published = (torch.randn(96, 64) * 0.1).to(dtype)
    parts = [published[:32], published[32:33], published[33:]]
    prints = [prints_of(part) for part in parts] if known else None
    gone = torch.empty(0)
    verify(Loaded(name="w", parameter=gone, product=product_of(published)), parts, prints=prints)
    one_off = published.clone()
    one_off[17, 3] += 0.5
    stale = (torch.randn(96, 64) * 0.1).to(dtype)
    swapped = published.clone()
    swapped[:32], swapped[32:64] = published[32:64].clone(), published[:32].clone()
    for wrong in (one_off, stale, swapped, torch.full_like(published, float("nan"))):
        with pytest.raises(VerifyError, match="kernel computes"):
            verify(Loaded(name="w", parameter=gone, product=product_of(wrong)), parts, prints=prints)


def test_rounding_of_large_matrices_is_no_difference() -> None:
    """A kernel that adds up in another order, over a width at which float32 shows it."""
    published = torch.randn(64, 16_384)
    kernel = product_of(published.double())
    verify(Loaded(name="w", parameter=torch.empty(0), product=lambda x: kernel(x.double()).float()), [published])


def test_prints_do_not_depend_on_how_a_matrix_is_cut() -> None:
    matrix = torch.randn(9000, 8)
    assert torch.equal(prints_of(matrix), torch.cat([prints_of(matrix[:4096]), prints_of(matrix[4096:])], dim=1))


def test_a_stored_parameter_is_compared_value_by_value() -> None:
    published = torch.randn(5, 4)
    padded = torch.cat([published, torch.zeros(3, 4)])
    verify(Loaded(name="w", parameter=padded, product=None), [published])
    verify(Loaded(name="w", parameter=padded, product=None), [published[:2], published[2:]])
    off = published.clone()
    off[4, 3] = torch.nextafter(off[4, 3], torch.tensor(9.0))
    for wrong in (off, published[:4], published[:, :3]):
        with pytest.raises(VerifyError):
            verify(Loaded(name="w", parameter=wrong, product=None), [published])
        with pytest.raises(VerifyError):
            verify(Loaded(name="w", parameter=wrong, product=None), [published[:1], published[1:]])
    # stored right, and a stale repacked copy beside it: a tied output layer
    with pytest.raises(VerifyError, match="kernel"):
        verify(Loaded(name="w", parameter=published, product=product_of(torch.randn(5, 4))), [published])


def test_what_cannot_be_compared_is_not_taken_for_right() -> None:
    with pytest.raises(VerifyError, match="cannot be compared"):
        verify(Loaded(name="w", parameter=torch.empty(0), product=None), [torch.randn(3, 3)])
