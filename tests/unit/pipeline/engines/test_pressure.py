"""What engines say of their load."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from pipeline.engines.http.watching import NAMES, read
from pipeline.engines.pressure import EnginePressure, pressure_of
from pipeline.engines.scripted import ScriptedEngine
from pipeline.engines.vllm.stats import PressureLog

VLLM = b"""# HELP vllm:kv_cache_usage_perc KV-cache usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="policy"} 0.75
vllm:num_requests_waiting{engine="0",model_name="policy"} 3.0
vllm:num_requests_waiting{engine="1",model_name="policy"} 1.0
vllm:num_requests_running{engine="0",model_name="policy"} 12.0
vllm:num_preemptions_total{engine="0",model_name="policy"} 2.0
vllm:num_preemptions_created{engine="0",model_name="policy"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="policy"} 1.5e+06
"""
SGLANG = b"""sglang:token_usage{model_name="policy"} 0.5
sglang:num_queue_reqs{model_name="policy"} 0.0
sglang:num_running_reqs{model_name="policy"} NaN
"""


def test_the_metrics_of_a_vllm_server() -> None:
    assert read(VLLM, names=NAMES["vllm"], at_s=7.0) == EnginePressure(
        measured_s=7.0, kv_use_share=0.75, queued=4, running=12, preemptions=2, tokens=1_500_000
    )


def test_what_a_server_does_not_say_is_unknown() -> None:
    assert read(SGLANG, names=NAMES["sglang"], at_s=7.0) == EnginePressure(measured_s=7.0, kv_use_share=0.5, queued=0)


@pytest.mark.parametrize("text", [b"", VLLM, b"<html>\xff</html>", b"sglang:token_usage{ 1 2 3\nsglang:token_usage x"])
def test_a_page_without_one_of_the_names_says_nothing(text: bytes) -> None:
    assert read(text, names=NAMES["sglang"], at_s=7.0) is None


def test_an_engine_that_cannot_say_says_nothing() -> None:
    assert pressure_of(ScriptedEngine()) is None


@dataclass
class Scheduled:
    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float


@dataclass
class Iterated:
    num_generation_tokens: int
    num_preempted_reqs: int


def seen(log: PressureLog) -> EnginePressure | None:
    return log.latest


def test_of_the_steps_of_vllm_those_count_that_stood_in_the_queue_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("pipeline.engines.vllm.stats.time.monotonic", lambda: now_s)
    log = PressureLog()
    log.record(Scheduled(8, 5, 0.2), Iterated(8, 0))
    log.record(None, Iterated(8, 1))
    assert seen(log) is None
    now_s = 101.0
    log.record(Scheduled(7, 2, 0.1), None)
    assert seen(log) == EnginePressure(
        measured_s=101.0, kv_use_share=0.2, queued=2, running=7, preemptions=1, tokens=16
    )
    now_s = 102.0
    log.record(Scheduled(7, 0, math.nextafter(0.1, 1)), Iterated(7, 0))
    found = seen(log)
    assert found is not None
    assert (found.queued, found.tokens, found.preemptions) == (0, 23, 1)
    assert found.kv_use_share == pytest.approx(0.1)
