"""The admission benchmark: work without an end, counted after the warm-up; the rest runs with a real vLLM only."""

from __future__ import annotations

import pytest

from ops.bench.admission import MAX_SEQUENCES, AdmissionSize, _result, _Work
from ops.bench.result import Noise
from pipeline.engines.scripted import ScriptedEngine, scripted_state
from schemas.records import Version

SIZE = AdmissionSize(blocks=(("small cache", 1),), warm_s=0.05, over_s=0.5)


class Ticks:
    """A clock that moves with each look at it."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += 0.01
        return self._now_s


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.bench.admission.time", Ticks())


@pytest.mark.parametrize("admission", ["fixed", "pressure"])
def test_the_work_keeps_an_engine_at_its_limit_and_gives_up_the_rest(admission: str) -> None:
    engine = ScriptedEngine(max_concurrent_sequences=MAX_SEQUENCES, context_tokens=2048, tokens_per_step=200)
    engine.load(Version(lineage=1, step=0), scripted_state(0))
    seen = _Work(engine, admission=admission).run(SIZE)
    assert seen.num_tokens > 0
    assert seen.waited_s
    assert engine.num_running == 0
    assert set(seen.limits) == {MAX_SEQUENCES if admission == "fixed" else 64}, "it says nothing of its load"


def test_the_numbers_are_in_the_table_and_under_flat_keys() -> None:
    engine = ScriptedEngine(max_concurrent_sequences=MAX_SEQUENCES, context_tokens=2048, tokens_per_step=200)
    engine.load(Version(lineage=1, step=0), scripted_state(0))
    seen = _Work(engine, admission="fixed").run(SIZE)
    found = {("small cache", each): seen for each in ("fixed", "pressure")}
    result = _result(SIZE, found, noise=Noise())
    assert result.values["small_pressure_over_fixed"] == 1.0
    assert "small cache, pressure" in result.text()
