"""A whole run whose rollout producer generates over HTTP; the producer is killed, then the server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.engines.model_dir import load_model, load_tokenizer
from schemas.reasons import Result
from schemas.records import Sample
from tests.e2e.processes import child_with, signal_pid
from tests.e2e.support import Value, check_books, read_all, small_run
from tests.inference_server import InferenceServer
from topics.catalog import EVENTS, LEDGER, SAMPLES, WEIGHTS

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def server(model: Path) -> Iterator[InferenceServer]:
    """Over the directory that the run begins with."""
    made = InferenceServer(load_model(model, device="cpu", dtype="float32"), load_tokenizer(model), token_s=0.01)
    yield made.start()
    made.close()


def test_a_run_over_http_survives_the_kill_of_its_producer_and_of_its_server(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path, server: InferenceServer
) -> None:
    """Case 40: nobody is served what the killed producer left paused, nor what the restarted server has by itself."""
    changes: dict[str, Value] = {
        "rollout.engine": "http",
        "rollout.http.base_urls": [server.url],
        "rollout.http.silence_limit_s": 2.0,
        "rollout.http.health_every_s": 0.2,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, LEDGER, WEIGHTS)
        watch.until(lambda: watch.step_of() >= 2, what="step 2")
        signal_pid(child_with(process, " run rollout "), signal.SIGKILL)
        server.call(pause(server))
        watch.until(lambda: watch.step_of() >= 5, what="step 5, after the producer was killed")
        server.kill()
        server.labels[:] = ["default"] * len(server.labels)  # what is started again has its directory's weights
        server.start()
        assert process.wait(120) == 0, run.outputs()
        watch.close()
        seen = check_books(run)
        assert [each for each in seen.outcomes if each.result == Result.TRAINED]
        assert len({event.instance for event in seen.events("rollout", name="swapped")}) == 2
        records = [each.record for each in read_all(run, SAMPLES).envelopes]
        made = [each for each in records if isinstance(each, Sample) and each.failure is None]
        assert made
        assert all(stretch.verified for sample in made for stretch in sample.version_runs)


async def pause(server: InferenceServer) -> None:
    server.paused = True
