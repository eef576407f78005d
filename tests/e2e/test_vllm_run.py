"""A whole run whose rollout producer generates with a real vLLM, killed once on the way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from schemas.reasons import Result
from tests.e2e.processes import child_with, children_of, command_of, signal_pid
from tests.e2e.support import Value, check_books, small_run
from tests.engines import NEEDS_VLLM
from topics.catalog import EVENTS, LEDGER, WEIGHTS

pytestmark = [pytest.mark.integration, *NEEDS_VLLM]
START_S = 240.0  # of vLLM on a busy machine


@pytest.mark.timeout(900)
def test_a_run_with_vllm_survives_the_kill_of_its_producer(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """The killed producer takes vLLM's process with it; the next one serves nothing before it has loaded a version."""
    changes: dict[str, Value] = {
        "rollout.engine": "vllm",
        "learner.silent_notice_s": 200.0,
        "learner.silent_end_s": 400.0,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, LEDGER, WEIGHTS)
        watch.until(lambda: watch.step_of() >= 3, what="step 3", limit_s=START_S)
        producer = child_with(process, " run rollout ")
        cores = [pid for pid, line in children_of(producer).items() if "EngineCore" in line]
        assert len(cores) == 1
        signal_pid(producer, signal.SIGKILL)
        watch.until(lambda: "EngineCore" not in command_of(cores[0]), what="the end of vLLM's process")
        assert process.wait(START_S) == 0, run.outputs()
        watch.close()
        seen = check_books(run)
        trained = [each for each in seen.outcomes if each.result == Result.TRAINED]
        assert trained
        swaps = seen.events("rollout", name="swapped")
        assert len({event.instance for event in swaps}) == 2
