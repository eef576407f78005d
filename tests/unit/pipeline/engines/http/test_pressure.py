"""A server is asked for its metrics while requests are in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.engines.http import watching
from pipeline.engines.http.engine import HttpEngine
from pipeline.engines.http.opening import open_http_engine
from pipeline.engines.http.settings import HttpSettings
from tests.inference_faults import Fault
from tests.inference_server import InferenceServer
from tests.unit.pipeline.engines.http.support import V1, request, run_out, state_of
from topics.clock import Deadline

PAGE = Fault(text='vllm:kv_cache_usage_perc{model_name="policy"} 0.5\nvllm:num_requests_running 3.0\n')


def step_until(engine: HttpEngine, done: Callable[[], bool], *, what: str) -> None:
    deadline = Deadline.after(20)
    while not done():
        deadline.check(what)
        engine.step()


@pytest.mark.parametrize("answer", [PAGE, Fault(status=404)], ids=["a server with metrics", "one without"])
def test_pressure_is_what_the_server_says(
    folder: Path, serve: Callable[..., InferenceServer], monkeypatch: pytest.MonkeyPatch, answer: Fault
) -> None:
    monkeypatch.setattr(watching, "EVERY_S", 0.05)
    server = serve(token_s=0.05)
    server.lasting["/metrics"] = answer
    settings = HttpSettings(base_urls=(server.url,), update_dir=None, update="plugin")
    engine = open_http_engine(folder, max_sequences=64, watch_pressure=True, settings=settings)
    try:
        engine.load(V1, state_of(folder, seed=1))
        engine.submit([request("a", max_tokens=30)])
        step_until(engine, lambda: "/metrics" in server.paths(), what="the question")
        if answer.status == 200:
            step_until(engine, lambda: engine.pressure is not None, what="the answer")
            assert engine.pressure is not None
            assert (engine.pressure.kv_use_share, engine.pressure.running) == (0.5, 3)
            assert engine.pressure.queued is None
        run_out(engine)
        if answer.status == 404:
            assert engine.pressure is None
            assert server.paths().count("/metrics") == 1, "it is not asked again"
    finally:
        engine.close()
