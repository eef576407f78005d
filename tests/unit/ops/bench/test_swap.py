"""The swap benchmark: its numbers are there, every request comes back, and loads happen with requests in flight."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from ops.bench.catalog import BENCHES, BenchRequest
from ops.bench.result import BenchResult
from ops.bench.swap import SwapSize, bench_swap
from pipeline.engines.tiny import TinyShape
from tests.engines import NEEDS_VLLM

TIMES = ("bare_p50_ms", "bare_p95_ms", "pause_p50_ms", "pause_p95_ms")
RATIOS = ("pause_over_bare_p50", "pause_over_bare_p95", "pause_p95_over_bare_p50")


def check(result: BenchResult, *, engine: str) -> None:
    for key in (*TIMES, *RATIOS):
        value = result.values[f"{engine}_{key}"]
        assert value is not None
        assert value > 0
    num_requests = result.values[f"{engine}_requests"]
    assert num_requests is not None
    assert num_requests > 64
    assert result.values[f"{engine}_requests_lost"] == 0
    assert f"0 of {num_requests}" in result.text()


def test_torch() -> None:
    small = TinyShape(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=32)
    result = bench_swap(replace(SwapSize.quick(), shape=small, num_turns=1), engines=("torch",))
    check(result, engine="torch")
    assert result.noise["num_repeats"] == 10
    assert not any(key.startswith("vllm") for key in result.values)


def test_an_engine_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.bench.swap.importlib.util.find_spec", lambda name: None)
    result = bench_swap(SwapSize.quick(), engines=("vllm",))
    assert "vllm is left out: it is not installed" in result.text()


@pytest.mark.parametrize("engine", [pytest.param("vllm", marks=NEEDS_VLLM)])
def test_vllm(engine: str) -> None:
    with warnings.catch_warnings():  # of vLLM's own imports
        warnings.simplefilter("ignore")
        result = BENCHES["swap"](BenchRequest(quick=True, engine=engine))
    check(result, engine=engine)
