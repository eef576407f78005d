"""Adapters and their base: one order of arithmetic, and nothing given out that was not named by digest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.engines.backends import no_adapters
from pipeline.weights.adapters import Adapting, BaseModel, Merger, merge
from pipeline.weights.manifest import EncodedState, build_manifest, check_manifest
from pipeline.weights.scale import Scale
from pipeline.weights.state import tensor_entries
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Manifest, Version

SCALE = Scale(rank=3, alpha=5.0)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def base(seed: int = 0) -> BaseModel:
    return BaseModel.of({"m.q.weight": draw(70, 1100, seed=seed), "m.norm.weight": draw(8)}, wire_dtype="BF16")


def adapters(seed: int = 1) -> dict[str, torch.Tensor]:
    return {"m.q.lora_A.weight": draw(3, 1100, seed=seed), "m.q.lora_B.weight": draw(70, 3, seed=seed + 1)}


def manifest_of(tensors: dict[str, torch.Tensor], *, over: BaseModel) -> Manifest:
    entries = tensor_entries(tensors, ties={}, wire_dtype=None)
    state = WireState.over(entries, tensors)
    encoded = EncodedState(
        tensors=entries,
        chunks=(ChunkRef(digest="0" * 64, num_bytes=state.num_bytes),),
        state_digest=state.digest(),
        num_bytes=state.num_bytes,
    )
    adapter = Adapting(base=over, scale=SCALE).describe(state)
    version = Version(lineage=1, step=1)
    return build_manifest(encoded, run="r", version=version, seeds=(), created_unix_ms=0, adapter=adapter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_merging_is_the_documented_order_bit_for_bit(dtype: torch.dtype) -> None:
    weight, own = draw(70, 1100).to(dtype), adapters()
    a, b = own["m.q.lora_A.weight"].numpy(), own["m.q.lora_B.weight"].numpy()
    product = b[:, 0:1] * a[0:1]
    for k in (1, 2):
        product = product + b[:, k : k + 1] * a[k : k + 1]
    expected = torch.from_numpy(product * np.float32(5.0 / 3.0) + weight.float().numpy()).to(dtype)
    kept = weight.clone()
    assert torch.equal(merge(weight, a=own["m.q.lora_A.weight"], b=own["m.q.lora_B.weight"], scale=SCALE), expected)
    assert torch.equal(weight, kept)


def test_an_engine_gets_the_whole_model_that_the_learner_named() -> None:
    tensors = adapters()
    manifest = manifest_of(tensors, over=base())
    loads: list[int] = []

    def load() -> BaseModel:
        loads.append(1)
        return base()

    merger = Merger(load)
    whole = merger(manifest, tensors)
    assert sorted(whole) == ["m.norm.weight", "m.q.weight"]
    assert whole["m.q.weight"].dtype == torch.bfloat16
    assert not torch.equal(whole["m.q.weight"], base().own["m.q.weight"])
    merger(manifest, tensors)
    assert loads == [1]  # once
    plain = replace(manifest, adapter=None)
    assert merger(plain, tensors) is tensors


def test_another_base_or_another_result_is_not_given_out() -> None:
    tensors = adapters()
    manifest = manifest_of(tensors, over=base())
    with pytest.raises(WeightsError, match="the model directory here holds"):
        Merger(lambda: base(seed=9))(manifest, tensors)
    with pytest.raises(WeightsError, match=r"merged is .* here, the learner has"):
        Merger(base)(manifest, adapters(seed=4))


def test_adapters_that_do_not_fit_are_refused() -> None:
    tensors = adapters()
    manifest = manifest_of(tensors, over=base())
    merger = Merger(base)
    a, b = tensors["m.q.lora_A.weight"], tensors["m.q.lora_B.weight"]
    with pytest.raises(WeightsError, match="not pairs"):
        merger(manifest, {"m.q.lora_A.weight": a})
    with pytest.raises(WeightsError, match="no floating matrix"):
        merger(manifest, {"x.lora_A.weight": a, "x.lora_B.weight": b})
    with pytest.raises(WeightsError, match=r"has to be float32 \[3, 1100\]"):
        merger(manifest, {**tensors, "m.q.lora_A.weight": a.half()})


def test_an_engine_without_merging_says_so() -> None:
    tensors = adapters()
    manifest = manifest_of(tensors, over=base())
    with pytest.raises(WeightsError, match="does not merge"):
        no_adapters(manifest, tensors)
    assert no_adapters(replace(manifest, adapter=None), tensors) is tensors


def test_a_manifest_with_impossible_adapters_is_refused() -> None:
    manifest = manifest_of(adapters(), over=base())
    assert manifest.adapter is not None
    for wrong in ({"rank": 0}, {"alpha": float("nan")}, {"alpha": 0.0}, {"base_digest": "x"}, {"merged_digest": ""}):
        with pytest.raises(WeightsError, match="is refused"):
            check_manifest(replace(manifest, adapter=replace(manifest.adapter, **wrong)))
