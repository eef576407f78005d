"""A real vLLM whose process hangs or dies: another one is started in its place. And a model with tied weights."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.engines.base import EngineState
from schemas.errors import EngineError
from schemas.records import SamplingParams
from tests.e2e.processes import children_of
from tests.engines import NEEDS_VLLM, SharedVllm, random_state
from tests.integration.vllm_support import AGREES, differences, model_with, request, run_out, version

pytestmark = NEEDS_VLLM
if TYPE_CHECKING:
    from pipeline.engines.vllm.engine import VllmEngine


def test_a_tied_model_a_vllm_that_hangs_in_a_load_and_one_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 37, Case 40: another vLLM is started in their place, cold, and serves nothing before a version is loaded."""
    others = set(children_of(os.getpid()))
    vllm = SharedVllm(tmp_path, tied=True)
    made = vllm.engine()
    try:
        for step in range(3):
            state = random_state(vllm.weights, seed=step)
            made.load(version(step), state)
            made.submit([request(str(index), seed=index) for index in range(16)])
            assert np.mean(differences(model_with(tmp_path, state), run_out(made))) <= AGREES
    finally:
        made.close()
    made = vllm.owner()
    _hang_and_load(vllm, made, others=others, patch=monkeypatch)
    _kill_and_load(vllm, made, others=others)
    made.close()
    vllm.close()


def _core_of(others: set[int]) -> int:
    lines = children_of(os.getpid())
    (core,) = [pid for pid, line in lines.items() if "EngineCore" in line and pid not in others]
    return core


def _hang_and_load(vllm: SharedVllm, made: VllmEngine, *, others: set[int], patch: pytest.MonkeyPatch) -> None:
    """The core is stopped when the load reaches it, and never answers on version 7."""
    state = random_state(vllm.weights, seed=9)
    made.load(version(6), state)
    made.submit([request(str(index), sampling=SamplingParams(max_tokens=400)) for index in range(8)])
    made.step()
    core, host = _core_of(others), vllm.host
    update = host.client.update

    async def stop_and_update(info: dict[str, object], *, label: str) -> None:
        os.kill(core, signal.SIGSTOP)
        await update(info, label=label)

    patch.setattr(host.client, "update", stop_and_update)
    patch.setattr(host, "lease_s", 10.0)  # the pause must be done within it, on a busy machine too
    began_s = time.monotonic()
    with pytest.raises(EngineError, match=r"loading 1\.7 failed.*the update was not done when the lease.*quarantined"):
        made.load(version(7), state)
    assert time.monotonic() - began_s < 100, "the lease is ten seconds"
    assert (made.state, made.version) == (EngineState.QUARANTINED, None)
    with pytest.raises(EngineError, match="8 requests are lost"):
        made.step()
    made.load(version(8), state)
    assert core not in children_of(os.getpid()), "what hung is not left behind"
    made.submit([request("after")])
    (done,) = run_out(made)
    assert done.version_runs[0].version == version(8)


def _kill_and_load(vllm: SharedVllm, made: VllmEngine, *, others: set[int]) -> None:
    state = random_state(vllm.weights, seed=9)
    made.load(version(9), state)
    made.submit([request(str(index), sampling=SamplingParams(max_tokens=400)) for index in range(8)])
    made.step()
    os.kill(_core_of(others), signal.SIGKILL)
    with pytest.raises(EngineError, match="requests are lost"):
        run_out(made)
    assert (made.state, made.version) == (EngineState.QUARANTINED, None)
    with pytest.raises(EngineError, match="quarantined"):
        made.submit([request("too early")])
    made.load(version(10), state)
    made.submit([request("after")])
    (done,) = run_out(made)
    assert done.version_runs[0].version == version(10)
