"""The delta benchmark: its numbers are there, meet what is promised of lengths, and its contenders do the same work."""

from __future__ import annotations

import numpy as np
import pytest

from ops.bench.catalog import BENCHES, BenchRequest
from ops.bench.deltas import LIMITS_PCT, _PlainTorch, delta_bytes, make_pair
from ops.bench.result import BenchResult
from pipeline.weights.delta_state import apply_bytes


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return BENCHES["deltas"](BenchRequest(quick=True))


def test_lengths_are_as_promised_and_not_below_the_entropy(result: BenchResult) -> None:
    for key, limit_pct in LIMITS_PCT.items():
        share, floor = result.values[f"delta_share_{key}_pct"], result.values[f"delta_floor_{key}_pct"]
        assert share is not None
        assert floor is not None
        assert 0.999 * floor < share <= limit_pct


def test_every_speed_is_in_the_table_and_the_json(result: BenchResult) -> None:
    for key in (
        "encode",
        "encode_with_digest",
        "apply",
        "apply_with_digest",
        "memory_copy",
        "torch_find",
        "torch_apply",
    ):
        value = result.values[f"{key}_gb_s"]
        assert value is not None
        assert value > 0
        assert key.replace("_", " ") in result.text()


def test_the_contenders_end_with_the_same_bytes() -> None:
    pair = make_pair(2**16, share=0.05)
    plain = _PlainTorch(pair)
    plain.apply()
    apply_bytes(delta_bytes(pair), state=pair.old, state_digest="00" * 32)
    for buffer, target, wanted in zip(pair.old.buffers, plain._target, pair.new.buffers, strict=True):
        assert np.array_equal(buffer.data, wanted.data)
        assert np.array_equal(target.numpy().view(np.uint8), wanted.data)
